from itertools import pairwise

from slipstream.policy.calibration import Form
from slipstream.policy.probing import BURST, LONGEST, LONGEST_BURST, SHORTEST, Probing


def tries(probing: Probing, rounds: int, *, right: bool = False, plain: float = 1.0) -> list[int]:
    """Rounds in which a drafter that never pays is tried; a try takes a thousandth of a plain round."""
    tried = []
    for number in range(rounds):
        if probing.due(0, 1e-3):
            tried.append(number)
            probing.used(0, 1e-3, paid=False)
            if right:
                probing.was_right(0)
        probing.tick(plain)
    return tried


def starts(tried: list[int]) -> list[int]:
    return [number for place, number in enumerate(tried) if place == 0 or number > tried[place - 1] + 1]


def test_tries_come_in_bursts_ever_more_seldom() -> None:
    tried = tries(Probing(), 3000)
    begun = starts(tried)
    assert begun[0] == SHORTEST
    assert len(tried) == BURST * len(begun)
    waits = [later - earlier for earlier, later in pairwise(begun)]
    assert waits == sorted(waits)
    assert max(waits) >= LONGEST


def test_a_new_text_is_a_reason_to_try_again_soon() -> None:
    probing = Probing()
    tries(probing, 2000)
    for _ in range(4):
        probing.new_text()
    assert len(tries(probing, 2 * SHORTEST)) >= BURST


def test_a_try_goes_on_while_it_does_well_up_to_a_point() -> None:
    tried = tries(Probing(), SHORTEST + 2 * LONGEST_BURST, right=True)
    assert BURST < len(tried) <= LONGEST_BURST + 2


def test_tries_take_a_small_share_of_the_time() -> None:
    probing = Probing()
    spent = 0.0
    for _ in range(4000):
        if probing.due(0, 0.5):
            probing.used(0, 0.5, paid=False)
            spent += 0.5
        probing.tick(0.1)
    assert 0 < spent <= 0.01 * 400 + BURST * 0.5


def test_what_pays_is_no_try() -> None:
    probing = Probing()
    for _ in range(100):
        probing.due(0, 1.0)
        probing.used(0, 0.0, paid=True)
        probing.tick(1.0)
    assert probing.credit > 0.9


def test_form_is_lost_after_surprising_misses_and_found_again() -> None:
    form = Form()
    for _ in range(20):
        form.record(0.9, True)
    assert form.factor > 0.99
    for _ in range(4):
        form.record(0.95, False)
    assert form.factor < 0.5
    for _ in range(3):
        form.record(0.95, True)
    assert form.factor > 0.8


def test_misses_that_were_to_be_expected_say_little() -> None:
    form = Form()
    for number in range(60):
        form.record(0.3, number % 3 == 0)
    assert form.factor > 0.9


def test_a_form_that_is_not_tested_comes_back() -> None:
    form = Form()
    for _ in range(10):
        form.record(0.95, False)
    lost = form.factor
    for _ in range(100):
        form.rest()
    assert lost < 0.2 < 0.8 < form.factor
