"""Playing recordings: the engine's own round, with a target and drafters whose time is simulated.

Only time and logits are made up. The round, the policies, suffix lookup and the walk are the ones that run elsewhere.
"""

import random
from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Any, cast

import numpy as np

from benchmarks.recordings import UNKNOWN, Costs, Recording
from slipstream.core.params import SamplingParams
from slipstream.core.pool import Slot
from slipstream.core.protocols import Capabilities, Drafter, Emission, Growth, Logits, Policy, Segment, SequenceView
from slipstream.core.sampling import Sampler
from slipstream.draft import BaseDrafter, SuffixDrafter
from slipstream.engine.round import play_round
from slipstream.engine.sequence import Sequence
from slipstream.policy import AdaptivePolicy, CostTable, FixedLength

VOCABULARY = 49152
GREEDY = SamplingParams(temperature=0, seed=0)
SUFFIX_SECONDS = 20e-6
"""A lookup, about what it takes: next to nothing."""
TOKEN_SECONDS = 60e-6
"""Sampling of one token, drafted or not."""


class SimulatedClock:
    """Seconds that pass when somebody says so. noise: what a duration is multiplied with."""

    def __init__(self, noise: Callable[[], float] = lambda: 1.0) -> None:
        self.now = 0.0
        self._noise = noise

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        """Let about so much time pass."""
        self.now += seconds * self._noise()


class RecordedSession:
    """Where a recorded answer has come to; `length` counts all but the pending token."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.length = len(recording.prompt) - 1

    @property
    def position(self) -> int:
        """Tokens of the answer so far."""
        return self.length - len(self.recording.prompt) + 1

    def commit(self, path: Several[int]) -> None:
        """Go on by so many tokens."""
        self.length += len(path)


class RecordedTarget:
    """Chooses the recorded tokens; a forward takes what its table says."""

    runtime, max_rows = "simulated", 512

    def __init__(self, clock: SimulatedClock, costs: CostTable, *, trees: bool = True) -> None:
        self.capabilities = Capabilities(trees=trees)
        self.vocabulary = _Vocabulary()
        self._clock, self._costs = clock, costs
        self._row, self._marked = np.zeros(VOCABULARY, np.float32), 0

    def forward(self, batch: Several[Segment]) -> list["_Rows"]:
        """Rows for every segment of recorded sessions."""
        self._clock.spend(self._costs.seconds(sum(len(segment.tokens) for segment in batch)))
        return [_Rows(self, segment) for segment in batch]

    def row_for(self, token: int) -> Logits:
        """A row in which this token has the only large logit; choosing it takes its time."""
        self._clock.spend(TOKEN_SECONDS)
        self._row[self._marked], self._row[token] = 0, 1
        self._marked = token
        return self._row


class _Vocabulary:
    size = VOCABULARY
    end_tokens: frozenset[int] = frozenset()


class _Rows:
    """The token that follows a node is as deep in the answer as the node; the walk asks for no others."""

    def __init__(self, target: RecordedTarget, segment: Segment) -> None:
        self._target, self._segment = target, segment

    def logits(self, row: int) -> Logits:
        depth, parents = 0, self._segment.parents
        if parents is None:
            depth = row
        else:
            while row > 0:
                row, depth = parents[row], depth + 1
        session = cast(RecordedSession, self._segment.session)
        return self._target.row_for(session.recording.tokens[session.position + depth])


class _Stop:
    """Ends with the recorded answer."""

    def __init__(self, tokens: int) -> None:
        self.tokens_left = tokens

    def push(self, token: int) -> Emission:
        self.tokens_left -= 1
        return Emission("", "length" if self.tokens_left == 0 else None)


class RecordedDrafter(BaseDrafter):
    """Proposes what was recorded. A step takes what the table says for the rows it has to read.

    spoil: changes the tokens of a level, or not; by position in the answer
    """

    name = "model"

    def __init__(
        self,
        clock: SimulatedClock,
        costs: CostTable,
        spoil: Callable[[Recording, int], bool] = lambda recording, position: False,
    ) -> None:
        self._clock, self._costs, self._spoil = clock, costs, spoil
        self._read: dict[int, int] = {}
        self.recording: dict[int, Recording] = {}

    def lag(self, sequence: SequenceView) -> int:
        return max(len(sequence.tokens) - self._read.get(sequence.id, 0), 1)

    def extend(self, frontier: Several[Growth]) -> None:
        rows = sum(self.lag(g.sequence) if not g.draft.tokens else 1 for g in frontier)
        self._clock.spend(self._costs.seconds(rows))
        for growth in frontier:
            self._read[growth.sequence.id] = len(growth.sequence.tokens)
            self._grow(growth)

    def _grow(self, growth: Growth) -> None:
        recording, draft, parent = self.recording[growth.sequence.id], growth.draft, growth.draft.tip
        position = len(growth.sequence.tokens) - len(recording.prompt)
        depth = len(draft.path(parent))
        if depth >= len(recording.drafts[position]):
            return
        level = recording.drafts[position][depth]
        spoilt = self._spoil(recording, position)
        for rank in range(min(len(level.tokens), growth.siblings, growth.limit)):
            known = level.tokens[rank] != UNKNOWN and not spoilt
            token = level.tokens[rank] if known else VOCABULARY - 1 - rank  # the last ids of this vocabulary are unused
            if rank == 0:
                draft.append(token, source=self.name, bucket=level.buckets[rank], estimate=0.6)
            else:
                draft.add(token, parent, source=self.name, bucket=level.buckets[rank], estimate=0.4 / 2**rank)


class TimedSuffix(SuffixDrafter):
    """Suffix lookup that takes simulated time."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def extend(self, frontier: Several[Growth]) -> None:
        self._clock.spend(SUFFIX_SECONDS)
        super().extend(frontier)


class Simulation:
    """A target, drafters and a clock; plays recordings one after the other, as a program would answer prompts.

    costs:    of target and draft model
    drafters: of "suffix", "model"
    slowness: times that a step of the draft model takes longer
    """

    def __init__(
        self,
        costs: Costs,
        drafters: Several[str] = ("model",),
        *,
        trees: bool = True,
        slowness: float = 1.0,
        spoil: Callable[[Recording, int], bool] = lambda recording, position: False,
        scatter: float = 0.0,
        seed: int = 0,
    ) -> None:
        chance = random.Random(seed)
        self.clock = SimulatedClock(lambda: chance.lognormvariate(0, scatter) if scatter else 1.0)
        self._curves = costs.target, {rows: slowness * seconds for rows, seconds in costs.draft.items()}
        self.target = RecordedTarget(self.clock, CostTable(self._curves[0]), trees=trees)
        self.drafters: list[Drafter] = [
            TimedSuffix(self.clock)
            if name == "suffix"
            else RecordedDrafter(self.clock, CostTable(self._curves[1]), spoil)
            for name in drafters
        ]
        self._trees = trees

    def auto(self, **options: Any) -> AdaptivePolicy:
        """The adaptive policy with measured tables of its own, which it corrects as it goes."""
        target, draft = map(CostTable, self._curves)
        steps = [None if drafter.free else draft for drafter in self.drafters]
        return AdaptivePolicy(target, steps, trees=self._trees, timer=self.clock, **options)

    def play(self, recording: Recording, policy: Policy) -> float:
        """Simulated seconds of one answer."""
        sampler = Sampler(GREEDY, VOCABULARY, ())
        sequence = Sequence(recording.prompt, sampler, cast(Any, _Stop(len(recording.tokens))))
        sequence.slot = Slot(cast(Any, RecordedSession(recording)))
        for drafter in self.drafters:
            drafter.begin(sequence, 0)
            if isinstance(drafter, RecordedDrafter):
                drafter.recording[sequence.id] = recording
        started = self.clock.now
        while not sequence.finished:
            play_round(cast(Any, self.target), [sequence], self.drafters, policy, self.clock)
        for drafter in self.drafters:
            drafter.end(sequence)
        policy.end(sequence)
        assert sequence.tokens == [*recording.prompt, *recording.tokens], "the text is the recorded one"
        return self.clock.now - started


def plain_seconds(costs: Costs, recordings: Several[Recording]) -> float:
    """Simulated seconds of plain decoding."""
    simulation = Simulation(costs, ())
    return sum(simulation.play(recording, FixedLength(0)) for recording in recordings)


def random_drafts(recording: Recording, position: int) -> bool:
    """A drafter that is never right."""
    return True


def collapsing_drafts(recording: Recording, position: int) -> bool:
    """A drafter that is never right in the second half of an answer."""
    return 2 * position >= len(recording.tokens)
