"""What the adaptive policy is held to, on recorded drafts and measured costs. Time is simulated."""

import pytest

from benchmarks.recordings import FOLDER, Costs, Recording, read, read_costs
from benchmarks.simulate import compare, slowdowns
from benchmarks.simulation import Simulation, plain_seconds
from slipstream.policy import FixedLength

COSTS = {costs.name: costs for costs in read_costs()}
RECORDINGS = {name: list(read(FOLDER / f"{name}.jsonl.gz")) for name in ("good", "fair")}
CASES = [(costs, name) for costs in COSTS for name in RECORDINGS]


def case(costs: str, name: str) -> tuple[Costs, list[Recording], bool]:
    return COSTS[costs], RECORDINGS[name], costs.endswith("native")


@pytest.mark.parametrize(("costs", "name"), CASES)
def test_auto_comes_near_the_best_of_hindsight_and_beats_it_on_the_mix(costs: str, name: str) -> None:
    measured, recordings, trees = case(costs, name)
    comparison = compare(measured, recordings, trees=trees)
    for kind in comparison.kinds:
        _, best = comparison.best(kind)
        assert comparison.auto[kind] >= (1.0 if kind == "all" else 0.95) * best, kind


@pytest.mark.parametrize(("costs", "name"), CASES)
def test_auto_is_not_slower_than_plain_decoding(costs: str, name: str) -> None:
    """With a drafter as it was recorded, one that is never right, a slow one, and one that collapses half way."""
    measured, recordings, trees = case(costs, name)
    for disturbance, kinds in slowdowns(measured, recordings, trees=trees).items():
        assert max(kinds.values()) <= 1.05, (disturbance, kinds)


def test_the_recordings_are_what_the_issue_asks_for() -> None:
    for recordings in RECORDINGS.values():
        assert len({recording.kind for recording in recordings}) == 9
        assert {recording.temperature for recording in recordings} == {0.0, 1.0}
        assert all(len(recording.drafts) == len(recording.tokens) for recording in recordings)


def test_a_fixed_length_in_simulated_time_takes_what_its_rounds_cost() -> None:
    """A chain of two on a text that it always guesses right: three tokens for two steps and a forward of three rows."""
    recording = next(one for one in RECORDINGS["good"] if len(one.tokens) == 64)
    perfect = Recording(recording.kind, 0.0, recording.prompt[:1], recording.tokens, [])
    costs = Costs("flat", {1: 1.0, 64: 1.0}, {1: 0.1, 64: 0.1})
    assert plain_seconds(costs, [perfect]) == pytest.approx(64 * (1.0 + 60e-6))
    simulation = Simulation(costs, ())
    assert simulation.play(perfect, FixedLength(2)) == pytest.approx(64 * (1.0 + 60e-6)), "nobody drafts"
