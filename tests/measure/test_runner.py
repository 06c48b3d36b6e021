from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from slipstream.core.params import SamplingParams
from slipstream.draft import SuffixDrafter
from slipstream.engine import Engine, GenerationOptions
from slipstream.errors import ContextLimitError, RuntimeUnavailableError, SlipstreamError
from slipstream.measure.contestants import EngineContestant
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.records import Answer, Failure
from slipstream.measure.runner import WARM_UP_TOKENS, in_turn, run_bench
from slipstream.policy import FixedLength
from tests.fakes import FakeModel

PROMPTS = [BenchPrompt(f"{kind}-{number}", kind, text=f"{kind} {number}") for kind in "ab" for number in range(3)]


class Contestant:
    """Notes what it is asked; `fails` says when with what."""

    def __init__(self, log: list[str], name: str, fails: dict[str, SlipstreamError] | None = None) -> None:
        self.log, self.name, self.fails = log, name, fails or {}
        self.options: list[GenerationOptions] = []

    def answer(self, prompt: BenchPrompt, options: GenerationOptions, should_stop: Callable[[], bool]) -> Answer | None:
        self.log.append(f"{self.name} {prompt.id}")
        self.options.append(options)
        if len(self.options) > 1 and prompt.id in self.fails:  # the warm-up may pass
            raise self.fails[prompt.id]
        return None if should_stop() else Answer(tokens=2, seconds=0.1)


def team(*names: str, **fails: dict[str, SlipstreamError]) -> tuple[list[str], dict[str, Contestant]]:
    log: list[str] = []
    return log, {name: Contestant(log, name, fails.get(name)) for name in names}


def test_all_answer_each_prompt_in_turn_as_often_as_asked() -> None:
    log, contestants = team("off", "x", "y")
    results = run_bench(contestants, PROMPTS, repeats=2)
    assert Counter((one.configuration, one.prompt, one.repeat) for one in results.answers) == Counter(
        (name, prompt.id, repeat) for name in contestants for prompt in PROMPTS for repeat in range(2)
    )
    played = log[3:]
    for start in range(0, len(played), 3):
        assert len({entry.split()[1] for entry in played[start : start + 3]}) == 1
    assert not results.stopped


def test_the_order_changes_is_recorded_and_depends_on_the_seed_alone() -> None:
    def orders(seed: int) -> list[str]:
        log, contestants = team("off", "x", "y")
        results = run_bench(contestants, PROMPTS, options={"seed": seed})
        for one in results.answers:
            assert log[3:].index(f"{one.configuration} {one.prompt}") % 3 == one.order
        return log[3:]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    assert len({entry.split()[0] for entry in orders(1)[::3]}) == 3


def test_kinds_take_turns() -> None:
    assert [prompt.id for prompt in in_turn(PROMPTS)] == ["a-0", "b-0", "a-1", "b-1", "a-2", "b-2"]


def test_everybody_warms_up_with_something_short_that_is_not_recorded() -> None:
    log, contestants = team("off", "x")
    results = run_bench(contestants, PROMPTS[:1], max_tokens=100)
    assert log[:2] == ["off a-0", "x a-0"]
    assert [options["max_tokens"] for options in contestants["x"].options] == [WARM_UP_TOKENS, 100]
    assert len(results.answers) == 2


def test_seeds_count_up_with_repeats_and_are_the_same_for_all() -> None:
    _, contestants = team("off", "x")
    results = run_bench(contestants, PROMPTS[:1], repeats=3, options={"seed": 5, "temperature": 0.5})
    for contestant in contestants.values():
        assert [options["seed"] for options in contestant.options[1:]] == [5, 6, 7]
        assert all(options["temperature"] == 0.5 for options in contestant.options)
    assert {(one.repeat, one.seed) for one in results.answers} == {(0, 5), (1, 6), (2, 7)}


def test_a_contestant_that_breaks_is_left_out_and_the_others_go_on() -> None:
    broken = RuntimeUnavailableError("It is gone.")
    _, contestants = team("off", "x", x={"b-0": broken})
    results = run_bench(contestants, PROMPTS)
    assert results.failures == [Failure("It is gone.", "x")]
    assert [one.prompt for one in results.answers if one.configuration == "x"] == ["a-0"]
    assert sum(one.configuration == "off" for one in results.answers) == 6


def test_a_prompt_that_cannot_be_answered_is_left_out_alone_and_said_once() -> None:
    _, contestants = team("off", "x", x={"b-0": ContextLimitError("Too long.")})
    results = run_bench(contestants, PROMPTS, repeats=2)
    assert results.failures == [Failure("Too long.", "x", "b-0")]
    assert sum(one.configuration == "x" for one in results.answers) == 10


def test_stopping_keeps_what_is_done() -> None:
    _, contestants = team("off", "x")
    seen: list[object] = []
    results = run_bench(contestants, PROMPTS, on_record=seen.append, should_stop=lambda: len(seen) >= 5)
    assert results.stopped
    assert len(results.answers) == 5
    assert seen == results.answers


def test_progress_counts_to_the_end() -> None:
    _, contestants = team("off", "x")
    steps: list[tuple[int, int]] = []
    run_bench(contestants, PROMPTS[:2], repeats=2, progress=lambda done, total, what: steps.append((done, total)))
    shares = [done / total for done, total in steps]
    assert shares == sorted(shares)
    assert steps[:3] == [(0, 8), (0, 8), (1, 8)]
    assert shares[-1] == 1


def engines() -> tuple[Engine, Engine]:
    model = FakeModel(order=1, sharpness=6.0)
    defaults = SamplingParams(temperature=0.7)
    return Engine(model, defaults=defaults), Engine(model, SuffixDrafter(), FixedLength(4), defaults=defaults)


def test_engines_give_rounds_and_the_same_ids() -> None:
    plain, suffix = engines()
    results = run_bench({"off": plain, "suffix": suffix}, PROMPTS[:2], max_tokens=40, options={"seed": 3})
    by_name = {one.configuration: one for one in results.answers if one.prompt == "a-0"}
    assert by_name["off"].ids_hash == by_name["suffix"].ids_hash != ""
    for one in by_name.values():
        assert sum(each.committed for each in one.rounds) == one.tokens > 0
        assert sum(each.seconds for each in one.rounds) <= one.seconds
        assert one.drafted == sum(each.drafted for each in one.rounds)
    assert by_name["off"].drafted == 0
    assert (by_name["suffix"].drafted or 0) > 0


def test_an_engine_that_is_stopped_in_the_middle_of_an_answer_gives_none() -> None:
    plain, _ = engines()
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    assert EngineContestant(plain).answer(PROMPTS[0], {"max_tokens": 40}, should_stop) is None
    assert len(asked) == 4


def test_a_prompt_longer_than_the_context_is_one_failure() -> None:
    plain, _ = engines()
    results = run_bench({"off": plain}, [replace(PROMPTS[0], text="x" * 999), PROMPTS[1]], max_tokens=4)
    [failure] = results.failures
    assert (failure.configuration, failure.prompt) == ("off", "a-0")
    assert "999 tokens" in failure.sentence
    assert [one.prompt for one in results.answers] == ["a-1"]


@pytest.mark.parametrize("seed", [2**64 - 1, None])
def test_any_seed_will_do(seed: int | None) -> None:
    plain, _ = engines()
    assert len(run_bench({"off": plain}, PROMPTS[:1], repeats=2, max_tokens=2, options={"seed": seed}).answers) == 2
