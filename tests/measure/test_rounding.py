import numpy as np
import pytest

from slipstream.measure.cases import answer
from slipstream.measure.rounding import IMPLAUSIBLE, LEAST, Rounding, measure_rounding
from slipstream.measure.watch import Watch
from tests.fakes import FakeModel
from tests.measure.engines import CASES, GIVEN, RoundingModel, fake_engine


def measured(model: FakeModel) -> Rounding:
    engine, rounding = fake_engine(model), Rounding()
    plain = answer(engine.sharing(speculation="off"), CASES[0], GIVEN, Watch())
    measure_rounding(rounding, engine, CASES[0], GIVEN, plain, Watch())
    return rounding


def test_rounding_is_found_where_there_is_some() -> None:
    rounding = measured(RoundingModel(size=0.02, sharpness=2.0))
    assert 0.015 < max(rounding.everywhere) <= 0.04
    assert 0.01 < max(rounding.decisions) <= 0.04
    assert rounding.allowed == pytest.approx(max(rounding.decisions) + LEAST)
    assert max(rounding.log_probabilities) > 0


def test_none_is_found_where_rows_are_bit_exact() -> None:
    rounding = measured(FakeModel(sharpness=2.0))
    assert len(rounding.decisions) > 50
    assert max(rounding.everywhere) == 0
    assert rounding.allowed == LEAST


def test_what_all_tokens_have_in_common_moves_no_decision() -> None:
    rounding, row = Rounding(), np.linspace(-5, 5, 200, dtype=np.float32)
    rounding.add(row, row + np.float32(3))
    assert rounding.decisions[0] == pytest.approx(0, abs=1e-5)
    assert rounding.everywhere[0] == pytest.approx(3)


def test_unlikely_tokens_decide_nothing() -> None:
    rounding, row = Rounding(), np.linspace(-5, 5, 200, dtype=np.float32)
    other = row.copy()
    other[0] += 1
    rounding.add(row, other)
    assert (rounding.decisions[0], rounding.everywhere[0]) == (0, 1)


def test_banned_tokens_are_no_difference() -> None:
    rounding, row = Rounding(), np.array([-np.inf, 1.0, 2.0], np.float32)
    rounding.add(row, row)
    assert rounding.everywhere == [0]


def test_no_amount_of_it_excuses_everything() -> None:
    assert Rounding(decisions=[50.0]).allowed == IMPLAUSIBLE
    assert Rounding().as_dict()["decisions"] == {}


def test_log_probabilities_move_less_than_is_allowed() -> None:
    rounding = measured(RoundingModel(size=0.3, sharpness=2.0))
    assert 0.1 < max(rounding.log_probabilities) < rounding.allowed_log_probability
