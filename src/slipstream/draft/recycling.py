"""Token recycling: what the target thought might follow a token is remembered, and proposed when the token comes again.

Luo et al. 2024 (arXiv 2408.08696): for every token the likeliest successors by the last row of logits that was computed
for it. Verification computes such rows anyway, so the memory is free but for looking at them. It is a guess from one
token's context, for places where nothing longer is known.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from slipstream.core.protocols import Growth, Requirements, Rows, SequenceView
from slipstream.core.tree import ROOT, Draft
from slipstream.core.verify import Verdict
from slipstream.draft.base import BaseDrafter

SUCCESSORS = 6
"""Remembered of each token."""
MOST_READ = 3
"""Rows of a round that are looked at: that takes some ten microseconds each."""
MOST_SCOPES = 8
"""Memories that are kept at once, those that were used last."""
PRIOR = (0.45, 0.15, 0.08)
"""P(a successor is right) by rank, until the texts tell; more are not proposed."""
MOST_LEVELS = 3
"""Tokens whose successors are asked for in one draft."""
LEAST = 0.04
"""What is reached more seldom is not proposed."""
UNKNOWN, CERTAIN = 0.0, 16.0
"""Leads of a successor from the prompt, of which nothing else is known, and of one that filters leave alone."""
IGNORED, TURN = 16, 4
"""After so many proposals in a row of which nothing was verified a text is served in every fourth round only, for each
takes up to some hundredths of a small model's forward."""


class Successors:
    """For every token its likeliest successors.

    ids:    [vocab, SUCCESSORS] likeliest first, -1 for none
    behind: [vocab, SUCCESSORS] float16, how far their logits are below the first one's
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.ids = np.full((vocabulary_size, SUCCESSORS), -1, np.int32)
        self.behind = np.full((vocabulary_size, SUCCESSORS), np.inf, np.float16)

    def learn_text(self, tokens: Sequence[int]) -> None:
        """What follows each token in a text, where nothing is known yet."""
        text = np.asarray(tokens, np.int64)
        before, after = text[:-1], text[1:]
        unknown = self.ids[before, 0] < 0
        self.ids[before[unknown], 0] = after[unknown]
        self.behind[before[unknown], 0] = 0

    def learn_row(self, token: int, rows: Rows, row: int) -> None:
        """The row of logits after a token."""
        ids, logits = rows.top(row, SUCCESSORS)
        count = len(ids)
        if count:
            self.ids[token, :count] = ids
            self.behind[token, :count] = logits[0] - logits

    def knows(self, token: int, successor: int) -> bool:
        """Whether that is the first guess already."""
        return bool(self.ids[token, 0] == successor)

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.behind.nbytes


@dataclass(slots=True)
class _Text:
    """A text that is served. ignored: proposals in a row that were not verified; turn: rounds since it had enough."""

    memory: Successors
    ignored: int = 0
    turn: int = 0
    proposed: bool = False

    @property
    def rests(self) -> bool:
        return self.ignored >= IGNORED and self.turn % TURN != 0


class RecyclingDrafter(BaseDrafter):
    """Proposes the remembered successors of the newest token, their successors, and so on, likeliest ways first.

    Texts of one scope have a memory of their own. With a temperature successors are ranked with the target's noise.

    vocabulary_size: the target's
    """

    name = "recycling"
    free = True
    requires = Requirements(top_rows=SUCCESSORS)

    def __init__(self, vocabulary_size: int) -> None:
        self._size = vocabulary_size
        # whoever uses this machine is served first, and then a bill is right before the first text
        self._memories: OrderedDict[str, Successors] = OrderedDict({"": Successors(vocabulary_size)})
        self._texts: dict[int, _Text] = {}

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        memory = self._memories.get(sequence.scope)
        if memory is None:
            memory = self._memories[sequence.scope] = Successors(self._size)
        self._memories.move_to_end(sequence.scope)
        if len(self._memories) > MOST_SCOPES:
            self._memories.popitem(last=False)
        memory.learn_text(sequence.tokens)
        self._texts[sequence.id] = _Text(memory)

    def end(self, sequence: SequenceView) -> None:
        self._texts.pop(sequence.id, None)

    def observe(self, sequence: SequenceView, draft: Draft, verdict: Verdict, rows: Rows) -> None:
        text, commits = self._texts[sequence.id], verdict.commits
        rests, memory, read = text.rests, text.memory, 0
        self._count(text, draft)
        if rests or not commits:
            return
        row, token = 0, sequence.tokens[-1 - len(commits)]
        for commit in commits:
            if read < MOST_READ and not memory.knows(token, commit.token):
                memory.learn_row(token, rows, row)
                read += 1
            if commit.node is None:
                break
            row, token = commit.node + 1, commit.token

    def extend(self, frontier: Sequence[Growth]) -> None:
        for growth in frontier:
            text = self._texts[growth.sequence.id]
            if len(growth.draft) == 0 and not text.rests:
                self._grow(growth, text.memory)
                text.proposed = len(growth.draft) > 0

    def memory(self) -> int:
        return sum([one.nbytes for one in self._memories.values()])

    def close(self) -> None:
        self._memories.clear()

    def _count(self, text: _Text, draft: Draft) -> None:
        """Whether a round that is over had any use for a proposal."""
        if draft.sources and draft.sources[0] == self.name:
            text.ignored = 0
        elif text.proposed:
            text.ignored += 1
        text.proposed = False
        text.turn = text.turn + 1 if text.ignored >= IGNORED else 0

    def _grow(self, growth: Growth, memory: Successors) -> None:
        """Best first: of all nodes that are there, the successors of the one that is reached most often."""
        draft, length = growth.draft, len(growth.sequence.tokens)
        ways = [(-1.0, ROOT, growth.sequence.tokens[-1], 0)]
        for _ in range(MOST_LEVELS):
            if not ways or len(draft) >= growth.limit:
                return
            reached, node, token, depth = heappop(ways)
            tokens, margins = self._ranked(growth, memory, token, length + depth)
            for rank, successor in enumerate(tokens):
                likely = -reached * PRIOR[rank]
                if likely < LEAST or len(draft) >= growth.limit:
                    break
                bucket = _bucket(margins[rank], rank)
                child = draft.add(successor, node, source=self.name, estimate=PRIOR[rank], bucket=bucket)
                if rank == 0 and node == draft.tip:
                    draft.tip = child
                heappush(ways, (-likely, child, successor, depth + 1))

    def _ranked(self, growth: Growth, memory: Successors, token: int, position: int) -> tuple[list[int], list[float]]:
        """Successors as the target's noise would have them, best first, and how far apart they are."""
        count = min(growth.siblings, len(PRIOR))
        tokens: list[int] = memory.ids[token].tolist()
        if tokens[0] < 0:
            return [], []
        known = tokens.index(-1) if tokens[-1] < 0 else SUCCESSORS
        sampler = growth.sequence.sampler
        if known == 1:
            return tokens[:1], [UNKNOWN]
        if sampler.params.temperature == 0:
            margins: list[float] = memory.behind[token].tolist()
        else:
            ranked, scores = sampler.rank(memory.ids[token, :known], -memory.behind[token, :known], position)
            tokens, margins = ranked.tolist(), (scores[0] - scores).tolist()
        margins[0] = margins[1] if len(margins) > 1 else CERTAIN
        return tokens[: min(count, known)], margins[:count]


def _bucket(margin: float, rank: int) -> int:
    """Feature bucket: rank, and by how much the best leads or how far behind it another is, in steps that double."""
    return (min(int(margin * 4), 64) if margin < 16 else 64).bit_length() + 8 * rank
