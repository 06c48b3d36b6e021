"""Engines without weights that can share their target, and targets with faults of their own."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.core.protocols import Capabilities, Segment
from slipstream.draft import SuffixDrafter
from slipstream.engine import Engine, GenerationOptions
from slipstream.measure.cases import Case
from slipstream.policy import FixedLength
from tests.fakes import FakeModel, FakeRows, FakeSession

GIVEN: GenerationOptions = {"temperature": 0.9, "top_p": 0.95, "min_p": 0.02, "max_tokens": 40}
CASES = [Case(f"prompt-{number}", tuple(f"a prompt {number} ".encode()), 7 + number) for number in range(6)]


class FakeEngine(Engine):
    """`sharing` without files; "auto" is a fixed length of 2."""

    def sharing(self, *, draft: Any = None, speculation: str = "auto", **more: Any) -> Engine:
        plain = speculation == "off" or draft in (None, "none")
        drafters = [] if plain else [SuffixDrafter() if draft == "suffix" else draft]
        length = more.get("num_draft_tokens") or (2 if speculation == "auto" else 4)
        engine = FakeEngine(self.target, drafters, FixedLength(length), defaults=self.defaults)
        engine._owns_target, engine._pool = False, self._pool
        return engine


class RoundingModel(FakeModel):
    """A row moves by up to `size` logits when others are computed beside it, as on most runtimes."""

    def __init__(self, *, size: float = 0.02, **more: Any) -> None:
        super().__init__(**more)
        self.capabilities = Capabilities(trees=True, bit_exact_rows=False)
        self.size = size

    def _rows(self, segment: Segment) -> FakeRows:
        rows = super()._rows(segment)
        if len(segment.tokens) == 1:
            return rows
        for place, row in enumerate(rows._rows):
            key = zlib.crc32(row.tobytes() + bytes([len(segment.tokens), place]))
            noise = np.random.default_rng(key).uniform(-self.size, self.size, len(row))
            rows._rows[place] = row + noise.astype(np.float32)
        return rows


class ForgetfulSession(FakeSession):
    """Keeps one row of a draft that was refused."""

    def commit(self, path: Sequence[int]) -> None:
        batch = self.batch
        super().commit(path)
        if batch is not None and len(path) < len(batch.tokens) and batch.outputs is None:
            self.tokens.append(batch.tokens[len(path)])


class ForgetfulModel(RoundingModel):
    """Its sessions do not roll back as they should."""

    def open_session(self) -> FakeSession:
        self.open_sessions += 1
        return ForgetfulSession(self)


def fake_engine(model: FakeModel | None = None) -> FakeEngine:
    return FakeEngine(model or FakeModel(sharpness=2.0, max_sessions=8))
