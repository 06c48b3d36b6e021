from dataclasses import replace
from typing import Any

import pytest

from slipstream.core.params import SamplingParams
from slipstream.core.verify import walk
from slipstream.engine import round as rounds
from slipstream.measure.broken import MISTAKES, planted
from slipstream.measure.selftest import GENUINE, Finding, SelfTest, telling
from tests.fakes import FakeModel
from tests.measure.engines import CASES, GIVEN, RoundingModel, fake_engine


@pytest.mark.parametrize("exact", [True, False])
def test_every_broken_verifier_is_caught_and_the_genuine_one_passes(exact: bool) -> None:
    model = FakeModel(sharpness=2.0) if exact else RoundingModel(size=0.02, sharpness=2.0)
    test = SelfTest(fake_engine(model), CASES, GIVEN, 400)
    test.run()
    assert test.complete
    assert [one.mistake.name for one in test.findings] == [
        "none", "argmax", "one too many", "stale KV", "reused noise", "other noise",
    ]  # fmt: skip
    assert [one.by_ids for one in test.findings] == [False, True, True, True, True, True]
    assert [one.by_law for one in test.findings] == [False, True, True, False, True, False]
    assert all(one.as_it_should for one in test.findings)


def test_a_mistake_that_is_none_is_reported_as_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SelfTest, "verifiers", (GENUINE, replace(MISTAKES[0], verify=walk)))
    test = SelfTest(fake_engine(), CASES[:2], GIVEN, 100)
    test.run()
    assert [one.as_it_should for one in test.findings] == [True, False]
    assert not test.findings[1].caught


def test_what_should_show_in_the_law_must() -> None:
    argmax, stale = MISTAKES[0], MISTAKES[2]
    assert not Finding(argmax, by_ids=True, by_law=False).as_it_should
    assert Finding(stale, by_ids=True, by_law=False).as_it_should
    assert not Finding(GENUINE, by_ids=False, by_law=True).as_it_should


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"temperature": 0.1}, {"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.9}]
)
def test_settings_that_hide_mistakes_are_replaced(options: dict[str, Any]) -> None:
    own = telling(SamplingParams(**({"temperature": 0.8} | options)), options)  # type: ignore[arg-type]
    assert own is not None
    assert telling(SamplingParams(**own), own) is None  # type: ignore[arg-type]


def test_settings_that_show_them_stay() -> None:
    assert telling(SamplingParams(temperature=1.0), {}) is None


def test_a_planted_verifier_is_taken_out_whatever_happens() -> None:
    def fail() -> None:
        with planted(MISTAKES[0].verify):
            assert rounds.walk is MISTAKES[0].verify  # type: ignore[attr-defined]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert rounds.walk is walk  # type: ignore[attr-defined]
