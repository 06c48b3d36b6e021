import pytest

from slipstream.measure.curves import (
    FEWEST,
    acceptance_by_position,
    measured_costs,
    rounds_of,
    time_split,
    verify_times,
)
from tests.measure.answers import answer, bench, draft_round, full_bench, plain_rounds


def test_acceptance_by_position_counts_tested_levels_alone() -> None:
    rounds = [draft_round(1, 0)] * 5 + [draft_round(2, 1)] * 5 + [draft_round(2, 2)] * 10
    assert acceptance_by_position(rounds) == [(1, 15 / 20), (2, 10 / 15)]


def test_positions_that_were_rarely_tested_are_left_out() -> None:
    rounds = [draft_round(3, 3)] * (FEWEST - 1) + [draft_round(2, 2)]
    assert [place for place, _ in acceptance_by_position(rounds)] == [1, 2]


def test_time_split_is_a_mean_in_milliseconds() -> None:
    split = time_split([draft_round(2, 1), draft_round(2, 2, verify=0.014)])
    assert split is not None
    assert split.phases == {phase: pytest.approx(value) for phase, value in
                            {"draft": 1, "verify": 13, "sample": 1, "other": 0.1}.items()}  # fmt: skip
    assert split.tokens == 2.5
    assert split.total == pytest.approx(15.1)
    assert time_split([]) is None


def test_rounds_of_looping_answers_are_left_out() -> None:
    answers = [answer(rounds=plain_rounds(2)), answer(rounds=plain_rounds(3), looping=0.5)]
    assert len(rounds_of(answers, "off")) == 2
    assert rounds_of(answers, "suffix") == []


def test_verify_times_by_rows_without_the_first_round_of_an_answer() -> None:
    rounds = [
        draft_round(1, 1, drafted=2, verify=0.099),
        *[draft_round(1, 1, drafted=2, verify=0.001 * one) for one in range(1, 8)],
    ]
    assert verify_times(bench([answer(rounds=rounds)])) == [(3, pytest.approx(4.0))]


def test_costs_of_the_header() -> None:
    assert measured_costs(full_bench()) == [(1, 4.0), (2, 4.4), (8, 6.0), (32, 21.0)]
    assert measured_costs(bench([], costs={})) == []
