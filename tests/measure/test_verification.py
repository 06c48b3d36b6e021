import json
from collections.abc import Callable

import pytest

from slipstream.draft import BaseDrafter
from slipstream.engine import GenerationOptions
from slipstream.measure.broken import MISTAKES, planted
from slipstream.measure.distribution import Table
from slipstream.measure.law_report import LawReport, try_laws
from slipstream.measure.verification import Scope, Verification
from slipstream.measure.verification_text import lines, verdict
from slipstream.measure.watch import Stopped, Watch
from tests.fakes import FakeModel
from tests.measure.engines import CASES, GIVEN, RoundingModel, fake_engine


class StopWhen(Watch):
    """Ends at the first pulse of a part with this name."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self.wanted, self.stop, self.parts = wanted, False, list[str]()

    def begin(self, what: str, steps: int) -> None:
        assert steps > 0
        self.parts.append(what)
        self.stop = self.stop or self.wanted(what)

    def pulse(self) -> None:
        if self.stop:
            raise Stopped


def verified(
    model: FakeModel | None = None, watch: Watch | None = None, given: GenerationOptions | None = None, **scope: bool
) -> Verification:
    made = Verification(fake_engine(model), CASES[:3], given or GIVEN, Scope(["suffix"], draws=400, **scope), watch)
    made.run()
    return made


def test_all_of_it_on_a_sound_engine() -> None:
    made = verified(distribution=True, self_test=True)
    assert (made.outcome, made.failed, made.partial) == ("identical", False, False)
    last = verdict(made)
    proving = [one for one in made.certificate.comparisons if one.drafted]
    assert 0 < len(proving) < len(made.certificate.comparisons)
    assert last.startswith(f"IDENTICAL: {3 * len(proving)} texts and ")
    assert "log-probabilities included." in last
    assert last.endswith("Tokens come as often as the target's distribution says. All 5 broken verifiers were caught.")
    text = "\n".join(lines(made))
    assert "prompt-0, token" in text
    assert "flattened, one row twice" in text
    assert "argmax" in text
    value = json.loads(json.dumps(made.as_dict(), allow_nan=False))
    assert value["outcome"] == "identical"
    assert value["target"] == {"name": "fake", "runtime": "fake", "bit_exact_rows": True}
    assert {one["way"] for one in value["comparisons"]} >= {"plain, again", "suffix, auto", "rehearsal, trees of 4"}
    assert len(value["distribution"]["tests"]) == 9
    assert [one["as_it_should"] for one in value["self_test"]["verifiers"]] == [True] * 6


def test_a_mistake_is_a_difference_with_its_place() -> None:
    with planted(MISTAKES[0].verify):
        made = verified()
    assert (made.outcome, made.failed) == ("different", True)
    assert verdict(made).startswith("DIFFERENT: ")
    assert any("  rehearsal, chains of 4: DIFFERENT: prompt-" in line for line in lines(made))


def test_near_ties_are_listed_beside_the_rounding() -> None:
    made = verified(RoundingModel(size=0.05, sharpness=1.0))
    assert (made.outcome, made.failed) == ("near-ties", False)
    text = "\n".join(lines(made))
    assert "Measured rounding, " in text
    assert "near-tie: prompt-" in text
    assert "logits (rounding: up to 0." in text
    assert "NO REAL DIFFERENCE: " in text.splitlines()[-1]
    assert made.as_dict()["rounding"]["rows"] > 0


def test_a_drafter_that_never_drafts_gets_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.measure.engines.SuffixDrafter", BaseDrafter)
    made = verified()
    assert verdict(made).endswith(
        "No certificate for suffix, chains of 4; suffix, trees of 4; suffix, auto: nothing was drafted."
    )


def test_a_target_that_cannot_roll_back_gets_none() -> None:
    made = verified(FakeModel(sharpness=2.0, rollback=False))
    assert (made.outcome, made.failed) == ("nothing drafted", False)
    assert (
        verdict(made) == "NO CERTIFICATE: fake cannot take tokens back, so it decodes plainly, with nothing to verify."
    )


@pytest.mark.parametrize(
    "part", ["plain decoding", "suffix, auto", "the law of what is drawn", "self-test, none: rehearsal, chains of 4"]
)
def test_what_was_verified_stays_when_it_is_stopped(part: str) -> None:
    watch = StopWhen(lambda what: what == part)
    made = verified(watch=watch, distribution=True, self_test=True)
    assert made.partial
    assert watch.parts[-1] == part
    nothing = "NO CERTIFICATE: no draft token had been accepted until then."
    assert verdict(made).startswith("Partial, because it was stopped: ")
    assert (nothing in verdict(made)) == (part in ("plain decoding", "suffix, auto"))
    assert len(made.certificate.comparisons) == (0 if part == "plain decoding" else 4 if part == "suffix, auto" else 7)
    json.dumps(made.as_dict(), allow_nan=False)


def test_a_law_that_is_not_the_target_s_fails() -> None:
    made = verified()
    model = FakeModel(sharpness=2.0)
    made.law = LawReport(2)
    try_laws(made.law, {"a row": Table((1, 2), model.row)}, made.params, verify=MISTAKES[0].verify, draws=200)
    assert (made.outcome, made.failed) == ("identical", True)
    assert verdict(made).endswith("The law of what is drawn is NOT the target's.")
    assert sum("FAILS" in line for line in lines(made)) == 2


def test_a_self_test_at_temperature_0_says_what_it_chose_instead() -> None:
    made = verified(given={"temperature": 0.0, "max_tokens": 40}, self_test=True, distribution=True)
    assert not made.failed
    text = "\n".join(lines(made))
    assert (
        "  at temperature 0.8, top-p 0.95 and min-p 0.05; the given sampling (temperature 0) leaves too little" in text
    )
    assert "Only one pair of tokens is possible" in text
    assert made.as_dict()["self_test"]["own_settings"]["temperature"] == 0.8
