"""Generations that come and go in one batch: each text is the one that its generation has alone."""

from collections.abc import Sequence as Several
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.protocols import Segment
from slipstream.draft import ModelDrafter, SuffixDrafter
from slipstream.engine import Engine
from slipstream.engine.batch import MOST_READ_TOGETHER, Generation
from slipstream.errors import RuntimeUnavailableError
from slipstream.policy import AdaptivePolicy, CostTable, FixedLength
from tests.fakes import FakeModel, FakeRows

PROMPTS = ("a", "The prompt that goes on for longer than one forward takes", "The prompt", "abcabcabcabc", "zzz")


def engine(policy: str = "fixed", sessions: int = 3, **model: Any) -> Engine:
    target = FakeModel(seed=1, order=1, max_sessions=sessions, **model)
    drafters = [SuffixDrafter(), ModelDrafter(FakeModel(seed=1, order=1, max_sessions=sessions))]
    flat = CostTable({1: 1e-3, 32: 2e-3})
    adaptive = AdaptivePolicy(flat, [None, CostTable({1: 1e-5})], trees=True, most_rows=target.max_rows)
    return Engine(target, drafters, FixedLength(3) if policy == "fixed" else adaptive)


def begun(engine: Engine, prompt: str, **options: Any) -> Generation:
    return engine.prepare(prompt, **{"max_tokens": 30, "temperature": 0.8, **options})


arrivals = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2**20), st.integers(0, 6), st.sampled_from([None, 0, 2])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(arrivals, st.integers(0, 12), st.sampled_from(["fixed", "adaptive"]), st.integers(0, 5))
def test_texts_do_not_depend_on_the_company(
    arrivals: list[tuple[int, int, int, int | None]], slice_rows: int, policy: str, cancelled: int
) -> None:
    with engine(policy) as shared, engine() as alone:
        batch = shared.batch()
        waiting = [
            (pause, begun(shared, PROMPTS[prompt], seed=seed, num_draft_tokens=most))
            for prompt, seed, pause, most in arrivals
        ]
        everyone = [generation for _, generation in waiting]
        running: list[Generation] = []
        while waiting or running:
            while waiting and batch.size < 3 and (waiting[0][0] == 0 or not running):
                running.append(waiting.pop(0)[1])
                batch.add(running[-1])
            waiting = [(max(pause - 1, 0), generation) for pause, generation in waiting]
            batch.play_round(slice_rows)
            for generation in list(running):
                given_up = generation is everyone[-1] and len(generation.completion.tokens) >= cancelled > 0
                if generation.sequence.finished or given_up:
                    running.remove(generation)
                    batch.remove(generation)
                    batch.remove(generation)  # twice is harmless
        assert batch.size == 0
        for (prompt, seed, _, most), generation in zip(arrivals, everyone, strict=True):
            expected = alone.generate(PROMPTS[prompt], max_tokens=30, temperature=0.8, seed=seed)
            found = generation.completion
            assert found.tokens == expected.tokens[: len(found.tokens)]
            if generation.sequence.finished:
                assert (found.tokens, found.text) == (expected.tokens, expected.text)
                assert found.logprobs == expected.logprobs
            if most == 0:
                assert found.timings.draft_n == 0


@pytest.mark.parametrize("slice_rows", [0, 5])
def test_a_long_prompt_comes_in_beside_the_tokens_of_others(slice_rows: int) -> None:
    with engine() as one:
        batch, second = one.batch(), begun(one, PROMPTS[1], seed=2)
        first = begun(one, "a", seed=1, max_tokens=100, logit_bias={256: -100.0})
        batch.add(first)
        batch.play_round()
        batch.add(second)
        before = len(first.completion.tokens)
        rounds = 0
        while second.sequence.lacking:
            batch.play_round(slice_rows)
            rounds += 1
        grown = len(first.completion.tokens) > before
        assert grown == (slice_rows > 0)
        assert rounds == (-(-len(PROMPTS[1]) // 16) if not slice_rows else -(-(len(PROMPTS[1]) - 1) // slice_rows))
        assert second.completion.timings.prompt_n == len(PROMPTS[1])
        batch.close()
        assert batch.size == 0


LONG = PROMPTS[1]  # its 59 tokens take four forwards of 16 rows


@pytest.mark.parametrize(("exact", "forwards"), [(True, 4), (False, 5)])
def test_the_forward_that_reads_the_end_of_a_prompt_makes_the_first_token(exact: bool, forwards: int) -> None:
    with engine() as one:
        target = one.target
        assert isinstance(target, FakeModel)
        target.capabilities = replace(target.capabilities, bit_exact_rows=exact)
        before = target.forwards
        with one.stream(LONG, max_tokens=30, seed=1, temperature=0.8) as stream:
            next(stream)
            assert target.forwards - before == forwards
        again = target.forwards  # now the prompt is there, but for its last token
        with one.stream(LONG, max_tokens=30, seed=1, temperature=0.8) as stream:
            next(stream)
            assert target.forwards - again == 1


def test_the_first_token_does_not_wait_for_a_draft_model_that_has_much_to_read() -> None:
    target = FakeModel(seed=1, order=1, max_rows=32)
    drafting = FakeModel(seed=1, order=1)
    flat = CostTable({1: 1e-3, 32: 1.1e-3})
    policy = AdaptivePolicy(flat, [CostTable({1: 1e-6})], trees=True, most_rows=target.max_rows)
    with Engine(target, [ModelDrafter(drafting)], policy) as one, one.stream(
        LONG[:58] + LONG[:20], max_tokens=30, seed=1
    ) as stream:  # fmt: skip
        next(stream)
        assert drafting.forwards == 0
        for _ in stream:
            pass
        assert drafting.forwards > 0


def test_a_round_s_time_is_divided_between_the_prompt_and_the_token() -> None:
    with engine() as one:
        started = perf_counter()
        with one.stream("x" * 15, max_tokens=1, seed=1) as stream:
            list(stream)
        timings, [record] = stream.completion.timings, stream.completion.rounds
        assert timings.prompt_seconds > 0
        assert timings.predicted_seconds > 0
        assert timings.prompt_seconds + timings.predicted_seconds < perf_counter() - started
        assert sum(record.seconds.values()) == pytest.approx(timings.predicted_seconds, rel=0.5)
        assert record.plain is None
        assert stream.completion.estimated_speed_up is None


def test_there_are_never_more_rows_than_a_forward_takes() -> None:
    with engine(sessions=6) as one:
        batch = one.batch()
        for number in range(6):  # 6 * (1 + 3) rows, and 16 are taken
            batch.add(begun(one, "abcabcabc", seed=number))
        while not batch.finished:
            batch.play_round(4)
        batch.close()


def test_without_a_session_left_nothing_is_begun() -> None:
    with engine(sessions=1) as one:
        batch = one.batch()
        batch.add(begun(one, "a"))
        with pytest.raises(RuntimeUnavailableError):
            batch.add(begun(one, "b"))
        assert batch.size == 1
        batch.close()


class Counting(FakeModel):
    """Notes how many rows its forwards have."""

    def __init__(self, **options: Any) -> None:
        super().__init__(seed=1, order=1, max_rows=512, context_length=4096, **options)
        self.rows: list[int] = []

    def forward(self, batch: Several[Segment], **more: Any) -> list[FakeRows]:
        self.rows.append(sum([len(segment.tokens) for segment in batch]))
        return super().forward(batch, **more)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("texts", "slice_rows", "most"), [(1, 64, 512), (2, 64, MOST_READ_TOGETHER), (2, 0, 512)])
def test_prompts_are_read_in_shorter_forwards_where_somebody_waits(
    texts: int, slice_rows: int, most: int, exact: bool
) -> None:
    model = Counting()
    model.capabilities = replace(model.capabilities, bit_exact_rows=exact)
    with Engine(model, policy=FixedLength(0)) as one:
        batch = one.batch()
        everyone = [begun(one, f"{number}" * 1500, seed=1, max_tokens=3) for number in range(texts)]
        for generation in everyone:
            batch.add(generation)
        while not any(generation.completion.tokens for generation in everyone):
            batch.play_round(slice_rows)
        assert max(model.rows) == model.rows[0] == most
        batch.close()


def test_who_is_alone_again_is_read_by_the_longest_forwards() -> None:
    model = Counting()
    with Engine(model, policy=FixedLength(0)) as one:
        batch = one.batch()
        stays, leaves = [begun(one, letter * 1500, seed=1, max_tokens=3) for letter in "ab"]
        batch.add(stays)
        batch.add(leaves)
        batch.play_round(64)
        batch.remove(leaves)
        batch.play_round(64)
        assert model.rows == [MOST_READ_TOGETHER, 512]
        batch.close()
