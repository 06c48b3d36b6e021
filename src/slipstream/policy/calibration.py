"""How often drafts are right, learned from the text that came out.

The text does not depend on what was drafted, so a proposal is scored against it whether or not it was verified:
a node whose parent was on the text's path was right or wrong, and that is known one round later. For a drafter that
looks at committed tokens alone this is exact, also for the nodes of a draft that nobody asked for (shadow mode).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from slipstream.core.tree import ROOT, Draft

PRIOR = 0.7
"""P(right) of a level of which nothing is known yet."""
DEPTHS = 8
"""Levels of a draft whose acceptance is learned apart; deeper ones count as the last of these."""
_CHAIN = list(range(ROOT, 256))
"""Parents of the nodes of a chain."""


class Calibration:
    """P(node accepted | parent accepted) for each bucket that nodes are sorted into.

    Beta counts with slow forgetting: old rounds fade with a half-life of about 70 observations of the bucket.
    prior: estimate of a bucket that was never observed, worth `WEIGHT` observations.
    """

    FORGET = 0.99
    WEIGHT = 2.0

    def __init__(self) -> None:
        self._counts: dict[Hashable, list[float]] = {}

    def estimate(self, bucket: Hashable, prior: float) -> float:
        counts = self._counts.get(bucket)
        if counts is None:
            return prior
        return (counts[0] + prior * self.WEIGHT) / (counts[1] + self.WEIGHT)

    def record(self, bucket: Hashable, accepted: bool) -> None:
        counts = self._counts.get(bucket)
        if counts is None:
            counts = self._counts[bucket] = [0.0, 0.0]
        counts[0] = self.FORGET * counts[0] + accepted
        counts[1] = self.FORGET * counts[1] + 1

    def weight(self, bucket: Hashable) -> float:
        """Observations of a bucket, faded."""
        counts = self._counts.get(bucket)
        return 0.0 if counts is None else counts[1]

    def remembered(self, most: float) -> list[list[Any]]:
        """[[*bucket, accepted, tested], ...] for a file; what was seen more than `most` times counts as seen that
        often, so that what is read back gives way to what is seen then."""
        rows = []
        for bucket, (accepted, tested) in self._counts.items():
            share = min(1.0, most / tested) if tested else 0.0
            rows.append([*_parts(bucket), round(accepted * share, 3), round(tested * share, 3)])
        return rows

    def recall(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take over what `remembered` gave."""
        for *bucket, accepted, tested in rows:
            self._counts[tuple(bucket)] = [float(accepted), float(tested)]


def _parts(bucket: Hashable) -> tuple[Any, ...]:
    return bucket if isinstance(bucket, tuple) else (bucket,)


class Form:
    """Whether a drafter does on one text what is expected of it, or has lost its form: a filter with two states.

    Calibrations know a drafter in general and move slowly; this notices within a few rounds that a text, or a turn it
    takes, does not suit the drafter. What chance alone does as often changes little.
    """

    LOST = 0.1
    """Share of what was expected that is right when the form is lost."""
    ONSET, RECOVERY = 0.0003, 0.02
    """P(a level that was tested, or a round in which none was, changes the state)."""
    __slots__ = ("_lost",)

    def __init__(self) -> None:
        self._lost = 0.02

    def record(self, expected: float, accepted: bool) -> None:
        """A level of the main chain was tested (Bayes' rule, then the chance of a change)."""
        weak = self.LOST * expected
        usual = 1 - expected + 0.02  # nothing is so certain that one miss proves anything
        lost = self._lost * (weak if accepted else 1 - weak)
        lost /= lost + (1 - self._lost) * (expected if accepted else usual) + 1e-12
        self._lost = lost * (1 - self.RECOVERY) + (1 - lost) * self.ONSET

    def rest(self) -> None:
        """A round without a proposal: what was lost comes back by and by."""
        self._lost *= 1 - self.RECOVERY

    @property
    def factor(self) -> float:
        """What the estimate of each level is multiplied with, at most 1: doubt about a draft's first levels is more
        doubt about its last ones, which keeps drafts short while it is not clear."""
        return 1 - (1 - self.LOST) * self._lost


class Acceptance:
    """Two calibrations of every drafter: by the class it sorts a node into, and by depth on a draft's main chain.

    The first rates what was drafted, the second what has not been drafted yet. Both are corrected by the drafter's form
    on the text in question.

    priors: by drafter, P(right) of a level of which nothing was seen here, where somebody has measured it elsewhere
    """

    def __init__(self, priors: Mapping[str, float] = MappingProxyType({})) -> None:
        self._priors = dict(priors)
        self.nodes = Calibration()
        self.levels = Calibration()
        self._open: dict[tuple[int, int], tuple[Draft, int, int]] = {}
        self._forms: dict[tuple[int, str], Form] = {}
        self._levels: dict[str, list[float]] = {}

    def rate(self, draft: Draft, first: int = 0, form: float = 1.0) -> None:
        """Set the estimates of a draft's nodes from `first` on.

        The prior of a class that was never seen is how the drafter does on the whole; of a sibling, what it said.
        """
        estimates, sources, buckets, estimate = draft.estimates, draft.sources, draft.buckets, self.nodes.estimate
        parents = draft.parents
        for node in range(first, len(estimates)):
            source = sources[node]
            main = node == 0 or parents[node] != parents[node - 1]
            prior = self.by_level(source)[0] if main else estimates[node]
            estimates[node] = form * estimate((source, buckets[node]), min(max(prior, 0.0), 1.0))

    def by_level(self, source: str) -> Sequence[float]:
        """[DEPTHS] P(main chain right at a level | right before it), in general; the form is not in it."""
        levels = self._levels.get(source)
        if levels is None:
            levels = self._levels[source] = [self._of_level(source, depth) for depth in range(DEPTHS)]
        return levels

    def _of_level(self, source: str, depth: int) -> float:
        return self.levels.estimate((source, depth), self._prior(source))

    def _prior(self, source: str) -> float:
        return self._priors.get(source, PRIOR)

    def form(self, source: str, sequence: int) -> float:
        """What estimates of a drafter are multiplied with on a text."""
        form = self._forms.get((sequence, source))
        return 1.0 if form is None else form.factor

    def seen(self, source: str) -> float:
        """How often the drafter's first level was tested, faded."""
        return self.levels.weight((source, 0))

    def rest(self, source: str, sequence: int) -> None:
        """A drafter proposed nothing in a round."""
        form = self._forms.get((sequence, source))
        if form is not None:
            form.rest()

    def score(self, sequence: int, drafter: int, draft: Draft, tokens: Sequence[int], *, verified: bool) -> bool:
        """The text went on with `tokens`: record what that says about a proposal of this round.

        A proposal that the text has followed to its last token yet is kept and scored on by the next round, instead of
        that round's own, unless its own was verified. Returns whether the first of the tokens had been proposed.
        """
        key = (sequence, drafter)
        earlier = self._open.pop(key, None)
        node, depth = ROOT, 0
        if earlier is not None and not verified:
            draft, node, depth = earlier
        if not draft.tokens:
            return False
        start, chain = depth, draft.parents == _CHAIN[: len(draft.parents)]
        for token in tokens:
            following = self._test(sequence, draft, node, depth, token, chain=chain)
            if following is None:
                return depth > start
            node, depth = following, depth + 1
        if node < len(draft.tokens) - 1:
            self._open[key] = draft, node, depth
        return True

    def _test(self, sequence: int, draft: Draft, node: int, depth: int, token: int, *, chain: bool) -> int | None:
        """Record whether the children of a node carry `token`; returns the one that does."""
        tokens, sources, buckets, parents = draft.tokens, draft.sources, draft.buckets, draft.parents
        child = node + 1
        if not chain:
            child = _next_child(parents, node, child)
        if child < 0 or child == len(parents):
            return None
        self._test_main(sequence, sources[child], depth, buckets[child], tokens[child] == token)
        found = None
        while True:  # the first child is the main chain's, the others are its siblings
            accepted = tokens[child] == token
            self.nodes.record((sources[child], buckets[child]), accepted)
            if accepted:
                found = child
            child = -1 if chain else _next_child(parents, node, child + 1)
            if child < 0:
                return found

    def _test_main(self, sequence: int, source: str, depth: int, bucket: int, accepted: bool) -> None:
        """A node of a main chain was right or not."""
        form = self._forms.get((sequence, source))
        if form is None:
            form = self._forms[sequence, source] = Form()
        form.record(self.nodes.estimate((source, bucket), self._prior(source)), accepted)
        level = depth if depth < DEPTHS else DEPTHS - 1
        self.levels.record((source, level), accepted)
        if source in self._levels:
            self._levels[source][level] = self._of_level(source, level)

    def end(self, sequence: int) -> None:
        """Forget what waits for the rest of a sequence."""
        self._open = {key: kept for key, kept in self._open.items() if key[0] != sequence}
        self._forms = {key: kept for key, kept in self._forms.items() if key[0] != sequence}


def _next_child(parents: list[int], node: int, first: int) -> int:
    """The first child of a node from `first` on, -1 if there is none."""
    for child in range(first, len(parents)):
        if parents[child] == node:
            return child
    return -1
