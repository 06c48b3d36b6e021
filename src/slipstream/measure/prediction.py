"""How fast a drafter should be, from measured costs and acceptance alone: arithmetic to hold measurements against.

Costs are forwards of target and draft model timed by themselves (`policy.profile`), held against the forwards of one
plain answer and one answer with drafts of a fixed length, so that what caches and contexts change is in them.
Acceptance is that answer's, replayed for every other length (`measure.replay`). A length's speed-up is then

    tokens(n) * c(1)  /  sum over rounds of [ draft steps * c_d + c_v(rows) + choosing + the rest ]

and what a policy that knows all this should reach is that of the best length, 0 included, for each kind of prompt.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from slipstream.core.protocols import Drafter
from slipstream.measure.records import Round
from slipstream.measure.replay import Played, play_again, replays, trace_of

LENGTHS = tuple(range(17))
"""Draft lengths that are considered; 0 is plain decoding."""
SEEN = 3
"""Forwards of so many rows that must have been seen before their time corrects the table."""

Curve = Callable[[int], float]
"""Seconds of a forward by its number of rows."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was recorded of one prompt: a plain answer, and one with drafts of a fixed length from one drafter.

    prompt, answer: token ids; needed for drafters that are played again
    """

    name: str
    kind: str
    plain: Sequence[Round]
    probe: Sequence[Round]
    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds in the rounds of one prompt.

    plain:   of a token in plain decoding
    verify:  of the target's forward, by rows
    draft:   of a draft step, by the tokens that it reads
    round_:  of what a round takes besides, and `token` of what each committed token adds to it
    """

    plain: float
    verify: Curve
    draft: Curve
    round_: float
    token: float

    def seconds(self, played: Played) -> float:
        """Time of a round."""
        steps = self.draft(played.lag) + (played.steps - 1) * self.draft(1) if played.steps else 0.0
        return steps + self.verify(played.rows) + self.round_ + self.token * played.committed


@dataclass(frozen=True, slots=True)
class Prediction:
    """Speed-ups over plain decoding.

    fixed:   for all prompts, by draft length
    by_kind: what the best length gives for each kind; `best` is that length
    """

    fixed: Mapping[int, float]
    by_kind: Mapping[str, float]
    best: Mapping[str, int]


def costs_of(evidence: Evidence, target: Curve, draft: Curve | None) -> Costs:
    """Costs in the rounds of one prompt. draft: the draft model's curve, None for drafters that play for free."""
    probe, rounds = evidence.probe, [*evidence.plain, *evidence.probe]
    drafting = [one for one in probe if one.drafted] or probe
    free = 0.0 if draft is not None else median(one.draft for one in drafting)
    return Costs(
        plain=sum(median(column) for column in zip(*(one[7:] for one in evidence.plain), strict=True)),
        verify=corrected(target, [(one.drafted + 1, one.verify) for one in rounds]),
        draft=(lambda lag: 0.0) if draft is None else _draft_curve(draft, probe),
        round_=median(one.other for one in drafting) + free,
        token=sum(one.sample for one in probe) / sum(one.committed for one in probe),
    )


def corrected(curve: Curve, seen: Iterable[tuple[int, float]]) -> Curve:
    """The curve moved to what was seen: exactly where there were enough forwards of so many rows, in between in
    proportion, outside as at the nearest."""
    times: dict[int, list[float]] = {}
    for rows, seconds in seen:
        times.setdefault(rows, []).append(seconds)
    factors = {rows: median(taken) / curve(rows) for rows, taken in sorted(times.items()) if len(taken) >= SEEN}
    places = list(factors)

    def factor(rows: int) -> float:
        after = bisect_left(places, rows)
        if not places:
            return 1.0
        if after in (0, len(places)) or places[after] == rows:
            return factors[places[min(after, len(places) - 1)]]
        low, high = places[after - 1], places[after]
        return factors[low] + (factors[high] - factors[low]) * (rows - low) / (high - low)

    return lambda rows: curve(rows) * factor(rows)


def predict(evidence: Sequence[Evidence], target: Curve, draft: Curve | None, drafter: Drafter | None) -> Prediction:
    """The prediction for one drafter.

    target, draft: their cost curves; `draft` is None for a drafter without a model
    drafter:       one that is played again on each answer; None for a draft model, whose probes are replayed
    """
    assert evidence, "a prediction needs a prompt"
    by_prompt: list[dict[int, float]] = []
    for one in evidence:
        costs = costs_of(one, target, draft)
        by_prompt.append({length: _ratio(one, costs, length, drafter) for length in LENGTHS})
    kinds = list(dict.fromkeys(one.kind for one in evidence))
    of_kind = {
        kind: _means(ratios for one, ratios in zip(evidence, by_prompt, strict=True) if one.kind == kind)
        for kind in kinds
    }
    best = {kind: max(LENGTHS, key=means.__getitem__) for kind, means in of_kind.items()}
    return Prediction(
        fixed=_means(by_prompt),
        by_kind={kind: of_kind[kind][best[kind]] for kind in kinds},
        best=best,
    )


def _ratio(evidence: Evidence, costs: Costs, length: int, drafter: Drafter | None) -> float:
    """Times faster than plain decoding with drafts of this length."""
    if length == 0:
        return 1.0
    if drafter is not None:
        ways = [play_again(drafter, evidence.prompt, evidence.answer, length)]
    else:
        ways = replays(trace_of(evidence.probe), length)
    seconds = sum(costs.seconds(played) for way in ways for played in way)
    tokens = sum(played.committed for way in ways for played in way)
    return tokens * costs.plain / seconds


def _draft_curve(curve: Curve, probe: Sequence[Round]) -> Curve:
    """The draft model's curve, in proportion to what its steps took in the probe."""
    expected = taken = 0.0
    lag = 1
    for one in probe:
        if one.drafted:
            expected += curve(lag) + (one.drafted - 1) * curve(1)
            taken += one.draft
        lag = one.accepted + 1 - min(one.drafted - 1, one.accepted) if one.drafted else lag + 1
    factor = taken / expected if expected else 1.0
    return lambda rows: curve(rows) * factor


def _means(ratios: Iterable[Mapping[int, float]]) -> dict[int, float]:
    columns = list(ratios)
    return {length: _mean(column[length] for column in columns) for length in LENGTHS}


def _mean(ratios: Iterable[float]) -> float:
    """Geometric, as `measure.ratios` takes it over prompts."""
    return math.exp(fmean(map(math.log, ratios)))
