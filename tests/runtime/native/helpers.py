"""What the native runtime's tests share: tiny files, models made once, and what a sequence must look like."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.core.feed import common_prefix
from slipstream.core.protocols import Segment
from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.instruction_sets import VARIABLE
from slipstream.runtime.native.session import NativeSession
from tests.tiny_models import GROUPED, SUPER, Shape

SUPER_FORMATS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
FORMATS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", *SUPER_FORMATS)

Cached = list[tuple[NDArray[np.uint16], NDArray[np.uint16]]]
"""Keys and values of each layer, [length, heads, head size] each, without those that a window has left behind."""


def shape_for(storage: str) -> Shape:
    """Sizes of a tiny model whose matrices may have this type."""
    return SUPER if storage in SUPER_FORMATS else GROUPED


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    """`SLIPSTREAM_ISA` while a model is loaded; a fixture would end before a session's models do."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def load(
    path: Path, isa: str, *, threads: int = 1, context: int = 256, sessions: int = 4, rows: int = 512
) -> NativeModel:
    """A tiny model with that instruction set."""
    with instruction_set(isa):
        return load_native(path, context_length=context, max_sequences=sessions, max_rows=rows, threads=threads)


def feed(model: NativeModel, session: NativeSession, tokens: Sequence[int]) -> NDArray[np.float32]:
    """[n, vocab] logits of these tokens as a chain in one forward, copied; all are committed."""
    rows = model.forward([Segment(session, tokens)])[0]
    logits = np.array([rows.logits(row) for row in range(len(tokens))])
    session.commit(range(len(tokens)))
    return logits


def feed_silently(model: NativeModel, session: NativeSession, tokens: Sequence[int], step: int) -> None:
    """Commit these tokens, `step` in a forward, without logits."""
    for start in range(0, len(tokens), step):
        chunk = tokens[start : start + step]
        model.forward([Segment(session, chunk, outputs=0)])
        session.commit(range(len(chunk)))


def one_by_one(model: NativeModel, session: NativeSession, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The same in one forward for each token."""
    return np.array([feed(model, session, [token])[0] for token in tokens])


def cached(model: NativeModel, session: NativeSession, length: int | None = None) -> Cached:
    """The session's KV cache: copies."""
    count = session.length if length is None else length
    return [model.native.cached(session.number, layer, count) for layer in range(model.layer_count)]


def same_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    """Equality of bits: 0.0 and -0.0 differ, equal NaN do not."""
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def same_cache(left: Cached, right: Cached) -> bool:
    """Equality of all keys and values that both hold."""
    for mine, yours in zip(left, right, strict=True):
        held = min(len(mine[0]), len(yours[0]))
        for one, other in zip(mine, yours, strict=True):
            if not np.array_equal(one[len(one) - held :], other[len(other) - held :]):
                return False
    return True


@dataclass(frozen=True)
class Beginning:
    """A text that others begin with, and a session that has read it token by token and keeps all of it."""

    tokens: list[int]
    session: NativeSession


@dataclass
class Reference:
    """What a sequence must look like: fresh sessions of another model object, fed one token at a time.

    beginnings: forks of these need not be fed what is there; as long as no block is missing a fork is as good as a
                fresh session, which the histories of models without windows establish
    """

    model: NativeModel
    beginnings: Sequence[Beginning] = ()
    _rows: dict[tuple[int, ...], NDArray[np.float32]] = field(default_factory=dict)
    _caches: dict[tuple[int, ...], Cached] = field(default_factory=dict)
    _drafts: dict[tuple[tuple[int, ...], ...], NDArray[np.float32]] = field(default_factory=dict)

    def row(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[vocab] logits after these tokens."""
        if tuple(tokens) not in self._rows:
            self._compute(tuple(tokens))
        return self._rows[tuple(tokens)]

    def cached(self, tokens: Sequence[int]) -> Cached:
        """The KV cache of these tokens."""
        if tuple(tokens) not in self._caches:
            self._compute(tuple(tokens))
        return self._caches[tuple(tokens)]

    def draft_row(self, tokens: Sequence[int], draft: Sequence[int], layers: Sequence[int]) -> NDArray[np.float32]:
        """[vocab] logits of the last of `draft`, which went through some layers only, after `tokens`, which did not."""
        key = (tuple(tokens), tuple(draft), tuple(layers))
        if key not in self._drafts:
            self._drafts[key] = self._draft(*key)
        return self._drafts[key]

    def _compute(self, tokens: tuple[int, ...]) -> None:
        session = self._begun(tokens[:-1])
        first = session.length + 1
        for count, row in enumerate(one_by_one(self.model, session, tokens[first - 1 :]), first):
            self._rows[tokens[:count]] = row
        self._caches[tokens] = cached(self.model, session)
        session.close()

    def _draft(self, tokens: tuple[int, ...], draft: tuple[int, ...], layers: tuple[int, ...]) -> NDArray[np.float32]:
        session = self._begun(tokens)
        one_by_one(self.model, session, tokens[session.length :])
        for token in draft:
            rows = self.model.forward([Segment(session, [token])], layers=layers)[0]
            logits = np.array(rows.logits(0))
            session.hold([0])
        session.close()
        return logits

    def _begun(self, tokens: Sequence[int]) -> NativeSession:
        """A session that holds as much of these tokens as any beginning does, and nothing else."""
        shared = [common_prefix(beginning.tokens, tokens) for beginning in self.beginnings]
        if not any(shared):
            return self.model.open_session()
        longest = max(shared)
        return self.beginnings[shared.index(longest)].session.fork(longest)
