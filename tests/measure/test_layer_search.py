"""The search for layers that draft, on an evaluator that is a formula."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.measure.layer_passages import Agreement
from slipstream.measure.layer_search import LONGEST, SHAKES, Costs, Memory, Search, predicted
from slipstream.models.layer_sets import Layers, spelled

COUNT = 12
GOOD = frozenset({0, 1, 2, 7, 10, 11})


class Formula:
    """Each of the good layers that is missing makes it wrong more often; the others do not matter."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def agreement(self, layers: Layers, *, checked: bool = False) -> Agreement:
        if not checked:
            assert list(layers) == sorted(set(layers))
            assert 0 < len(layers) < COUNT
            self.asked.append(spelled(layers))
        right = round(1000 * 0.95 * 0.6 ** len(GOOD - set(layers)))
        return Agreement({0.0: right, 1.0: right - 10}, {0.0: 1000, 1.0: 1000})


COSTS = Costs.measured({1: 1 / COUNT}, COUNT, lambda rows: 1 + 0.05 * (rows - 1))


def search_with(formula: Formula, memory: Memory, most: int = 10**9, **more: object) -> Search:
    found = Search(formula, COUNT, COSTS, memory, stop=lambda: len(formula.asked) >= most, **more)  # type: ignore[arg-type]
    found.run()
    return found


@given(st.floats(0.0, 1.0), st.floats(0.01, 1.0), st.floats(0.0, 0.5))
def test_the_prediction_is_the_best_length_s(rate: float, cost: float, slope: float) -> None:
    """The formula of Leviathan, Kalman and Matias, term by term."""

    def verify(rows: int) -> float:
        return 1 + slope * (rows - 1)

    ratios = []
    for length in range(1, LONGEST + 1):
        tokens = sum(rate**level for level in range(length + 1))
        ratios.append(tokens / (length * cost + verify(length + 1)))
    ratio, length = predicted(rate, cost, verify)
    assert ratio == pytest.approx(max(ratios))
    assert ratios[length - 1] == pytest.approx(ratio)


def test_it_finds_the_layers_that_matter() -> None:
    found = search_with(Formula(), Memory())
    assert found.best is not None
    assert set(found.best.layers) == GOOD
    assert found.complete
    assert found.best.speedup > 1.3


def test_it_is_speed_that_counts_not_acceptance() -> None:
    """Where a layer hardly helps, the subset without it is the better one."""
    formula, memory = Formula(), Memory()
    found = search_with(formula, memory)
    rates = {name: listed[0][1] for name, listed in memory.agreements.items()}
    assert found.best is not None
    assert len(found.best.layers) < max(len(name.split(",")) + name.count("-") for name in rates)
    assert rates[spelled(found.best.layers)] == max(rates.values()), "and nothing right is given away for it here"


@pytest.mark.parametrize("most", [0, 1, 7, 40])
def test_a_search_that_was_ended_goes_on_where_it_was(most: int) -> None:
    """Through JSON, as it is kept; nothing is evaluated twice, and the end is the same."""
    whole, kept = Formula(), Memory()
    search_with(whole, Memory())
    first = Formula()
    interrupted = search_with(first, kept, most)
    assert not interrupted.complete
    assert first.asked == whole.asked[:most]
    second, again = Formula(), Memory.from_dict(json.loads(json.dumps(asdict(kept))))
    finished = search_with(second, again)
    assert second.asked == whole.asked[most:]
    assert finished.best is not None
    assert set(finished.best.layers) == GOOD


def test_it_is_written_down_after_every_evaluation() -> None:
    formula, seen = Formula(), []
    memory = Memory()
    search_with(formula, memory, 9, save=lambda: seen.append(len(memory.agreements)))
    assert seen == list(range(1, 10))


def test_layers_that_are_to_be_kept_are_in_every_subset() -> None:
    formula = Formula()
    found = search_with(formula, Memory(), keep=(4, 5))
    assert found.best is not None
    assert set(found.best.layers) == GOOD | {4, 5}
    assert all({4, 5} <= set(numbers(name)) for name in formula.asked)


def test_all_layers_but_one_can_be_kept() -> None:
    formula = Formula()
    found = search_with(formula, Memory(), keep=tuple(range(11)))
    assert formula.asked == ["0-10"]
    assert found.complete


@pytest.mark.parametrize("count", [2, 3, 4])
def test_models_of_few_layers(count: int) -> None:
    class Any:
        def agreement(self, layers: Layers, *, checked: bool = False) -> Agreement:
            assert 0 < len(layers) < count
            return Agreement({0.0: 5}, {0.0: 10})

    found = Search(Any(), count, Costs.measured({1: 0.4}, count, lambda rows: 1.0), Memory())
    found.run()
    found.look_for_nested()
    assert found.best is not None
    assert len(found.best.layers) == 1
    assert found.complete


def test_nested_subsets_are_nested_and_worth_having() -> None:
    found = search_with(Formula(), Memory())
    found.look_for_nested()
    best, *others = found.nested()
    assert best == found.best
    assert others
    for one in others:
        assert set(one.layers) < set(best.layers) or set(one.layers) > set(best.layers)
        assert abs(len(one.layers) - len(best.layers)) >= COUNT / 6
        assert best.speedup >= one.speedup > 0.8 * best.speedup
    assert len({len(one.layers) > len(best.layers) for one in others}) == len(others)


def test_nothing_was_looked_at() -> None:
    found = search_with(Formula(), Memory(), 0)
    assert found.best is None
    assert found.nested() == []


def test_costs_rise_with_layers_and_with_nothing_else() -> None:
    costs = Costs.measured({1: 0.2, 4: 0.5, 8: 0.4}, 12, lambda rows: 1.0).draft
    assert len(costs) == 13
    assert costs[1] == pytest.approx(0.2)
    assert costs[8] == pytest.approx(0.5)
    assert costs[10] == pytest.approx(0.75)
    assert costs[12] == 1.0
    assert bool(np.all(np.diff(costs) >= 0))


def test_held_out_passages_are_asked_once_and_reported() -> None:
    found = search_with(Formula(), Memory())
    assert found.best is not None
    assert found.best.checked is None
    checked = found.check(found.best.layers)
    assert checked.checked == pytest.approx(checked.speedup)
    assert checked.as_dict()["layers"] == "0-2,7,10-11"


def test_a_search_without_success_ends() -> None:
    class Hopeless:
        asked = 0

        def agreement(self, layers: Layers, *, checked: bool = False) -> Agreement:
            Hopeless.asked += 1
            return Agreement({0.0: 0}, {0.0: 10})

    found = Search(Hopeless(), COUNT, COSTS, Memory())
    found.run()
    assert found.complete
    assert Hopeless.asked < (SHAKES + 2) * COUNT * COUNT


def numbers(name: str) -> list[int]:
    return [
        layer
        for part in name.split(",")
        for first, _, last in [part.partition("-")]
        for layer in range(int(first), int(last or first) + 1)
    ]
