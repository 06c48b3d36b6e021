import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.policy import CostTable
from slipstream.policy.costs import MOST_ROWS

POINTS = {1: 0.030, 4: 0.036, 8: 0.045, 16: 0.080}


def test_measured_rows_are_what_was_measured_and_others_lie_between() -> None:
    table = CostTable(POINTS)
    assert [table.seconds(rows) for rows in POINTS] == pytest.approx(list(POINTS.values()))
    assert table.seconds(6) == pytest.approx((0.036 + 0.045) / 2)


def test_a_cliff_stays_a_cliff() -> None:
    """Three rows can cost more than four."""
    table = CostTable({1: 0.088, 2: 0.109, 3: 0.124, 4: 0.089, 8: 0.166})
    assert table.seconds(3) > table.seconds(4)


def test_beyond_the_last_point_it_goes_on_as_before_it() -> None:
    table = CostTable(POINTS)
    assert table.seconds(24) == pytest.approx(0.080 + 8 * (0.080 - 0.045) / 8)
    assert table.seconds(MOST_ROWS + 10) > table.seconds(MOST_ROWS)


def test_many_rows_at_once_follow_what_was_measured_of_them() -> None:
    table = CostTable({1: 0.003, 32: 0.016, 128: 0.053})
    assert table.seconds(128) == pytest.approx(0.053, rel=0.05)
    assert table.seconds(1000) == pytest.approx(0.4, rel=0.3)


def test_one_point_is_enough() -> None:
    assert CostTable({1: 0.01}).seconds(8) == pytest.approx(0.08)


def test_a_slower_machine_makes_everything_slower() -> None:
    table = CostTable(POINTS)
    for _ in range(30):
        table.learn(4, 0.036 * 1.5)
        table.learn(1, 0.030 * 1.5)
    assert table.seconds(1) == pytest.approx(0.045, rel=0.05)
    assert table.seconds(8) == pytest.approx(0.0675, rel=0.15), "also what was not seen since"


def test_a_cell_that_was_wrong_is_corrected_beside_plain_rounds() -> None:
    table = CostTable(POINTS)
    for _ in range(60):
        table.learn(1, 0.030)
        table.learn(6, 0.080)
    assert table.seconds(1) == pytest.approx(0.030, rel=0.05)
    assert table.seconds(6) == pytest.approx(0.080, rel=0.1)
    assert 0.045 < table.seconds(7) < 0.080, "what lies beside it and was never seen follows"


def test_hiccups_change_little() -> None:
    """Five forwards in a hundred take five times as long; after thousands the table is what it was."""
    table, chance = CostTable(POINTS), random.Random(3)
    truth = CostTable(POINTS)
    for _ in range(3000):
        rows = chance.choice([1, 1, 2, 5])
        hiccup = 5 if chance.random() < 0.05 else 1
        table.learn(rows, truth.seconds(rows) * chance.lognormvariate(0, 0.05) * hiccup)
    for rows in (1, 2, 3, 5, 6, 8):
        assert table.seconds(rows) == pytest.approx(truth.seconds(rows), rel=0.25), rows


def test_two_hiccups_in_a_row_are_forgotten_where_the_rows_are_avoided_since() -> None:
    table, truth = CostTable(POINTS), CostTable(POINTS)
    for _ in range(20):
        table.learn(4, truth.seconds(4))
    for _ in range(2):
        table.learn(4, 30 * truth.seconds(4))
    assert table.seconds(4) > 3 * truth.seconds(4), "believed"
    kept = CostTable.from_dict(table.as_dict())
    assert kept.seconds(4) / kept.seconds(1) == pytest.approx(1.2, rel=0.1), "but not kept"
    for _ in range(300):
        table.learn(1, truth.seconds(1))
    assert table.seconds(4) == pytest.approx(truth.seconds(4), rel=0.1)
    table.learn(4, truth.seconds(4))
    assert table.seconds(4) == pytest.approx(truth.seconds(4), rel=0.1)


def test_rows_that_have_become_dear_are_tried_ever_more_seldom() -> None:
    table, truth, tries = CostTable(POINTS), CostTable(POINTS), []
    for forward in range(10_000):
        cheap = table.seconds(4) < 2 * truth.seconds(4)
        tries += [forward] * cheap
        table.learn(4, 5 * truth.seconds(4)) if cheap else table.learn(1, truth.seconds(1))
    assert 5 < len(tries) < 20
    gaps = [b - a for a, b in pairwise(tries) if b - a > 1]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 4 * gaps[0]


def test_rows_that_are_dear_and_used_stay_dear() -> None:
    table, truth = CostTable(POINTS), CostTable(POINTS)
    for _ in range(30):
        table.learn(4, 3 * truth.seconds(4))
    dear = table.seconds(4) / table.seconds(1)
    for _ in range(5000):
        table.learn(1, truth.seconds(1))
    assert table.seconds(4) / table.seconds(1) == pytest.approx(dear, rel=0.1)


def test_longer_contexts_have_cells_of_their_own() -> None:
    table = CostTable(POINTS)
    assert not table.at(100)
    assert table.at(3000), "another part of the table"
    assert table.seconds(4) == pytest.approx(0.036), "which begins as the nearest"
    for _ in range(40):
        table.learn(1, 0.060)
    assert table.seconds(1) == pytest.approx(0.060, rel=0.05)
    table.at(100)
    assert table.seconds(1) == pytest.approx(0.030, rel=0.05)


def test_a_table_goes_through_a_file() -> None:
    table = CostTable({**POINTS, 128: 0.5})
    again = CostTable.from_dict(json.loads(json.dumps(table.as_dict())))
    assert [again.seconds(rows) for rows in (1, 3, 8, 128)] == pytest.approx(
        [table.seconds(rows) for rows in (1, 3, 8, 128)]
    )


@pytest.mark.parametrize("values", [{}, {"2": 1.0}, {"1": 0.0}, {"1": float("nan")}, {"1": -1.0}, {"x": 1.0}])
def test_what_is_no_table_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        CostTable.from_dict(values)


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(1e-5, 10)), max_size=60), st.integers(0, 40_000))
def test_whatever_is_learned_times_stay_positive_numbers(seen: list[tuple[int, float]], context: int) -> None:
    table = CostTable(POINTS)
    for index, (rows, seconds) in enumerate(seen):
        table.at(context if index % 2 else 0)
        table.learn(rows, seconds)
    speed, cells = table.curve()
    for rows in range(1, MOST_ROWS + 1):
        assert 0 < table.seconds(rows) < 1e4
        assert table.seconds(rows) == speed * cells[rows]
