from dataclasses import replace

import pytest

from slipstream.core.gap import LARGEST
from slipstream.engine import Completion
from slipstream.measure.cases import answer
from slipstream.measure.divergence import END, LOG_PROBABILITY, TOKEN, Parting, parting
from slipstream.measure.rounding import Rounding
from slipstream.measure.watch import Watch
from tests.measure.engines import CASES, GIVEN, fake_engine

CASE = CASES[0]
ROUNDED = Rounding(decisions=[0.3], log_probabilities=[0.02])


@pytest.fixture
def plain() -> Completion:
    return answer(fake_engine().sharing(speculation="off"), CASE, GIVEN, Watch())


def found(plain: Completion, other: Completion, rounding: Rounding | None = None) -> Parting | None:
    return parting(fake_engine(), CASE, GIVEN, plain, other, rounding, Watch())


def changed(plain: Completion, index: int, token: int) -> Completion:
    return replace(plain, tokens=[*plain.tokens[:index], token, *plain.tokens[index + 1 :]])


def test_the_same_is_no_parting(plain: Completion) -> None:
    assert found(plain, replace(plain)) is None
    assert found(plain, replace(plain), ROUNDED) is None


def test_a_wrong_token_is_no_near_tie(plain: Completion) -> None:
    """The measure that excuses near-ties must not excuse a mistake."""
    least = int(fake_engine().target.row([*CASE.tokens, *plain.tokens[:5]]).argmin())  # type: ignore[attr-defined]
    one = found(plain, changed(plain, 5, least), ROUNDED)
    assert one is not None
    assert (one.index, one.what, one.plain, one.other) == (5, TOKEN, plain.tokens[5], least)
    assert one.gap > 1
    assert one.real


def test_bits_are_all_that_counts_where_rows_are_exact(plain: Completion) -> None:
    assert plain.logprobs is not None
    other = replace(plain, logprobs=[*plain.logprobs[:3], plain.logprobs[3] + 1e-15, *plain.logprobs[4:]])
    assert other.logprobs != plain.logprobs
    one = found(plain, other)
    assert one is not None
    assert (one.index, one.what, one.real) == (3, LOG_PROBABILITY, True)
    assert found(plain, other, ROUNDED) is None


@pytest.mark.parametrize("off", [1.0, float("nan")])
def test_a_log_probability_beyond_rounding_is_another_row(plain: Completion, off: float) -> None:
    assert plain.logprobs is not None
    one = found(plain, replace(plain, logprobs=[plain.logprobs[0] + off, *plain.logprobs[1:]]), ROUNDED)
    assert one is not None
    assert (one.index, one.what, one.real) == (0, LOG_PROBABILITY, True)
    assert one.gap <= LARGEST


def test_an_answer_that_ends_early_is_no_near_tie(plain: Completion) -> None:
    for pair in ((plain, replace(plain, tokens=plain.tokens[:9])), (replace(plain, tokens=plain.tokens[:9]), plain)):
        one = found(*(replace(each, logprobs=[0.0] * len(each.tokens)) for each in pair), ROUNDED)
        assert one is not None
        assert (one.index, one.what, one.gap, one.real) == (9, END, LARGEST, True)
        assert None in (one.plain, one.other)
