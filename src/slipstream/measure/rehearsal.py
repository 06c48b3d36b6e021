"""Two drafters that only a measurement has use for: one that knows the text already, and one that only watches."""

from collections.abc import Sequence

from slipstream.core.protocols import Growth, Logits, Rows, SequenceView
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict
from slipstream.draft import BaseDrafter


class Witness(BaseDrafter):
    """Drafts nothing; keeps the target's row for each token that is chosen.

    rows: by the number of tokens before the choice, in the newest sequence; [vocab] raw logits
    """

    name = "witness"

    def __init__(self) -> None:
        self.rows: dict[int, Logits] = {}

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        self.rows = {}

    def observe(self, sequence: SequenceView, draft: Draft, verdict: Verdict, rows: Rows) -> None:
        before = len(sequence.tokens) - len(verdict.commits)
        asked = [-1, *(commit.node for commit in verdict.commits[:-1] if commit.node is not None)]
        for index, node in enumerate(asked):
            self.rows[before + index] = rows.logits(node + 1).copy()


class Rehearsal(Witness):
    """Drafts the text that plain decoding gave, so that drafts are accepted, and with mistakes, so that they are not.

    texts:    prompt and answer that begin with these prompts
    length:   tokens of the text in one draft
    mistakes: spoil one token of most drafts, at a place that changes from round to round
    trees:    put a wrong sibling before each token, so that what is accepted is no run of rows
    """

    name = "rehearsal"

    def __init__(self, texts: Sequence[Sequence[int]], length: int, *, mistakes: bool = True, trees: bool = False):
        super().__init__()
        self._texts = [list(text) for text in texts]
        self._length = length
        self._mistakes = mistakes
        self._trees = trees

    def extend(self, frontier: Sequence[Growth]) -> None:
        for growth in frontier:
            if not len(growth.draft):
                self._recite(growth)

    def _recite(self, growth: Growth) -> None:
        known, size = list(growth.sequence.tokens), growth.sequence.sampler.vocabulary_size
        text = next((text for text in self._texts if len(text) > len(known) and text[: len(known)] == known), known)
        coming = text[len(known) : len(known) + min(self._length, growth.limit // (2 if self._trees else 1))]
        spoiled = len(known) % (self._length + 1) if self._mistakes else -1
        for place, token in enumerate(coming):
            wrong = (token + 1) % size
            if self._trees:
                growth.draft.add(wrong, growth.draft.tip, source=self.name)
            growth.draft.append(token if place != spoiled else (token + 2) % size, source=self.name)
