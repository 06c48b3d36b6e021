"""Which of a model's layers should draft for it: a search for the subset with the largest predicted speed-up.

It begins with subsets that leave out the middle, and then changes the best one by a layer or two as long as that helps
(as SWIFT does, arXiv 2410.06916, which looks at acceptance alone). What is maximised is the speed-up of a draft of the
best length, from measured costs and measured acceptance (Leviathan, Kalman, Matias 2022, arXiv 2211.17192, theorem
3.8, with the measured price of verification).

The search is a pure function of what evaluations give, in an order that the number of layers decides. So a search that
was interrupted goes on by being repeated: what was evaluated is remembered and takes no time.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

import numpy as np

from slipstream.measure.layer_passages import TEMPERATURES, Agreement
from slipstream.models.layer_profiles import MOST_SUBSETS
from slipstream.models.layer_sets import Layers, parse_layers, spelled, without_the_middle

STARTS = (0.5, 2 / 3, 1 / 3, 0.8)
"""Shares of the layers that are kept at first."""
LONGEST = 16
"""Tokens of a draft."""
NESTED = 1 / 6
"""Of all layers, by how many at least two nested subsets differ."""
SHAKEN = 3
"""Layers that are exchanged where nothing better is near by."""
SHAKES = 8
"""So often in a row without success, and the search is over."""
WORTH = 0.8
"""Other subsets are kept beside the best one if this share of its speed-up is predicted for them."""


class Evaluator(Protocol):
    """What can be measured of a subset (`measure.layer_passages.Passages`)."""

    def agreement(self, layers: Layers, *, checked: bool = False) -> Agreement:
        """How often it proposes what the model says."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, where a forward of one row through all layers takes 1.

    draft:  [layers + 1] of a forward of one row, by how many layers it goes through
    verify: of a forward of so many rows through all layers
    """

    draft: Sequence[float]
    verify: Callable[[int], float]

    @classmethod
    def measured(cls, points: Mapping[int, float], count: int, verify: Callable[[int], float]) -> "Costs":
        """From a few numbers of layers. What lies between two is on a line, and more layers never cost less."""
        known = sorted({**points, count: 1.0}.items())
        rising = np.minimum(np.maximum.accumulate([cost for _, cost in known]), 1.0)
        draft = np.interp(np.arange(count + 1), [size for size, _ in known], rising)
        return cls(draft.tolist(), verify)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of a subset.

    cost:     of a draft step, in plain steps
    rates:    share of its proposals that were right, by temperature
    speedup:  predicted, over all temperatures
    lengths:  of drafts, with which it is reached, by temperature
    checked:  predicted from passages that the search has not seen; None where there are none
    """

    layers: Layers
    cost: float
    rates: Mapping[float, float]
    speedup: float
    lengths: Mapping[float, int]
    checked: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "layers": spelled(self.layers),
            "kept": len(self.layers),
            "cost": self.cost,
            "right": {str(temperature): rate for temperature, rate in self.rates.items()},
            "draft_length": {str(temperature): length for temperature, length in self.lengths.items()},
            "speedup": self.speedup,
            "checked_speedup": self.checked,
        }


@dataclass(slots=True)
class Memory:
    """What was measured so far, in the form in which it is kept between programs.

    rows:       seconds of the whole model's forwards, by rows
    costs:      of one row through so many of its first layers, in plain steps
    agreements: by subset, and apart from them those on the passages for checking
    """

    rows: dict[str, float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    agreements: dict[str, list[list[float]]] = field(default_factory=dict)
    checked: dict[str, list[list[float]]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Memory":
        """What `dataclasses.asdict` gave, through JSON. Raises KeyError, TypeError or ValueError for anything else."""

        def numbers(name: str) -> dict[str, float]:
            return {key: float(value) for key, value in given[name].items()}

        def lists(name: str) -> dict[str, list[list[float]]]:
            return {key: [[float(one) for one in row] for row in rows] for key, rows in given[name].items()}

        return cls(numbers("rows"), numbers("costs"), lists("agreements"), lists("checked"))


def predicted(rate: float, cost: float, verify: Callable[[int], float]) -> tuple[float, int]:
    """(speed-up, length) of drafts of the best length, at least one token.

    rate:   P(a draft token is right)
    cost:   of a draft step, in plain steps
    verify: of a forward of so many rows, in the same

    >>> predicted(1.0, 0.5, lambda rows: 1.0)[1]
    16
    """
    tokens, best = 1.0, (0.0, 1)
    for length in range(1, LONGEST + 1):
        tokens += rate**length
        best = max(best, (tokens / (length * cost + verify(length + 1)), length))
    return best


class Search:
    """A search, and all that it has found.

    count:  the model's layers
    keep:   layers that are in every subset
    save:   called after every evaluation
    stop:   asked before every evaluation; True ends the search
    """

    def __init__(
        self,
        evaluator: Evaluator,
        count: int,
        costs: Costs,
        memory: Memory,
        *,
        keep: Layers = (),
        save: Callable[[], None] = lambda: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.best: Finding | None = None
        self.complete = False
        """Whether nothing better is left to be looked for."""
        self._evaluator, self._count, self._keep = evaluator, count, frozenset(keep)
        self._costs, self._memory, self._save, self._stop = costs, memory, save, stop
        self._random = random.Random(count)

    @property
    def evaluated(self) -> int:
        """Subsets that were looked at, in earlier programs too."""
        return len(self._memory.agreements)

    def run(self) -> None:
        """Search until it is stopped, or nothing better was found for long."""
        try:
            self._run()
            self.complete = True
        except _Stopped:
            pass

    def _run(self) -> None:
        for share in STARTS:
            self._look_at(self._with_kept(without_the_middle(self._count, share)))
        misses = 0
        place = self._climbed(self._found())
        while misses < SHAKES:
            shaken = self._climbed(self._look_at(self._shaken(place.layers)))
            misses = 0 if shaken.speedup > place.speedup else misses + 1
            place = max(place, shaken, key=_speedup)

    def _found(self) -> Finding:
        assert self.best is not None, "something was looked at"
        return self.best

    def _climbed(self, place: Finding) -> Finding:
        """Go to the first neighbour that is better, until there is none."""
        improved = True
        while improved:
            improved = False
            for layers in self._neighbours(place.layers):
                found = self._look_at(layers)
                if found.speedup > place.speedup:
                    place, improved = found, True
                    break
        return place

    def _neighbours(self, layers: Layers) -> Iterator[Layers]:
        """Subsets with one layer less or more, and some with another in one's place, in random order."""
        inside = [layer for layer in layers if layer not in self._keep]
        outside = [layer for layer in range(self._count) if layer not in layers]
        smaller = [set(layers) - {layer} for layer in inside if len(layers) > 1]
        larger = [set(layers) | {layer} for layer in outside if len(outside) > 1]
        other = [set(layers) - {one} | {two} for one in inside for two in outside]
        swaps = self._random.sample(other, min(self._count, len(other)))
        found = [*smaller, *larger, *swaps]
        self._random.shuffle(found)
        for one in found:
            yield tuple(sorted(one))

    def _shaken(self, layers: Layers) -> Layers:
        """The same number of layers, some of them others."""
        inside = [layer for layer in layers if layer not in self._keep]
        outside = [layer for layer in range(self._count) if layer not in layers]
        many = min(SHAKEN, len(inside), len(outside))
        gone, come = self._random.sample(inside, many), self._random.sample(outside, many)
        return tuple(sorted(set(layers) - set(gone) | set(come)))

    def _with_kept(self, layers: Layers) -> Layers:
        """With those that must be there; one is left out in any case."""
        whole = sorted({*layers, *self._keep})
        if len(whole) == self._count:
            whole.remove(next(layer for layer in reversed(whole) if layer not in self._keep))
        return tuple(whole)

    def _look_at(self, layers: Layers) -> Finding:
        """Evaluate a subset unless that is done. Raises `_Stopped`."""
        name = spelled(layers)
        if name not in self._memory.agreements:
            if self._stop():
                raise _Stopped
            self._memory.agreements[name] = _listed(self._evaluator.agreement(layers))
            self._save()
        found = self.finding(layers)
        if self.best is None or found.speedup > self.best.speedup:
            self.best = found
        return found

    def finding(self, layers: Layers) -> Finding:
        """What is known of a subset that was looked at."""
        name, cost, verify = spelled(layers), self._costs.draft[len(layers)], self._costs.verify
        rates = _rates(self._memory.agreements[name])
        predictions = {temperature: predicted(rate, cost, verify) for temperature, rate in rates.items()}
        lengths = {temperature: length for temperature, (_, length) in predictions.items()}
        held_out = _rates(self._memory.checked.get(name, []))
        again = [predicted(rate, cost, verify)[0] for rate in held_out.values()]
        speedup = _mean([ratio for ratio, _ in predictions.values()])
        return Finding(layers, cost, rates, speedup, lengths, _mean(again) if again else None)

    def check(self, layers: Layers) -> Finding:
        """Hold a subset against the passages that the search has not seen."""
        name = spelled(layers)
        if name not in self._memory.checked:
            self._memory.checked[name] = _listed(self._evaluator.agreement(layers, checked=True))
            self._save()
        return self.finding(layers)

    def nested(self) -> list[Finding]:
        """The best subset, and of those that were looked at the best smaller one inside it and the best larger one
        around it, where they are worth having: for texts that are easier, or harder."""
        if self.best is None:
            return []
        best, apart = self.best, max(round(self._count * NESTED), 1)
        others = [self.finding(parse_layers(name, self._count, "")) for name in self._memory.agreements]
        inner = [one for one in others if set(one.layers) < set(best.layers)]
        outer = [one for one in others if set(one.layers) > set(best.layers)]
        groups = (
            [one for one in inner if len(best.layers) - len(one.layers) >= apart],
            [one for one in outer if len(one.layers) - len(best.layers) >= apart],
        )
        beside = [max(group, key=_speedup) for group in groups if group]
        worth = [one for one in beside if one.speedup > max(1.0, WORTH * best.speedup)]
        return [best, *sorted(worth, key=_speedup, reverse=True)][:MOST_SUBSETS]

    def look_for_nested(self) -> None:
        """Evaluate some subsets inside and around the best one, without one layer after the other."""
        try:
            for grow in (False, True):
                self._look_beside(grow=grow)
        except _Stopped:
            pass

    def _look_beside(self, *, grow: bool) -> None:
        """The best of a few ways to change the best subset by as many layers as nested ones differ."""
        layers, apart = set(self._found().layers), max(round(self._count * NESTED), 1)
        free = sorted(set(range(self._count)) - layers if grow else layers - self._keep)
        if len(free) <= apart:
            return
        for _ in range(4):
            some = set(self._random.sample(free, apart))
            self._look_at(tuple(sorted(layers | some if grow else layers - some)))


class _Stopped(Exception):
    """There is no time for another evaluation."""


def _speedup(found: Finding) -> float:
    return found.speedup


def _mean(ratios: Sequence[float]) -> float:
    """Geometric; 0 of none."""
    return math.exp(fmean(map(math.log, ratios))) if ratios and min(ratios) > 0 else 0.0


def _listed(agreement: Agreement) -> list[list[float]]:
    """[[temperature, right, asked], ...] for a file."""
    return [[one, agreement.right[one], agreement.asked[one]] for one in TEMPERATURES if agreement.asked.get(one)]


def _rates(listed: Sequence[Sequence[float]]) -> dict[float, float]:
    return {temperature: right / asked for temperature, right, asked in listed}
