import pytest

from slipstream.draft import BaseDrafter
from slipstream.measure.broken import MISTAKES, Mistake, planted
from slipstream.measure.certificate import Certificate
from slipstream.measure.ways import CONTROL, Drafting, Way, ways
from tests.fakes import FakeModel
from tests.measure.engines import CASES, GIVEN, ForgetfulModel, RoundingModel, fake_engine


def certificate(model: FakeModel, count: int = 6) -> Certificate:
    made = Certificate(fake_engine(model), CASES[:count], GIVEN)
    made.decode_plainly()
    return made


def all_ways(trees: bool = True) -> list[Way]:
    return ways(["suffix"], Drafting(), trees=trees)


def test_all_ways_are_identical_where_rows_are_exact() -> None:
    made = certificate(FakeModel(sharpness=2.0))
    for way in all_ways():
        made.compare(way)
    assert [one.way for one in made.comparisons] == [
        CONTROL, "suffix, chains of 4", "suffix, trees of 4", "suffix, auto", "prediction, chains of 4",
        "rehearsal, chains of 4", "rehearsal, trees of 4",
    ]  # fmt: skip
    assert [one.identical for one in made.comparisons] == [6] * 7
    predicted = made.comparisons[4]
    assert predicted.drafted > predicted.accepted > 50, "it is right for the most part, and not always"
    assert made.comparisons[-1].accepted > 50
    assert made.comparisons[0].tokens == sum(len(one.tokens) for one in made.plain) > 100
    assert made.rounding.decisions == [], "nothing to measure where nothing is rounded"


def test_several_drafters_are_compared_alone_and_together() -> None:
    names = [way.name for way in ways(["suffix", "x/a.gguf"], Drafting(3), trees=False)]
    assert names == [
        CONTROL, "suffix, chains of 3", "suffix, auto", "a.gguf, chains of 3", "a.gguf, auto",
        "suffix+a.gguf, chains of 3", "suffix+a.gguf, auto", "prediction, chains of 3",
        "rehearsal, chains of 3",
    ]  # fmt: skip


def test_a_drafter_that_drafts_nothing_proves_nothing() -> None:
    made = certificate(FakeModel(sharpness=2.0), 1)
    idle = made.compare(Way("idle", lambda engine, _: engine.sharing(draft=BaseDrafter(), speculation="on")))
    assert idle.proves_nothing
    assert not made.compare(all_ways()[0]).proves_nothing, "it was not to draft"


def test_near_ties_are_told_from_differences_where_rows_are_rounded() -> None:
    made = certificate(RoundingModel(size=0.05, sharpness=1.0))
    found = [parting for way in all_ways()[-2:] for parting in made.compare(way).partings]
    assert found, "this much rounding makes texts part"
    assert not any(parting.real for parting in found), found
    assert all(0 < parting.gap <= made.rounding.allowed for parting in found)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.name)
@pytest.mark.parametrize("exact", [True, False])
def test_a_broken_verifier_makes_a_real_difference(mistake: Mistake, exact: bool) -> None:
    made = certificate(FakeModel(sharpness=2.0) if exact else RoundingModel(size=0.02, sharpness=2.0))
    chains = all_ways()[-2]
    with planted(mistake.verify):
        broken = made.compare(chains)
    assert broken.real
    assert not made.compare(chains).real, "the mistake is gone with its block"


def test_a_runtime_that_does_not_roll_back_is_no_matter_of_rounding() -> None:
    made = certificate(ForgetfulModel(size=0.02, sharpness=2.0))
    assert max(made.rounding.decisions) < 0.1, "the fault must not pass for rounding"
    assert made.compare(all_ways()[-2]).real


def test_the_first_real_difference_can_be_enough() -> None:
    made = certificate(FakeModel(sharpness=2.0))
    with planted(MISTAKES[0].verify):
        assert made.compare(all_ways()[-2], until_real=True).texts < 6
