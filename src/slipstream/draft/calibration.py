"""Acceptance estimates learned from what was accepted."""

from collections import defaultdict

from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict


class Calibration:
    """P(node accepted | parent accepted) for each bucket a drafter sorts its nodes into.

    Beta counts with slow forgetting: old rounds fade with a half-life of about 70 observations of the bucket.
    prior: estimate of a bucket that was never observed, worth `weight` observations.
    """

    FORGET = 0.99

    def __init__(self, prior: float = 0.5, weight: float = 2.0) -> None:
        self._prior = prior
        self._weight = weight
        self._accepted: defaultdict[int, float] = defaultdict(float)
        self._tested: defaultdict[int, float] = defaultdict(float)

    def estimate(self, bucket: int) -> float:
        accepted = self._accepted[bucket] + self._prior * self._weight
        return accepted / (self._tested[bucket] + self._weight)

    def record(self, bucket: int, accepted: bool) -> None:
        self._accepted[bucket] = self.FORGET * self._accepted[bucket] + accepted
        self._tested[bucket] = self.FORGET * self._tested[bucket] + 1

    def observe(self, draft: Draft, verdict: Verdict, source: str) -> None:
        """Record all tested nodes of the draft that came from `source`."""
        for node, accepted in verdict.outcomes(draft):
            if draft.sources[node] == source:
                self.record(draft.buckets[node], accepted)
