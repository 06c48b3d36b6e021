"""The simplest policy: the same draft length every round."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipstream.core.params import check_whole
from slipstream.core.protocols import Drafter, Growth, SequenceView, Step
from slipstream.core.tree import Draft
from slipstream.policy.calibration import Acceptance

MOST_DRAFT_TOKENS = 64


class FixedLength:
    """Drafts of `num_draft_tokens` levels, as far as drafters go; 0 is plain decoding.

    Of several drafters the free ones propose first; one with a price replaces what they proposed if it has been right
    often enough to promise more. Time plays no part.

    siblings: nodes below one parent, for targets that take trees
    """

    name = "fixed"

    def __init__(self, num_draft_tokens: int, siblings: int = 1) -> None:
        check_whole("num_draft_tokens", num_draft_tokens, 0, MOST_DRAFT_TOKENS)
        self.num_draft_tokens = num_draft_tokens
        self.siblings = siblings
        self._acceptance = Acceptance()
        self._sequences: Sequence[SequenceView] = ()
        self._drafts: list[list[Draft]] = []

    def draft(self, sequences: Sequence[SequenceView], drafters: Sequence[Drafter], beside: int = 0) -> Iterator[Step]:
        self._sequences = sequences
        self._drafts = [[Draft() for _ in drafters] for _ in sequences]
        everyone = range(len(sequences))
        free = [index for index, drafter in enumerate(drafters) if drafter.free]
        for index in free:
            yield from self._grow(index, everyone)
        for index, drafter in enumerate(drafters):
            if index not in free:
                yield from self._grow(index, [i for i in everyone if self._promises_more(i, drafter.name)])

    def choose(self) -> Sequence[Draft]:
        return [max(drafts, key=Draft.expected_accepted, default=Draft()) for drafts in self._drafts]

    def observe(self, committed: Sequence[Sequence[int]], seconds: Mapping[str, float]) -> None:
        for sequence, drafts, tokens in zip(self._sequences, self._drafts, committed, strict=True):
            for index, draft in enumerate(drafts):
                self._acceptance.score(sequence.id, index, draft, tokens, verified=True)

    def end(self, sequence: SequenceView) -> None:
        self._acceptance.end(sequence.id)

    def describe(self) -> dict[str, Any]:
        length = self.num_draft_tokens
        how = f"drafts of {length} token{'s' if length > 1 else ''}, whether that pays or not" if length else "off"
        return {"name": self.name, "explanation": f"Speculation is fixed: {how}."}

    def close(self) -> None:
        """Nothing is kept."""

    def _grow(self, index: int, which: Sequence[int]) -> Iterator[Step]:
        """Steps of one drafter until its drafts are long enough or stop growing."""
        while which:
            growths = [growth for i in which if (growth := self._growth(i, index)) is not None]
            sizes = [len(growth.draft) for growth in growths]
            if not growths:
                return
            yield Step(index, growths)
            for growth, size in zip(growths, sizes, strict=True):
                self._acceptance.rate(growth.draft, size)
            grown = {id(g.draft) for g, size in zip(growths, sizes, strict=True) if len(g.draft) > size}
            which = [i for i in which if id(self._drafts[i][index]) in grown]

    def _growth(self, i: int, index: int) -> Growth | None:
        """How a draft may go on: to its length, never beyond what could be committed."""
        draft, sequence = self._drafts[i][index], self._sequences[i]
        levels = self.num_draft_tokens - (len(draft) if self.siblings == 1 else len(draft.path(draft.tip)))
        room = min(sequence.draft_limit, self.siblings * self.num_draft_tokens) - len(draft)
        if levels <= 0 or room <= 0:
            return None
        return Growth(sequence, draft, min(levels if self.siblings == 1 else self.siblings, room), self.siblings)

    def _promises_more(self, i: int, name: str) -> bool:
        """Whether a drafter with a price is expected to get more right than what was proposed for free."""
        reached, expected, levels = 1.0, 0.0, self._acceptance.by_level(name)
        for depth in range(min(self.num_draft_tokens, self._sequences[i].draft_limit)):
            reached *= levels[min(depth, len(levels) - 1)]
            expected += reached
        return expected > max((draft.expected_accepted() for draft in self._drafts[i]), default=0.0)
