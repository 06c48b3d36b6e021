"""How fast a drafter should be, from measured costs and acceptance alone: to hold measurements against.

Costs are forwards of target and draft model timed by themselves (`policy.profile`), moved to the speed that they have
where they alternate (`measure.alternation`) and that plain rounds had on the prompt in question. Acceptance is what the
draft model proposes for the tokens of a plain answer (`measure.tracing`). From both the answer's time is simulated
(`measure.simulated`), with the policy that is to be judged and with drafts of fixed lengths. What was accepted of a
draft takes no part.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from slipstream.core.protocols import Drafter, Policy
from slipstream.measure.alternation import LENGTH, Alternation
from slipstream.measure.records import Round
from slipstream.measure.simulated import Costs, Curve, SimulatedTime, StepCosts, decode_again
from slipstream.measure.tracing import Trace, usual
from slipstream.policy import DEFAULT_MAX_SLOWDOWN, AdaptivePolicy, CostTable, ExcessBank, FixedLength
from slipstream.policy.adaptive import DEFAULT_MOST_DRAFTED

LENGTHS = (1, 2, 4, 8)
"""Fixed draft lengths that are predicted beside the policy's choice."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one prompt.

    prompt, answer: token ids; the answer is plain decoding's
    rounds:         of that answer
    traces:         one for each drafter, None for those that are free
    alternations:   the same, None also where no round could be played with the drafter
    """

    name: str
    kind: str
    prompt: Sequence[int]
    answer: Sequence[int]
    rounds: Sequence[Round]
    traces: Sequence[Trace | None]
    alternations: Sequence[Alternation | None]


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of the models.

    target:   the target's cost table
    drafters: the engine's
    drafts:   the cost table of each one's model, None without one
    most:     most draft tokens of the policy, None for its own limit
    """

    target: CostTable
    drafters: Sequence[Drafter]
    drafts: Sequence[CostTable | None]
    vocabulary: int
    trees: bool
    most: int | None = None
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN


@dataclass(frozen=True, slots=True)
class Prediction:
    """Speed-ups over plain decoding, by prompt: with the policy, and with drafts of fixed lengths."""

    auto: Mapping[str, float]
    fixed: Mapping[int, Mapping[str, float]]

    def for_prompts(self, prompts: Iterable[str], length: int | None = None) -> float | None:
        """Over these prompts (geometric mean, as `measure.ratios`); None if one of them was not predicted.

        length: of fixed drafts, None for the policy
        """
        ratios = self.auto if length is None else self.fixed[length]
        names = list(prompts)
        if not names or not all(name in ratios for name in names):
            return None
        return math.exp(fmean(math.log(ratios[name]) for name in names))

    def by_length(self) -> dict[int, float]:
        """Over all prompts, for each fixed length."""
        ratios = {length: self.for_prompts(self.auto, length) for length in self.fixed}
        return {length: ratio for length, ratio in ratios.items() if ratio is not None}


def predict(evidence: Sequence[Evidence], machine: Machine) -> Prediction:
    """Simulate all answers with the policy and with fixed lengths."""
    time = SimulatedTime()
    fixed = {length: _played(evidence, machine, FixedLength(length), time) for length in LENGTHS}
    auto = _adaptive(machine, time)
    _played(evidence, machine, auto, time)  # measured policies have seen some text, too
    return Prediction(_played(evidence, machine, auto, time), fixed)


def costs_of(evidence: Evidence, machine: Machine) -> Costs:
    """Costs in the rounds of one prompt."""
    rounds = evidence.rounds
    plain = usual([one.verify for one in rounds])
    forward = _moved(machine.target.seconds, plain)
    known = [one for one in evidence.alternations if one is not None]
    slower = fmean([one.verify / one.plain for one in known]) * plain / forward(LENGTH + 1) if known else 1.0
    drafts = [
        None if table is None or trace is None else _steps(table.seconds, trace, alternation, plain)
        for table, trace, alternation in zip(machine.drafts, evidence.traces, evidence.alternations, strict=True)
    ]
    return Costs(
        verify=lambda rows: forward(rows) * (slower if rows > 1 else 1.0),
        drafts=drafts,
        token=usual([one.sample for one in rounds]),
        round_=usual([one.draft + one.other for one in rounds]),
    )


def _played(evidence: Sequence[Evidence], machine: Machine, policy: Policy, time: SimulatedTime) -> dict[str, float]:
    """Speed-up of each prompt, played one after the other."""
    ratios: dict[str, float] = {}
    for one in evidence:
        costs = costs_of(one, machine)
        seconds = decode_again(
            one.prompt,
            one.answer,
            machine.drafters,
            one.traces,
            costs,
            policy,
            time,
            vocabulary=machine.vocabulary,
            trees=machine.trees,
        )
        ratios[one.name] = len(one.answer) * costs.plain / seconds
    return ratios


def _adaptive(machine: Machine, time: SimulatedTime) -> AdaptivePolicy:
    """The policy as an engine makes it, with tables of its own that it corrects as it goes."""
    return AdaptivePolicy(
        CostTable(machine.target.points),
        [None if table is None else CostTable(table.points) for table in machine.drafts],
        trees=machine.trees,
        bank=ExcessBank(machine.max_slowdown),
        most=DEFAULT_MOST_DRAFTED if machine.most is None else machine.most,
        timer=time,
    )


def _steps(table: Curve, trace: Trace, alternation: Alternation | None, plain: float) -> StepCosts:
    """Of a drafter, where a plain forward takes so long."""
    if alternation is None:
        return StepCosts(trace.reading, 0.0, table)
    speed = plain / alternation.plain
    rows = _moved(table, speed * alternation.rest)
    return StepCosts(trace.reading, max(speed * alternation.first - rows(2), 0.0), rows)  # a first step reads two


def _moved(curve: Curve, one_row: float) -> Curve:
    """The curve of a machine on which one row takes so long."""
    factor = one_row / curve(1)
    return lambda rows: factor * curve(rows)
