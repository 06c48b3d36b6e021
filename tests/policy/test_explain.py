"""What the policy says of itself, in the states it can be in."""

import random

from slipstream.draft import BaseDrafter
from slipstream.policy import AdaptivePolicy, CostTable
from tests.helpers import View
from tests.policy.test_adaptive import FLAT, Clock, Machine, always, lookup, model, never
from tests.policy.test_bound import Reader


def said(machine: Machine) -> str:
    return str(machine.policy.describe()["explanation"])


def played(machine: Machine, right: object, rounds: int = 150) -> Machine:
    for _ in range(rounds):
        machine.round(right)  # type: ignore[arg-type]
    return machine


def test_before_anything_was_generated() -> None:
    assert said(Machine(FLAT, model())) == "Nothing was generated yet."


def test_without_drafters() -> None:
    assert said(played(Machine(FLAT), never, 3)) == "Plain decoding: there is no drafter."


def test_a_good_drafter() -> None:
    text = said(played(Machine(FLAT, model()), always))
    assert text.startswith("Drafts of ")
    assert "times a plain step here and model is right 9" in text
    assert "times as fast as plain decoding so far" in text


def test_a_bad_drafter_and_what_it_would_have_to_be() -> None:
    text = said(played(Machine(FLAT, model()), never, 600))
    assert text.startswith("Plain decoding, ")
    assert "% of the time and would have to be " in text
    assert " s were lost so far; " in text


def test_a_drafter_that_could_not_pay() -> None:
    assert "model could not pay if it were always right (a step of it takes 167% of a plain step" in said(
        played(Machine(FLAT, model(0.05)), always)
    )


def test_a_lookup_that_finds_nothing() -> None:
    assert "free found nothing to propose." in said(played(Machine(FLAT, lookup(0)), never))


def test_an_empty_bank() -> None:
    machine = played(Machine(FLAT, model()), never, 3)
    machine.policy.bank.balance = -1
    machine.policy.ledger.speculated = 0
    assert "what may be lost is used up" in said(machine)


def test_a_prompt_too_long_to_read() -> None:
    clock = Clock()
    policy = AdaptivePolicy(CostTable(FLAT), [CostTable({1: 1e-3, 128: 0.2})], timer=clock)
    drafters: list[BaseDrafter] = [Reader(clock, CostTable({1: 1e-3}), "model", 0, random.Random(1))]
    for _ in range(3):
        assert list(policy.draft([View([0] * 4000)], drafters)) == []
        policy.choose()
        policy.observe([[1]], {"draft": 0.0, "verify": 0.03, "sample": 0.0, "other": 0.0})
    text = str(policy.describe()["explanation"])
    assert "model would have to read the prompt first, which takes 8." in text
    assert "0.5 s may be lost" in text
