"""Suffix lookup: text that was here before, or in a corpus of earlier texts, tends to go on as it did.

Prompt lookup decoding (Saxena 2023) with the match extended to its full length and its candidates voting, in
the spirit of suffix decoding (Oliaro et al. 2024, arXiv 2411.04975). No model, no weights, no training.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from slipstream.core.protocols import Growth, Requirements, Rows, SequenceView
from slipstream.core.tree import ROOT, Draft
from slipstream.core.verify import Verdict
from slipstream.corpus import Corpus, CorpusIndex
from slipstream.draft.base import BaseDrafter

MAX_MATCH = 32
"""Longer matches count as this long."""
MAX_CANDIDATES = 16
"""Occurrences remembered for one n-gram: the newest."""
CORPUS = "corpus"
"""The source of what only the corpus proposes; acceptance is calibrated apart."""
LEAST_SHARE = 0.15
"""Of the votes that a runner-up needs to become a branch."""
SECOND = 16
"""Added to the bucket of a runner-up."""


class SuffixIndex:
    """Where each run of 2 and of 4 tokens occurred in a growing list of tokens.

    A place is the index of the token that followed. Only complete runs with a successor are entered.
    """

    LENGTHS = (4, 2)

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0

    def update(self) -> None:
        """Enter what was appended since the last time."""
        tokens = self.tokens
        for place in range(self._indexed, len(tokens)):
            for length in self.LENGTHS:
                if place >= length:
                    self._enter(tuple(tokens[place - length : place]), place)
        self._indexed = len(tokens)

    def _enter(self, run: tuple[int, ...], place: int) -> None:
        places = self._places.setdefault(run, [])
        places.append(place)
        if len(places) > MAX_CANDIDATES:
            del places[0]

    def matches(self) -> list[tuple[int, int]]:
        """(place, match length) of earlier occurrences of the newest tokens, oldest first.

        Those that share 4 tokens if there are any, else those that share 2.
        """
        for length in self.LENGTHS:
            places = self._places.get(tuple(self.tokens[-length:]), ())
            if places:
                return [(place, self._match_length(place, length)) for place in places]
        return []

    def _match_length(self, place: int, known: int) -> int:
        tokens, end = self.tokens, len(self.tokens)
        length = known
        while length < min(place, MAX_MATCH) and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length


_length = attrgetter("length")
Parties = dict[int, tuple[float, list["Voter"]]]
"""The votes for each token, and whose they are."""


class Voter(NamedTuple):
    """An earlier occurrence of the newest tokens, which votes on what comes next.

    following: tokens that came after it, one for each vote
    place:     of an occurrence in the text itself, of the token that followed; -1 for one in the corpus
    """

    length: int
    following: Sequence[int]
    place: int = -1


class SuffixDrafter(BaseDrafter):
    """Proposes what followed the longest earlier occurrence of the newest tokens, in the text or in the corpus.

    Occurrences vote on each next token with the length of their match, the newest winning ties; those that
    disagree with the vote drop out, or begin a branch where the corpus votes and the target takes trees. The draft is
    as long as the match: two tokens in common say little. Where nothing matches another drafter is asked.

    corpus:    texts that were said before; each text sees those of its own scope, and is added to them at its end
    otherwise: drafts where nothing matches; closed with this one
    """

    name = "suffix"
    free = True

    def __init__(self, corpus: Corpus | None = None, otherwise: BaseDrafter | None = None) -> None:
        self.requires = Requirements() if otherwise is None else otherwise.requires
        self._corpus, self._otherwise = corpus, otherwise
        self._indices: dict[int, SuffixIndex] = {}
        self._corpora: dict[int, CorpusIndex] = {}

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        self._indices[sequence.id] = SuffixIndex(sequence.tokens)
        if self._corpus is not None:
            self._corpora[sequence.id] = self._corpus.index(sequence.scope)
        if self._otherwise is not None:
            self._otherwise.begin(sequence, reused_length)

    def observe(self, sequence: SequenceView, draft: Draft, verdict: Verdict, rows: Rows) -> None:
        if self._otherwise is not None:
            self._otherwise.observe(sequence, draft, verdict, rows)

    def end(self, sequence: SequenceView) -> None:
        self._indices.pop(sequence.id, None)
        if self._corpus is not None and self._corpora.pop(sequence.id, None) is not None:
            self._corpus.add(sequence.scope, sequence.tokens)
        if self._otherwise is not None:
            self._otherwise.end(sequence)

    def extend(self, frontier: Sequence[Growth]) -> None:
        for growth in frontier:
            if len(growth.draft) == 0:
                self._propose(growth)
        if self._otherwise is not None:
            self._otherwise.extend([growth for growth in frontier if len(growth.draft) == 0])

    def memory(self) -> int:
        corpus = 0 if self._corpus is None else self._corpus.memory()
        return corpus + (0 if self._otherwise is None else self._otherwise.memory())

    def close(self) -> None:
        if self._corpus is not None:
            self._corpus.close()
        if self._otherwise is not None:
            self._otherwise.close()

    def _propose(self, growth: Growth) -> None:
        index = self._indices[growth.sequence.id]
        index.update()
        voters = self._voters(growth, index)
        if voters:
            _Ballot(growth, index.tokens).draw(voters)

    def _voters(self, growth: Growth, index: SuffixIndex) -> list[Voter]:
        """The corpus' first, so that the text's own win ties."""
        tokens, limit = index.tokens, growth.limit
        voters = []
        corpus = self._corpora.get(growth.sequence.id)
        if corpus is not None:
            voters = [Voter(length, some) for some, length in corpus.matches(tokens[-MAX_MATCH:], limit) if some]
        own = [Voter(length, tokens[place : place + limit], place) for place, length in index.matches()]
        return voters + own


class _Ballot:
    """Votes of a round, which become nodes of a draft."""

    def __init__(self, growth: Growth, tokens: Sequence[int]) -> None:
        self._growth, self._draft, self._tokens = growth, growth.draft, tokens
        self._branches = False
        self._branch: tuple[int, int, list[Voter], list[int]] | None = None

    def draw(self, voters: list[Voter]) -> None:
        """The main chain, and then the way of those who lost the first vote that was not clear."""
        longest = max([voter.length for voter in voters])
        # among the text's own occurrences alone branches did not pay (recorded answers, simulated time)
        self._branches = self._growth.siblings > 1 and voters[0].place < 0
        self._follow(voters, [], ROOT, min(self._growth.limit, longest))
        if self._branch is not None:
            node, length, others, drafted = self._branch
            self._branch = None
            self._follow(others, drafted, node, min(self._growth.limit - len(self._draft), length))

    def _follow(self, voters: list[Voter], drafted: list[int], node: int, most: int) -> None:
        """A chain below a node, `drafted` being the tokens on the way to it; branches leave it where votes differ."""
        draft, growth, main = self._draft, self._growth, node == ROOT
        for _ in range(most):
            if len(draft) >= growth.limit:
                return
            parties = self._parties(voters, drafted)
            if not parties:
                return
            total = sum([weight for weight, _ in parties.values()])
            token = max(parties, key=lambda one: parties[one][0])
            weight, voters = parties.pop(token)
            parent, node = node, self._add(token, node, voters, weight / total)
            if main:
                draft.tip = node
                if parties and self._branches:
                    self._second(parties, parent, total, drafted)
            drafted = [*drafted, token]

    def _second(self, parties: Parties, parent: int, total: float, drafted: list[int]) -> None:
        """The runner-up beside the winner, if it is not far behind."""
        token = max(parties, key=lambda one: parties[one][0])
        weight, voters = parties[token]
        if weight < LEAST_SHARE * total or len(self._draft) >= self._growth.limit:
            return
        node = self._add(token, parent, voters, weight / total, SECOND)
        if self._branch is None:
            self._branch = node, max([voter.length for voter in voters]) // 2, voters, [*drafted, token]

    def _add(self, token: int, parent: int, voters: list[Voter], share: float, second: int = 0) -> int:
        best = max(voters, key=_length)
        source = SuffixDrafter.name if best.place >= 0 else CORPUS
        bucket = _bucket(best.length, share) + second
        return self._draft.add(token, parent, source=source, estimate=0.5 * (share if second else 1), bucket=bucket)

    def _parties(self, voters: list[Voter], drafted: list[int]) -> Parties:
        """The votes for each next token, and whose they are."""
        step, end = len(drafted), len(self._tokens)
        parties: Parties = {}
        for order, voter in enumerate(voters):
            length, following, place = voter
            if step < len(following):
                token = following[step]
            elif place >= 0:  # beyond the text's end comes what was drafted
                token = drafted[place + step - end]
            else:
                continue
            # squared, so that one long match outweighs several short ones; the order breaks ties for the newest
            weight = length * length + order * 1e-6
            before, party = parties.get(token, (0.0, []))
            party.append(voter)
            parties[token] = before + weight, party
        return parties


def _bucket(match_length: int, share: float) -> int:
    """Feature bucket: match length in powers of two, and whether the occurrences agree."""
    return 2 * match_length.bit_length() + (share > 0.99)
