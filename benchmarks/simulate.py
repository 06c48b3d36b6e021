#!/usr/bin/env python3
"""The adaptive policy in simulated time, on recordings of real drafts: against plain decoding and every fixed length.

    scripts/bench simulate [--costs "wide, native"] [--recordings good fair]

For each kind of prompt: the best fixed configuration in hindsight, what `--speculation auto` reaches of it, and over
all kinds together, where no fixed configuration suits every kind. Then the largest slowdown with drafters that are
random, slow, or collapse half way. Costs were measured (benchmarks/recordings/costs.json), drafts recorded
(`scripts/bench record_rounds`); nothing is timed here, so the figures are the same on every machine.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.recordings import FOLDER, Costs, Recording, read, read_costs
from benchmarks.simulation import Simulation, collapsing_drafts, plain_seconds, random_drafts
from slipstream.core.protocols import Policy
from slipstream.policy import FixedLength

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
LINEUPS = (("suffix",), ("model",), ("suffix", "model"))
PASSES = 2
"""The policy plays everything once to learn, as it would have from earlier programs, and is scored the second time."""


@dataclass(frozen=True)
class Fixed:
    """A configuration that never changes."""

    drafters: tuple[str, ...]
    length: int
    siblings: int = 1

    def __str__(self) -> str:
        return f"{'+'.join(self.drafters)} {self.length}" + (f"x{self.siblings}" if self.siblings > 1 else "")


def fixed_configurations(*, trees: bool) -> list[Fixed]:
    """Every line-up with every length; trees of two siblings a level where the target takes them."""
    shapes = [(length, 1) for length in LENGTHS] + [(length, 2) for length in LENGTHS[:6] if trees]
    return [Fixed(drafters, *shape) for drafters in LINEUPS for shape in shapes]


def by_kind(recordings: Iterable[Recording]) -> dict[str, list[Recording]]:
    """Recordings of each kind, in order."""
    kinds: dict[str, list[Recording]] = {}
    for recording in recordings:
        kinds.setdefault(recording.kind, []).append(recording)
    return kinds


def seconds_by_kind(
    simulation: Simulation, recordings: Sequence[Recording], policy: Callable[[], Policy], passes: int = 1
) -> dict[str, float]:
    """Simulated seconds of each kind in the last of some passes over all recordings, with one policy throughout."""
    one = policy()
    for _ in range(passes):
        seconds: dict[str, float] = {}
        for recording in recordings:
            seconds[recording.kind] = seconds.get(recording.kind, 0.0) + simulation.play(recording, one)
    return seconds


@dataclass(frozen=True)
class Comparison:
    """Speed-ups over plain decoding by kind; "all" is everything together."""

    auto: dict[str, float]
    fixed: dict[Fixed, dict[str, float]]

    def best(self, kind: str) -> tuple[Fixed, float]:
        """The best fixed configuration in hindsight."""
        best = max(self.fixed, key=lambda one: self.fixed[one][kind])
        return best, self.fixed[best][kind]

    @property
    def kinds(self) -> list[str]:
        return list(self.auto)


def compare(costs: Costs, recordings: Sequence[Recording], *, trees: bool) -> Comparison:
    """`auto` with both drafters against every fixed configuration."""
    plain = {kind: plain_seconds(costs, some) for kind, some in by_kind(recordings).items()}
    plain["all"] = sum(plain.values())

    def gains(seconds: dict[str, float]) -> dict[str, float]:
        seconds = {**seconds, "all": sum(seconds.values())}
        return {kind: plain[kind] / value for kind, value in seconds.items()}

    fixed = {}
    for one in fixed_configurations(trees=trees):
        simulation = Simulation(costs, one.drafters, trees=trees)
        policy = FixedLength(one.length, one.siblings)
        fixed[one] = gains(seconds_by_kind(simulation, recordings, lambda policy=policy: policy))  # type: ignore[misc]
    simulation = Simulation(costs, ("suffix", "model"), trees=trees)
    return Comparison(gains(seconds_by_kind(simulation, recordings, simulation.auto, PASSES)), fixed)


DISTURBANCES: dict[str, Callable[[Costs, bool], Simulation]] = {
    "as recorded": lambda costs, trees: Simulation(costs, ("suffix", "model"), trees=trees),
    "random": lambda costs, trees: Simulation(costs, trees=trees, spoil=random_drafts),
    "slow": lambda costs, trees: Simulation(costs, trees=trees, slowness=30),
    "collapsing": lambda costs, trees: Simulation(costs, trees=trees, spoil=collapsing_drafts),
}


def slowdowns(costs: Costs, recordings: Sequence[Recording], *, trees: bool) -> dict[str, dict[str, float]]:
    """Time over plain decoding's, by disturbance and kind: the median of its answers, as they come, from the first."""
    plain = [plain_seconds(costs, [recording]) for recording in recordings]
    found: dict[str, dict[str, float]] = {}
    for name, make in DISTURBANCES.items():
        simulation = make(costs, trees)
        policy = simulation.auto()
        ratios: dict[str, list[float]] = {}
        for recording, seconds in zip(recordings, plain, strict=True):
            ratios.setdefault(recording.kind, []).append(simulation.play(recording, policy) / seconds)
        found[name] = {kind: median(values) for kind, values in ratios.items()}
    return found


def shapes(costs: Costs, recordings: Sequence[Recording]) -> dict[float, dict[str, tuple[str, float]]]:
    """By temperature: the best chain and the best tree of the draft model alone, and their speed-ups."""
    found: dict[float, dict[str, tuple[str, float]]] = {}
    for temperature in sorted({recording.temperature for recording in recordings}):
        some = [recording for recording in recordings if recording.temperature == temperature]
        plain, best = plain_seconds(costs, some), found.setdefault(temperature, {})
        for siblings in (1, 2, 3):
            name = "chain" if siblings == 1 else "tree"
            for length in LENGTHS:
                simulation, policy = Simulation(costs, ("model",)), FixedLength(length, siblings)
                gain = plain / sum(simulation.play(recording, policy) for recording in some)
                if gain > best.get(name, ("", 0.0))[1]:
                    best[name] = f"{length}x{siblings}", gain
        for name, trees in (("auto, chains", False), ("auto, trees", True)):
            simulation = Simulation(costs, ("model",), trees=trees)
            seconds = sum(seconds_by_kind(simulation, some, simulation.auto, PASSES).values())
            best[name] = "", plain / seconds
    return found


FLAT = Costs("flat", {1: 0.0286, 32: 0.0286}, {1: 0.0033, 32: 0.0033})
"""The ideal: any number of rows for the price of one."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", nargs="+", help="names in costs.json; all by default")
    parser.add_argument("--recordings", nargs="+", default=["good", "fair"])
    arguments = parser.parse_args()
    for costs in read_costs():
        if arguments.costs and costs.name not in arguments.costs:
            continue
        trees = costs.name.endswith("native")
        for name in arguments.recordings:
            recordings = list(read(FOLDER / f"{name}.jsonl.gz"))
            print(f"\n{costs.name}, {name} drafter: speed-up over plain decoding")
            comparison = compare(costs, recordings, trees=trees)
            for kind in comparison.kinds:
                best, value = comparison.best(kind)
                auto = comparison.auto[kind]
                print(f"  {kind:13} auto {auto:.2f}, best fixed {value:.2f} ({best}), {auto / value:.0%} of it")
            for disturbance, kinds in slowdowns(costs, recordings, trees=trees).items():
                kind = max(kinds, key=kinds.__getitem__)
                print(f"  {disturbance}: at most {kinds[kind]:.3f} of plain decoding's time ({kind})")
            if trees:
                _print_shapes(costs, recordings)
    for name in arguments.recordings:
        print(f"\nif any number of rows cost the same, {name} drafter")
        _print_shapes(FLAT, list(read(FOLDER / f"{name}.jsonl.gz")))


def _print_shapes(costs: Costs, recordings: Sequence[Recording]) -> None:
    for temperature, best in shapes(costs, recordings).items():
        parts = [f"{name}{' ' + shape if shape else ''} {gain:.2f}" for name, (shape, gain) in best.items()]
        print(f"  temperature {temperature}: {', '.join(parts)}")


if __name__ == "__main__":
    main()
