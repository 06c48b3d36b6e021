"""Figures of several texts that one request asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.stats import RoundRecord
from slipstream.engine.completion import Completion, Timings, figures_of


def timings(begun: float, read: float, decoded: float, tokens: int) -> Timings:
    return Timings(
        prompt_n=10,
        cache_n=3,
        prompt_seconds=read,
        predicted_n=tokens,
        predicted_seconds=decoded,
        draft_n=4,
        draft_n_accepted=2,
        begun_at=begun,
        ended_at=begun + read + decoded,
    )


def test_texts_at_the_same_time_take_the_time_once() -> None:
    whole = Timings.together([timings(0.0, 1.0, 4.0, 40), timings(0.5, 1.0, 4.0, 40)])
    assert (whole.prompt_n, whole.cache_n, whole.predicted_n) == (20, 6, 80)
    assert (whole.draft_n, whole.draft_n_accepted) == (8, 4)
    assert whole.prompt_seconds == pytest.approx(1.5)
    assert whole.predicted_seconds == pytest.approx(4.5)
    assert whole.as_dict()["predicted_per_second"] == pytest.approx(80 / 4.5)


spans = st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 9), st.integers(1, 9))


@given(st.lists(spans, min_size=1, max_size=6))
def test_each_moment_is_counted_once_and_pauses_not_at_all(several: list[tuple[int, int, int, int]]) -> None:
    whole = Timings.together([timings(*one) for one in several])
    read = {moment for begun, read, _, _ in several for moment in range(begun, begun + read)}
    decoded = {moment for begun, read, end, _ in several for moment in range(begun + read, begun + read + end)}
    assert whole.prompt_seconds == pytest.approx(len(read))
    assert whole.predicted_seconds == pytest.approx(len(decoded))


def test_a_text_without_a_token_took_no_time_to_decode() -> None:
    assert Timings.together([timings(0.0, 1.0, 5.0, 0), timings(9.0, 1.0, 2.0, 3)]).predicted_seconds == pytest.approx(
        2.0
    )


def record(drafted: int, accepted: int) -> RoundRecord:
    return RoundRecord(5, 1, drafted, min(accepted + 1, drafted), accepted, accepted + 1, "suffix", {"draft": 0.5}, 1.0)


def test_rounds_of_all_texts_are_counted() -> None:
    several = [Completion([1], tokens=[1, 2], drafter=name, timings=timings(0, 1, 1, 2)) for name in ("none", "suffix")]
    for one in several:
        one.statistics.add(record(4, 1))
        one.statistics.add(record(4, 3))
    whole = figures_of(several)
    assert whole.drafter == "suffix"
    assert whole.speculation()["rounds"] == 4
    assert whole.speculation()["mean_accepted_length"] == 3.0
    assert whole.estimated_speed_up == 2.0
    assert figures_of(several[:1]) is several[0]
