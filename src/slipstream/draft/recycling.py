"""Token recycling: what the target thought might follow a token is remembered, and proposed when the token comes again.

Luo et al. 2024 (arXiv 2408.08696): for every token the likeliest successors by the last row of logits that was computed
for it. Verification computes such rows anyway, so the memory is free but for looking at them. Unlike there, what
followed a pair of tokens is remembered too, and comes first: it is right three times as often as a single token's.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from slipstream.core.noise import Ids
from slipstream.core.protocols import Growth, Logits, Requirements, Rows, SequenceView
from slipstream.core.tree import ROOT, Draft
from slipstream.core.verify import Verdict
from slipstream.draft.base import BaseDrafter

SUCCESSORS = 6
"""Remembered of each token."""
MOST_READ = 3
"""Rows of a round that are looked at: that takes some ten microseconds each."""
MOST_SCOPES = 8
"""Memories that are kept at once, those that were used last."""
PAIRS = 1 << 15
"""Pairs of tokens that are remembered."""
PAIR_FACTOR = 0x9E3779B1
PRIOR, PAIR_PRIOR = (0.2, 0.08, 0.05), (0.5, 0.12, 0.06)
"""P(a successor is right) by rank, by one token and by two, until the texts tell; more are not proposed."""
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
    """The likeliest successors of each of so many contexts.

    ids:    [contexts, SUCCESSORS] likeliest first, -1 for none
    behind: [contexts, SUCCESSORS] float16, how far their logits are below the first one's
    """

    def __init__(self, contexts: int) -> None:
        self.ids = np.full((contexts, SUCCESSORS), -1, np.int32)
        self.behind = np.full((contexts, SUCCESSORS), np.inf, np.float16)

    def put(self, context: int, ids: Ids, logits: Logits) -> None:
        """What a row of logits says: its largest, likeliest first."""
        self.ids[context, : len(ids)] = ids
        self.behind[context, : len(ids)] = logits[0] - logits

    def put_text(self, contexts: Ids, following: Ids) -> None:
        """What follows in a text, of which nothing else is known."""
        self.ids[contexts] = -1
        self.ids[contexts, 0] = following
        self.behind[contexts, 0] = 0

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.behind.nbytes


class Memory:
    """What followed each token, and each pair of tokens: a pair says much more, where it has been seen.

    pairs: by hash; keys: [PAIRS] the pair that a place is taken by, -1 for none. A new pair takes an old one's place
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.tokens, self.pairs = Successors(vocabulary_size), Successors(PAIRS)
        self.keys = np.full(PAIRS, -1, np.int64)

    def learn_text(self, tokens: Sequence[int]) -> None:
        """A prompt, where nothing is known yet."""
        text = np.asarray(tokens, np.int64)
        unknown = self.tokens.ids[text[:-1], 0] < 0
        self.tokens.put_text(text[:-1][unknown], text[1:][unknown])
        keys, following = text[:-2] << 32 | text[1:-1], text[2:]
        places = keys * PAIR_FACTOR >> 20 & PAIRS - 1
        new = self.keys[places] != keys
        self.pairs.put_text(places[new], following[new])
        self.keys[places[new]] = keys[new]

    def learn_row(self, before: int, token: int, rows: Rows, row: int) -> None:
        """The row of logits after two tokens; `before` is -1 at a text's beginning."""
        ids, logits = rows.top(row, SUCCESSORS)
        if len(ids):
            self.tokens.put(token, ids, logits)
            place, key = _place(before, token)
            self.pairs.put(place, ids, logits)
            self.keys[place] = key

    def find(self, before: int, token: int) -> tuple[Successors, int]:
        """Where the successors of two tokens are: the pair's, else the token's."""
        place, key = _place(before, token)
        return (self.pairs, place) if self.keys[place] == key else (self.tokens, token)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + self.pairs.nbytes + self.keys.nbytes


def _place(before: int, token: int) -> tuple[int, int]:
    """Of a pair in the table, and its key."""
    key = before << 32 | token
    return key * PAIR_FACTOR >> 20 & PAIRS - 1, key


@dataclass(slots=True)
class _Text:
    """A text that is served. ignored: proposals in a row that were not verified; turn: rounds since it had enough."""

    memory: Memory
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
        self._memories: OrderedDict[str, Memory] = OrderedDict({"": Memory(vocabulary_size)})
        self._texts: dict[int, _Text] = {}

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        memory = self._memories.get(sequence.scope)
        if memory is None:
            memory = self._memories[sequence.scope] = Memory(self._size)
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
        start = len(sequence.tokens) - len(commits) - 1
        row, token, before = 0, sequence.tokens[start], sequence.tokens[start - 1] if start else -1
        for commit in commits:
            successors, context = memory.find(before, token)
            if read < MOST_READ and (successors is memory.tokens or successors.ids[context, 0] != commit.token):
                memory.learn_row(before, token, rows, row)
                read += 1
            if commit.node is None:
                break
            row, before, token = commit.node + 1, token, commit.token

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

    def _grow(self, growth: Growth, memory: Memory) -> None:
        """Best first: of all nodes that are there, the successors of the one that is reached most often."""
        draft, tokens = growth.draft, growth.sequence.tokens
        ways = [(-1.0, ROOT, tokens[-2] if len(tokens) > 1 else -1, tokens[-1], 0)]
        for _ in range(MOST_LEVELS):
            if not ways or len(draft) >= growth.limit:
                return
            reached, node, before, token, depth = heappop(ways)
            successors, context = memory.find(before, token)
            by_pair = successors is memory.pairs
            prior = PAIR_PRIOR if by_pair else PRIOR
            found = self._ranked(growth, successors, context, len(tokens) + depth)
            for rank, (successor, margin) in enumerate(found):
                likely = -reached * prior[rank]
                if likely < LEAST or len(draft) >= growth.limit:
                    break
                bucket = _bucket(margin, rank, by_pair=by_pair)
                child = draft.add(successor, node, source=self.name, estimate=prior[rank], bucket=bucket)
                if rank == 0 and node == draft.tip:
                    draft.tip = child
                heappush(ways, (-likely, child, token, successor, depth + 1))

    def _ranked(self, growth: Growth, successors: Successors, context: int, position: int) -> list[tuple[int, float]]:
        """Successors as the target's noise would have them, best first, and how far apart they are."""
        tokens: list[int] = successors.ids[context].tolist()
        if tokens[0] < 0:
            return []
        known = tokens.index(-1) if tokens[-1] < 0 else SUCCESSORS
        if known == 1:
            return [(tokens[0], UNKNOWN)]
        sampler = growth.sequence.sampler
        if sampler.params.temperature == 0:
            margins: list[float] = successors.behind[context].tolist()
        else:
            behind = successors.behind[context, :known]
            ranked, scores = sampler.rank(successors.ids[context, :known], -behind, position)
            tokens, margins = ranked.tolist(), (scores[0] - scores).tolist()
        margins[0] = margins[1] if len(margins) > 1 else CERTAIN
        return list(zip(tokens, margins, strict=True))[: min(growth.siblings, len(PRIOR), known)]


def _bucket(margin: float, rank: int, *, by_pair: bool) -> int:
    """Feature bucket: rank, by how much the best leads or how far behind it another is, and how much is known."""
    return (min(int(margin * 4), 64) if margin < 16 else 64).bit_length() + 8 * (rank + 4 * by_pair)
