"""What rounds tell: acceptance by position, where a round's time goes, and what rows cost."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from slipstream.core.stats import PHASES
from slipstream.measure.ratios import is_looping
from slipstream.measure.records import Answer, Bench, Round

FEWEST = 5
"""Points of fewer observations than this are left out: one lucky token is no acceptance rate."""


def rounds_of(answers: Iterable[Answer], configuration: str) -> list[Round]:
    """All rounds of a configuration's answers that do not loop."""
    own = (answer for answer in answers if answer.configuration == configuration and not is_looping(answer))
    return [one for answer in own for one in answer.rounds]


def acceptance_by_position(rounds: Sequence[Round]) -> list[tuple[int, float]]:
    """(position, P(accepted | tested)) for the first, second, ... drafted token."""
    tested: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for one in rounds:
        tested.update(range(1, one.tested + 1))
        accepted.update(range(1, one.accepted + 1))
    return [(place, accepted[place] / count) for place, count in sorted(tested.items()) if count >= FEWEST]


@dataclass(frozen=True, slots=True)
class Split:
    """Mean milliseconds of a round by phase, and the tokens that it committed."""

    phases: dict[str, float]
    tokens: float

    @property
    def total(self) -> float:
        return sum(self.phases.values())


def time_split(rounds: Sequence[Round]) -> Split | None:
    """Where the time of a round goes; None without rounds."""
    if not rounds:
        return None
    count = len(rounds)
    phases = {phase: sum(getattr(one, phase) for one in rounds) / count * 1e3 for phase in PHASES}
    return Split(phases, sum(one.committed for one in rounds) / count)


def verify_times(bench: Bench) -> list[tuple[int, float]]:
    """(rows, median milliseconds of a verifying forward) over all configurations: the target is the same in all."""
    times: dict[int, list[float]] = {}
    for answer in bench.answers:
        for one in answer.rounds[1:]:  # the first reads the last token of the prompt, after a pause
            times.setdefault(one.drafted + 1, []).append(one.verify * 1e3)
    return [(rows, median(seen)) for rows, seen in sorted(times.items()) if len(seen) >= FEWEST]


def measured_costs(bench: Bench) -> list[tuple[int, float]]:
    """(rows, milliseconds) as they were measured when the models were loaded; empty where they were not."""
    costs: dict[str, float] = bench.header.get("costs", {})
    return sorted((int(rows), float(seconds) * 1e3) for rows, seconds in costs.items())
