"""Suffix lookup: text that was here before tends to go on as it did.

Prompt lookup decoding (Saxena 2023) with the match extended to its full length and its candidates voting, in
the spirit of suffix decoding (Oliaro et al. 2024, arXiv 2411.04975). No model, no weights, no training.
"""

from collections.abc import Sequence

from slipstream.core.protocols import Growth, SequenceView
from slipstream.draft.base import BaseDrafter

MAX_MATCH = 32
"""Longer matches count as this long."""
MAX_CANDIDATES = 16
"""Occurrences remembered for one n-gram: the newest."""


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


class SuffixDrafter(BaseDrafter):
    """Proposes what followed the longest earlier occurrence of the newest tokens.

    Occurrences vote on each next token with the length of their match, the newest winning ties; those that
    disagree with the vote drop out. The draft is as long as the match: two tokens in common say little.
    """

    name = "suffix"
    free = True

    def __init__(self) -> None:
        self._indices: dict[int, SuffixIndex] = {}

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        self._indices[sequence.id] = SuffixIndex(sequence.tokens)

    def end(self, sequence: SequenceView) -> None:
        self._indices.pop(sequence.id, None)

    def extend(self, frontier: Sequence[Growth]) -> None:
        for growth in frontier:
            if len(growth.draft) == 0:
                self._propose(growth)

    def _propose(self, growth: Growth) -> None:
        index = self._indices[growth.sequence.id]
        index.update()
        voters = index.matches()
        longest = max((length for _, length in voters), default=0)
        text = list(index.tokens[-1:])  # what a place beyond the end continues with: the draft itself
        for step in range(min(growth.limit, longest)):
            token, share, voters = _vote(voters, index.tokens, text[1:], step)
            growth.draft.append(token, source=self.name, bucket=_bucket(longest, share))
            text.append(token)


def _vote(
    voters: list[tuple[int, int]], tokens: Sequence[int], drafted: Sequence[int], step: int
) -> tuple[int, float, list[tuple[int, int]]]:
    """The next token, its share of the votes, and the occurrences that voted for it."""
    votes: dict[int, float] = {}
    ballots = []
    for order, (place, length) in enumerate(voters):
        at = place + step
        token = tokens[at] if at < len(tokens) else drafted[at - len(tokens)]
        # squared, so that one long match outweighs several short ones; the order breaks ties for the newest
        votes[token] = votes.get(token, 0.0) + length**2 + order * 1e-6
        ballots.append(token)
    winner = max(votes, key=votes.__getitem__)
    remaining = [voter for voter, ballot in zip(voters, ballots, strict=True) if ballot == winner]
    return winner, votes[winner] / sum(votes.values()), remaining


def _bucket(match_length: int, share: float) -> int:
    """Feature bucket: match length in powers of two, and whether the occurrences agree."""
    return 2 * match_length.bit_length() + (share > 0.99)
