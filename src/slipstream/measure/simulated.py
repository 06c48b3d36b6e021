"""An answer that is known, decoded again in simulated time: the engine's own round and the real policies, on a target
that says what it said before and drafters that propose what was traced. Forwards take what they were measured to take.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.params import SamplingParams
from slipstream.core.pool import Slot
from slipstream.core.protocols import Capabilities, Drafter, Emission, Growth, Logits, Policy, Segment, SequenceView
from slipstream.draft import BaseDrafter
from slipstream.engine import sequence
from slipstream.engine.round import play_round
from slipstream.measure.tracing import Trace

Curve = Callable[[int], float]
"""Seconds of a forward by its number of rows."""

NO_ROW: Logits = np.zeros(0, np.float32)


class StepCosts(NamedTuple):
    """Seconds of a drafter's steps.

    reading: of the first step of an answer, which reads the prompt
    begin:   what the first step of a draft takes longer than the others
    rows:    of a step by the tokens that it reads
    """

    reading: float
    begin: float
    rows: Curve


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds in the rounds of one answer.

    verify: of the target's forward, by rows
    drafts: of each drafter's steps; None for free drafters
    token:  of choosing one token
    round_: of what a round takes besides
    """

    verify: Curve
    drafts: Sequence[StepCosts | None]
    token: float
    round_: float

    @property
    def plain(self) -> float:
        """Of a token in plain decoding."""
        return self.verify(1) + self.token + self.round_


class SimulatedTime:
    """Seconds that pass when somebody says so; a policy's timer."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def decode_again(
    prompt: Sequence[int],
    answer: Sequence[int],
    drafters: Sequence[Drafter],
    traces: Sequence[Trace | None],
    costs: Costs,
    policy: Policy,
    time: SimulatedTime,
    *,
    vocabulary: int,
    trees: bool,
) -> float:
    """Simulated seconds of the answer.

    drafters: the engine's; those that are free draft themselves, for the others their traces do
    policy:   one whose timer is `time`
    trees:    whether the target takes them
    """
    players = [
        one if trace is None else _TracedDrafter(one.name, trace, len(prompt), steps, time)
        for one, trace, steps in zip(drafters, traces, costs.drafts, strict=True)
    ]
    target = _KnownTarget(costs, time, vocabulary, trees)
    told = sequence.Sequence(prompt, cast(Any, _Told(prompt, answer)), cast(Any, _Until(len(answer))))
    told.slot = Slot(cast(Any, _KnownSession(len(prompt) - 1, costs.round_, time)))
    started = time.now
    for player in players:
        player.begin(told, 0)
    while not told.finished:
        play_round(cast(Any, target), [told], players, policy, time)
    for player in players:
        player.end(told)
    policy.end(told)
    assert told.completion_tokens == list(answer), "the text is the one that is known"
    return time.now - started


class _Vocabulary:
    def __init__(self, size: int) -> None:
        self.size = size


class _KnownTarget:
    """Its forwards take time; what their rows say nobody looks at."""

    runtime, max_rows = "simulated", 512

    def __init__(self, costs: Costs, time: SimulatedTime, vocabulary: int, trees: bool) -> None:
        self.capabilities = Capabilities(trees=trees)
        self.vocabulary = _Vocabulary(vocabulary)
        self._costs, self._time = costs, time

    def forward(self, batch: Sequence[Segment]) -> list["_Rows"]:
        self._time.spend(self._costs.verify(sum(len(segment.tokens) for segment in batch)))
        return [_Rows(self._costs.token, self._time) for _ in batch]


class _Rows:
    """One row is looked at for each token that is chosen, which takes its time."""

    def __init__(self, seconds: float, time: SimulatedTime) -> None:
        self._seconds, self._time = seconds, time

    def logits(self, row: int) -> Logits:
        self._time.spend(self._seconds)
        return NO_ROW

    def top(self, row: int, count: int) -> tuple[NDArray[np.int64], Logits]:
        return np.zeros(0, np.int64), NO_ROW[:0]


class _KnownSession:
    """A commit stands for all that a round does besides."""

    def __init__(self, length: int, seconds: float, time: SimulatedTime) -> None:
        self.length = length
        self._seconds, self._time = seconds, time

    def commit(self, path: Sequence[int]) -> None:
        self.length += len(path)
        self._time.spend(self._seconds)


class _Told:
    """A sampler that chooses what was chosen."""

    params = SamplingParams(temperature=0)

    def __init__(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        self._start, self._answer = len(prompt), answer

    def choose(self, row: Logits, position: int) -> int:
        return self._answer[position - self._start]

    def accept(self, token: int) -> None:
        """Nothing depends on it."""


class _Until:
    """Ends with the answer."""

    def __init__(self, tokens: int) -> None:
        self.tokens_left = tokens

    def push(self, token: int) -> Emission:
        self.tokens_left -= 1
        return Emission("", None if self.tokens_left else "length")


class _TracedDrafter(BaseDrafter):
    """Proposes what was traced. Below a wrong token it goes on with what belongs there otherwise: nobody descends."""

    def __init__(self, name: str, trace: Trace, start: int, costs: StepCosts | None, time: SimulatedTime) -> None:
        self.name = name
        self._trace, self._start, self._costs, self._time = trace, start, costs, time
        self._read = 0

    def lag(self, sequence: SequenceView) -> int:
        return max(len(sequence.tokens) - self._read, 1)

    def extend(self, frontier: Sequence[Growth]) -> None:
        [growth] = frontier
        if self._costs is not None:
            self._time.spend(self._seconds(self._costs, growth))
        draft, parent = growth.draft, growth.draft.tip
        depth = len(draft.path(parent))
        place = len(growth.sequence.tokens) - self._start + depth
        self._read = len(growth.sequence.tokens) + depth
        if place >= len(self._trace.levels):
            return
        level = self._trace.levels[place]
        for rank, token in enumerate(level.tokens[: min(growth.siblings, growth.limit)]):
            bucket, estimate = level.buckets[rank], level.estimates[rank]
            if rank == 0:
                draft.append(token, source=self.name, estimate=estimate, bucket=bucket)
            else:
                draft.add(token, parent, source=self.name, estimate=estimate, bucket=bucket)

    def _seconds(self, costs: StepCosts, growth: Growth) -> float:
        """Of the step that comes."""
        if growth.draft.tokens:
            return costs.rows(1)
        if not self._read:
            return costs.reading
        return costs.begin + costs.rows(self.lag(growth.sequence))

    def end(self, sequence: SequenceView) -> None:
        self._read = 0

    def observe(self, sequence: SequenceView, *rest: object) -> None:
        """What was drafted and refused has to be read again."""
        self._read = min(self._read, len(sequence.tokens) - 1)
