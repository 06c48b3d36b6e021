"""L3 on every architecture of the native runtime: the same ids with speculation on and off, on tiny random models.

And on Gemma 3 270M, which drafts for itself. Contexts are so long, and forwards so short, that windows leave blocks of
the KV cache behind.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from slipstream import Engine
from slipstream.core.protocols import Drafter
from slipstream.core.tree import Draft
from slipstream.draft import ModelDrafter, SuffixDrafter
from slipstream.policy import FixedLength
from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.architectures import ARCHITECTURES
from slipstream.runtime.native.session import NativeSession
from tests.tiny_models import Metadata, Shape, tiny_decoder

SHAPE = Shape(heads=2, key_value_heads=1, feed_forward=96, layers=3)
LONG = "thin air on the ring, " * 24
PROMPTS = [
    "the sand and the inner ring",
    "and then in another and another and another",
    LONG,
    LONG[:200] + "and back to where it began",
]
SETTINGS = [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95, "seed": 5}]


def check(engine: Engine, drafters: list[Drafter], prompts: list[str], count: int) -> int:
    """Compare the ids of all prompts and settings; the draft tokens that were accepted."""
    accepted = 0
    for prompt in prompts:
        for setting in SETTINGS:
            engine.drafters = []
            plain = engine.generate(prompt, max_tokens=count, **setting)  # type: ignore[arg-type]
            engine.drafters = drafters
            fast = engine.generate(prompt, max_tokens=count, **setting)  # type: ignore[arg-type]
            assert fast.tokens == plain.tokens, (prompt, setting)
            accepted += fast.timings.draft_n_accepted
    return accepted


Denied = list[tuple[NativeSession, int]]


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> Denied:
    """Sessions and lengths that they were asked to go back to and could not, because blocks were gone."""
    found: Denied = []
    reachable = NativeSession.reachable

    def recorded(self: NativeSession, length: int) -> int:
        kept = reachable(self, length)
        if kept < length:
            found.append((self, length))
        return kept

    monkeypatch.setattr(NativeSession, "reachable", recorded)
    return found


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Callable[..., NativeModel]]:
    """Loads a tiny model of an architecture."""
    loaded = []

    def load(
        architecture: str, noise: float, *, rows: int = 16, sessions: int = 1, extra: Metadata | None = None
    ) -> NativeModel:
        path = tmp_path / f"{noise}.gguf"
        tiny_decoder(path, architecture, shape=SHAPE, storage="Q8_0", noise=noise, extra=extra)
        loaded.append(load_native(path, context_length=512, max_sequences=sessions, max_rows=rows, threads=1))
        return loaded[-1]

    yield load
    for model in loaded:
        model.close()


@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_ids_with_speculation_on_and_off(
    architecture: str, sessions: int, tiny: Callable[..., NativeModel], denied: Denied
) -> None:
    """Drafters are lookup, and a copy that is a little wrong."""
    target, draft = (tiny(architecture, noise, sessions=sessions) for noise in (0.0, 0.1))
    engine = Engine(target, policy=FixedLength(4))
    drafters: list[Drafter] = [SuffixDrafter(), ModelDrafter(draft)]
    engine.drafters = drafters
    engine.keep_sessions(sessions)
    assert check(engine, drafters, PROMPTS, 48) > 0
    # The last prompt begins as the one before it, whose beginning a window has left behind.
    models = {id(model) for model in (target, draft) if any(session.belongs_to(model) for session, _ in denied)}
    assert models == ({id(target), id(draft)} if architecture == "gemma3" else set())


class Endless(FixedLength):
    """Drafts that are longer than any policy makes them; `drafted` has the tokens of all."""

    def __init__(self, num_draft_tokens: int) -> None:
        super().__init__(0)
        self.num_draft_tokens = num_draft_tokens
        self.drafted: list[list[int]] = []

    def choose(self) -> Sequence[Draft]:
        drafts = super().choose()
        self.drafted += [list(draft.tokens) for draft in drafts if draft.tokens]
        return drafts


def test_a_draft_that_cannot_be_taken_back_is_read_again(tiny: Callable[..., NativeModel], denied: Denied) -> None:
    """With this window and few rows a session has three blocks and can go back by 70 to 133 tokens."""
    window: Metadata = {"gemma3.attention.sliding_window": 60}
    target, patient, draft = (
        tiny("gemma3", noise, rows=rows, extra=window) for noise, rows in [(0.0, 16), (0.5, 512), (0.5, 4)]
    )
    engine, drafted = Engine(target), []
    for model in (patient, draft):
        engine.policy = policy = Endless(90)
        check(engine, [ModelDrafter(model)], [LONG], 100)
        drafted.append(policy.drafted)
    assert not any(session.belongs_to(patient) for session, _ in denied)
    read = len(target.vocabulary.tokenize(LONG, add_bos=True, parse_special=False))
    assert any(length >= read for session, length in denied if session.belongs_to(draft)), "in a text, not at its start"
    assert drafted[1] == drafted[0], "as if nothing were gone"


@pytest.mark.model
def test_gemma3_drafts_for_itself(gemma3_270m: Path, denied: Denied) -> None:
    target, draft = (load_native(gemma3_270m, context_length=2048, max_rows=256) for _ in range(2))
    engine = Engine(target, policy=FixedLength(4))
    drafters: list[Drafter] = [ModelDrafter(draft)]
    page = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
    tokens = target.vocabulary.tokenize(page[:5000], add_bos=True, parse_special=False)
    assert 1200 < len(tokens) < 2000
    assert check(engine, drafters, [page[:5000], page[:600]], 16) > 15
    assert denied, "what the second prompt begins with is gone"
    for model in (target, draft):
        model.close()
