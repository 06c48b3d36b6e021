"""What rounds did, counted. A round returns a record; others read it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

PHASES = ("draft", "verify", "sample", "other")


class Clock:
    """Time spent by phase, in seconds: every moment of a round belongs to exactly one phase.

    timer: a simulation has one of its own
    """

    __slots__ = ("_last", "_timer", "seconds")

    def __init__(self, timer: Callable[[], float] = perf_counter) -> None:
        self._timer = timer
        self._last = timer()
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def lap(self, phase: str) -> None:
        """The time since the last lap went to `phase`."""
        now = self._timer()
        self.seconds[phase] += now - self._last
        self._last = now


@dataclass(slots=True)
class RoundRecord:
    """One round of one sequence.

    context:  tokens that were committed before it, prompt included
    steps:    draft steps that were taken, free ones left out
    drafted:  nodes that were verified; the forward had one row more
    tested:   levels of the draft that the target was asked about
    accepted: draft tokens that were right; `committed` includes the recovered or bonus token
    drafter:  who proposed, "" for an empty draft
    seconds:  by phase; a round that serves several sequences divides its time evenly among them
    plain:    seconds that plain decoding would have taken for the same tokens, None where nobody knows
    """

    context: int
    steps: int
    drafted: int
    tested: int
    accepted: int
    committed: int
    drafter: str
    seconds: dict[str, float]
    plain: float | None = None


@dataclass(slots=True)
class Statistics:
    """The rounds of one generation, and sums over them."""

    records: list[RoundRecord] = field(default_factory=list)
    rounds: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    committed: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    tested_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)

    def add(self, record: RoundRecord) -> None:
        self.records.append(record)
        self.rounds += 1
        self.drafted += record.drafted
        self.tested += record.tested
        self.accepted += record.accepted
        self.committed += record.committed
        for phase, seconds in record.seconds.items():
            self.seconds[phase] += seconds
        self.tested_at.update(range(record.tested))
        self.accepted_at.update(range(record.accepted))

    @property
    def acceptance_rate(self) -> float | None:
        """Alpha = accepted / tested; None before anything was tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tau = tokens committed per round, the recovered or bonus token included."""
        return self.committed / self.rounds if self.rounds else None

    @property
    def accepted_per_position(self) -> list[float]:
        """P(level accepted | level tested) for draft levels 1, 2, ..."""
        return [self.accepted_at[level] / self.tested_at[level] for level in sorted(self.tested_at)]
