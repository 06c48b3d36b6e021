import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.policy import ExcessBank
from slipstream.policy.bank import LARGEST_BALANCE


def test_a_slow_round_is_taken_from_it_and_a_fast_one_added() -> None:
    bank = ExcessBank(0.03, credit=0.5)
    bank.settle(actual=0.2, plain=0.1)
    assert bank.balance == pytest.approx(0.5 + 0.103 - 0.2)
    bank.settle(actual=0.1, plain=0.3)
    assert bank.balance == pytest.approx(0.5 + 0.103 - 0.2 + 0.309 - 0.1)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=50), st.floats(0, 0.5), st.floats(0, 0.2))
def test_its_balance_is_never_more_than_what_may_still_be_lost(
    rounds: list[tuple[float, float]], credit: float, slowdown: float
) -> None:
    """So whoever keeps it from falling below zero keeps the total within (1 + slowdown) * plain + credit."""
    bank = ExcessBank(slowdown, credit)
    actual = plain = 0.0
    for took, would_take in rounds:
        bank.settle(took, would_take)
        actual, plain = actual + took, plain + would_take
        assert bank.balance <= (1 + slowdown) * plain + credit - actual + 1e-9
        assert bank.balance <= LARGEST_BALANCE
