"""Two drafters, one free and one with a price: the better estimate drafts."""

from collections.abc import Sequence

from slipstream.core.protocols import Drafter, Growth, Model, Requirements, Rows, SequenceView
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict
from slipstream.draft.calibration import Calibration


class CombinedDrafter:
    """The free drafter proposes first; if the other is expected to do better, its proposal replaces the first.

    free:   proposes at no cost, in one step
    costly: proposes one token a step; its expectation is its own acceptance so far, level by level
    """

    def __init__(self, free: Drafter, costly: Drafter) -> None:
        self.name = f"{free.name}+{costly.name}"
        self.requires = Requirements(
            (*free.requires.hidden_layers, *costly.requires.hidden_layers),
            max(free.requires.top_rows, costly.requires.top_rows),
        )
        self._free = free
        self._costly = costly
        self.model: Model | None = costly.model or free.model
        self._acceptance = Calibration(prior=0.6)

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        self._free.begin(sequence, reused_length)
        self._costly.begin(sequence, reused_length)

    def end(self, sequence: SequenceView) -> None:
        self._free.end(sequence)
        self._costly.end(sequence)

    def extend(self, frontier: Sequence[Growth]) -> None:
        fresh = [growth for growth in frontier if len(growth.draft) == 0]
        if fresh:
            self._free.extend(fresh)
        for growth in fresh:
            if growth.draft.expected_accepted() < self._expected(growth.limit):
                growth.draft.cut(0)
        rest = [growth for growth in frontier if self._free.name not in growth.draft.sources]
        if rest:
            self._costly.extend(rest)

    def observe(self, sequence: SequenceView, draft: Draft, verdict: Verdict, rows: Rows) -> None:
        self._free.observe(sequence, draft, verdict, rows)
        self._costly.observe(sequence, draft, verdict, rows)
        for node, accepted in verdict.outcomes(draft):
            if draft.sources[node] == self._costly.name:
                self._acceptance.record(0, accepted)

    def memory(self) -> int:
        return self._free.memory() + self._costly.memory()

    def close(self) -> None:
        self._free.close()
        self._costly.close()

    def _expected(self, limit: int) -> float:
        """Expected accepted tokens of a chain of `limit` from the costly drafter."""
        acceptance = self._acceptance.estimate(0)
        return sum(acceptance**depth for depth in range(1, limit + 1))
