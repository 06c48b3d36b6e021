"""Heads that draft on tiny native models: the same ids with and without them, and what of a text they keep."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream import Completion, Engine, ModelOptions
from slipstream.core.protocols import Continuation, Requirements
from slipstream.draft import BaseDrafter, HeadDrafter, SuffixDrafter
from slipstream.errors import UnsupportedModelError
from slipstream.policy import FixedLength
from slipstream.runtime.native.head import NativeHead
from tests.fakes import FakeModel
from tests.tiny_heads import SMALL_HEAD, bigram_target, knowing_head, tiny_head

END = 268
LONG = "thin air on the ring, " * 24
PROMPTS = ["the sand and the inner ring", "and then in another and another and another", LONG, LONG[:200] + "and back"]
SETTINGS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.95, "seed": 5}]
ON_AND_ON = [{**setting, "logit_bias": {END: -50.0}} for setting in SETTINGS]
"""Texts that do not end by themselves."""
OPTIONS = ModelOptions(context_length=1024, max_sequences=3, threads=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bigram_target(tmp_path_factory.mktemp("heads") / "target.gguf", noise=0.1)


@pytest.fixture(scope="module", params=["knows", "knows some", "random"])
def head(request: pytest.FixtureRequest, target: Path) -> Path:
    path = target.with_name(f"{request.param}.gguf")
    if request.param == "random":
        return tiny_head(path, target, replace(SMALL_HEAD, norm_before_residual=True), storage="Q8_0")
    return knowing_head(path, target, drafted=None if request.param == "knows" else 150)


@pytest.fixture(scope="module")
def plain(target: Path) -> Iterator[Engine]:
    with Engine.load(target, draft=None, options=OPTIONS) as engine:
        yield engine


@pytest.fixture
def engine(target: Path, head: Path) -> Iterator[Engine]:
    with Engine.load(target, draft=head, speculation="on", options=OPTIONS) as engine:
        yield engine


def drafter_of(engine: Engine) -> HeadDrafter:
    (drafter,) = engine.drafters
    assert isinstance(drafter, HeadDrafter)
    return drafter


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows with a target's hidden states in each forward of any head."""
    rows: list[int] = []
    go_on = NativeHead.go_on

    def recorded(self: NativeHead, batch: list[Continuation], *more: Any) -> Any:
        rows.append(sum(len(one.tokens) for one in batch if not one.own))
        return go_on(self, batch, *more)

    monkeypatch.setattr(NativeHead, "go_on", recorded)
    return rows


def accepted(completions: list[Completion]) -> int:
    return sum(one.timings.draft_n_accepted for one in completions)


@pytest.mark.parametrize("siblings", [1, 3])
def test_the_ids_are_those_of_plain_decoding(engine: Engine, plain: Engine, head: Path, siblings: int) -> None:
    engine.policy = FixedLength(5, siblings)
    found = []
    for prompt in PROMPTS:
        for setting in ON_AND_ON:
            found.append(engine.generate(prompt, max_tokens=60, **setting))
            assert found[-1].tokens == plain.generate(prompt, max_tokens=60, **setting).tokens
    assert accepted(found) >= {"knows": 300, "knows some": 60, "random": 0}[head.stem]


def test_several_texts_at_once(engine: Engine, plain: Engine, head: Path) -> None:
    for setting in ON_AND_ON:
        together = engine.generate_many(PROMPTS[:3], max_tokens=40, **setting)
        alone = [
            plain.generate(prompt, max_tokens=40, **{"seed": together[0].seed, **setting}) for prompt in PROMPTS[:3]
        ]
        assert [one.tokens for one in together] == [one.tokens for one in alone]
        assert accepted(together) > {"knows": 60, "knows some": 10, "random": -1}[head.stem]


def test_speculation_auto_and_other_drafters_beside_it(target: Path, head: Path, plain: Engine) -> None:
    with Engine.load(target, draft=f"suffix+{head}", options=OPTIONS) as engine:
        for setting in SETTINGS:
            for prompt in PROMPTS:
                expected = plain.generate(prompt, max_tokens=40, **setting).tokens
                assert engine.generate(prompt, max_tokens=40, **setting).tokens == expected
        assert engine.drafter_name == "suffix+head"
        assert engine.memory()["drafter"] >= drafter_of_type(engine).memory() > 0


def drafter_of_type(engine: Engine) -> HeadDrafter:
    return next(one for one in engine.drafters if isinstance(one, HeadDrafter))


def drafts(engine: Engine, prompt: str | list[int]) -> tuple[list[int], int, int]:
    """Ids, and how many were drafted and right: two engines whose heads know the same have the same."""
    found = engine.generate(prompt, max_tokens=24, temperature=0.8, seed=3)
    return found.tokens, found.timings.draft_n, found.timings.draft_n_accepted


def test_a_prefix_that_is_reused_carries_the_head_s_cache(
    target: Path, head: Path, engine: Engine, read: list[int]
) -> None:
    """The next turn of a chat, and a text that departs in the middle of another."""
    first = engine.generate(LONG, max_tokens=8, temperature=0, logprobs=False)
    ids = [*first.prompt_tokens, *first.tokens]
    turns = [[*ids, 5, 80, 3, 77], [*ids[:200], 7, 8, 9], ids[:150]]
    for turn in turns:
        read.clear()
        found = drafts(engine, turn)
        assert read[0] <= len(turn) - 140, "the rest was there"
        with Engine.load(target, draft=head, speculation="on", options=OPTIONS) as fresh:
            read.clear()
            assert drafts(fresh, turn) == found, "as if it had been read from the beginning"
            assert sum(read) >= len(turn) - 1


def test_a_text_that_a_head_has_not_seen_from_the_beginning(engine: Engine, plain: Engine, target: Path) -> None:
    """Its target's cache has the beginning; the head knows the text from there on."""
    drafter = drafter_of(engine)
    engine.drafters, read = [], engine.generate(LONG, max_tokens=8, temperature=0)
    engine.drafters = [drafter]
    text = [*read.prompt_tokens, *read.tokens, 5, 80]
    expected = plain.generate(text, max_tokens=40, temperature=0.8, seed=2)
    found = engine.generate(text, max_tokens=40, temperature=0.8, seed=2)
    assert found.tokens == expected.tokens
    assert found.timings.cache_n >= len(read.prompt_tokens), "it was reused"
    assert found.timings.draft_n > 0


def test_a_head_that_rests_knows_what_was_said_meanwhile(target: Path, head: Path, read: list[int]) -> None:
    """Hidden states wait; the first draft reads all of them."""
    with Engine.load(target, draft=head, speculation="on", options=OPTIONS) as engine:
        engine.policy = FixedLength(0)
        text = engine.generate(PROMPTS[0], max_tokens=30, temperature=0)
        assert read == [2], "it is tried when it is loaded"
        read.clear()
        waiting = drafter_of(engine).memory()
        engine.policy = FixedLength(4)
        longer = engine.generate([*text.prompt_tokens, *text.tokens], max_tokens=8, temperature=0)
        assert read[0] >= len(text.prompt_tokens) + len(text.tokens) - 2
        assert longer.timings.draft_n > 0
        assert drafter_of(engine).memory() < waiting


def test_prompts_longer_than_a_forward_are_read_in_parts(engine: Engine, plain: Engine, read: list[int]) -> None:
    prompt = LONG * 2
    found = engine.generate(prompt, max_tokens=10, temperature=0)
    assert found.tokens == plain.generate(prompt, max_tokens=10, temperature=0).tokens
    assert max(read) <= 256 < found.timings.prompt_n


def test_the_context_s_end(target: Path, head: Path) -> None:
    options = replace(OPTIONS, context_length=64)
    with (
        Engine.load(target, draft=None, options=options) as plain,
        Engine.load(target, draft=head, speculation="on", options=options) as fast,
    ):
        for setting in SETTINGS:
            expected = plain.generate(PROMPTS[0], **setting)
            assert fast.generate(PROMPTS[0], **setting).tokens == expected.tokens
            assert expected.finish_reason in ("length", "stop")


def test_constraints_and_penalties_hold(engine: Engine, plain: Engine) -> None:
    for more in (
        {"grammar": {"enum": ["the ring", "and the sand"]}},
        {"repetition_penalty": 1.3, "logit_bias": {80: 4.0}},
    ):
        for setting in SETTINGS:
            options: dict[str, Any] = {**setting, **more, "max_tokens": 24}
            assert engine.generate(PROMPTS[1], **options).tokens == plain.generate(PROMPTS[1], **options).tokens


def test_a_text_that_is_abandoned_leaves_nothing_behind(engine: Engine, plain: Engine) -> None:
    for number in range(4):
        with engine.stream(PROMPTS[number % 2], max_tokens=40, temperature=0) as stream:
            for _ in range(3):
                next(stream)
    expected = plain.generate(PROMPTS[0], max_tokens=20, temperature=0).tokens
    assert engine.generate(PROMPTS[0], max_tokens=20, temperature=0).tokens == expected


def test_a_drafter_without_hidden_states_asks_for_none(plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    forward = plain.target.forward
    monkeypatch.setattr(plain.target, "forward", lambda batch, **more: asked.append(more) or forward(batch, **more))
    plain.drafters, before = [SuffixDrafter()], plain.drafters
    plain.generate(PROMPTS[0], max_tokens=5)
    plain.drafters = before
    assert all(not more for more in asked)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 4)), min_size=2, max_size=5),
    slice_rows=st.sampled_from([0, 3, 40]),
    siblings=st.sampled_from([1, 3]),
)
def test_texts_that_come_and_go(
    engine: Engine, plain: Engine, arrivals: list[tuple[int, int, int]], slice_rows: int, siblings: int
) -> None:
    """Prompts come in by slices beside others' tokens, begin as earlier ones, and end at any time."""
    engine.policy, batch = FixedLength(3, siblings), engine.batch()
    engine.keep_sessions(3)
    waiting = [
        (pause, prompt, seed, engine.prepare(PROMPTS[prompt], seed=seed, max_tokens=12 + seed))
        for prompt, seed, pause in arrivals
    ]
    everyone, running = list(waiting), []
    while waiting or running:
        while waiting and batch.size < 3 and (waiting[0][0] == 0 or not running):
            running.append(waiting.pop(0)[3])
            batch.add(running[-1])
        waiting = [(max(pause - 1, 0), *others) for pause, *others in waiting]
        batch.play_round(slice_rows)
        for generation in [one for one in running if one.sequence.finished]:
            running.remove(generation)
            batch.remove(generation)
    for _, prompt, seed, generation in everyone:
        expected = plain.generate(PROMPTS[prompt], seed=seed, max_tokens=12 + seed)
        assert generation.completion.tokens == expected.tokens


class Curious(BaseDrafter):
    """Wants to see what it cannot."""

    name = "curious"
    requires = Requirements(hidden_layers=(1,))


def test_hidden_states_are_not_to_be_had_everywhere() -> None:
    with pytest.raises(UnsupportedModelError, match="curious needs hidden states, and fake has none on fake"):
        Engine(FakeModel(), Curious())
