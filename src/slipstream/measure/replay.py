"""What a drafter would have done with drafts of another length, from one answer that was recorded.

A draft model shares the target's noise, so what it proposes at a place depends on the text before that place alone:
whether it is right there is a property of the answer, not of the round. One answer with drafts of a fixed length
tells it for nearly every token, and with it the rounds of any other length. Only tokens that no draft reached (those
after a draft that was right to its end) are unknown; they are drawn from what followed known ones.

A drafter that looks at committed tokens only is played again on the answer's ids, which is exact.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.protocols import Drafter, Growth
from slipstream.core.sampling import Sampler
from slipstream.core.tree import Draft
from slipstream.measure.records import Round

DRAWS = 8
"""Times that unknown places are drawn; averages over so many are steady enough for a second digit."""


class Played(NamedTuple):
    """One round of a replay.

    drafted, committed: as in the records
    steps:              draft steps that cost something
    lag:                tokens that the draft model reads in the first of them
    context:            tokens before the round
    """

    drafted: int
    committed: int
    steps: int
    lag: int
    context: int

    @property
    def rows(self) -> int:
        """Rows of the round's forward."""
        return self.drafted + 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Whether the draft model was right, for each token of an answer; None where no draft reached.

    start: tokens before the first of them
    """

    start: int
    right: tuple[bool | None, ...]

    def drawn(self, seed: int) -> NDArray[np.bool_]:
        """The trace without gaps: each is drawn with the probability that known places had after the same outcome."""
        after_right, after_wrong = self._following(True), self._following(False)
        chances = np.random.default_rng(seed).random(len(self.right))
        outcomes: list[bool] = []
        for known, chance in zip(self.right, chances, strict=True):
            before = outcomes[-1] if outcomes else True
            outcomes.append(bool(chance < (after_right if before else after_wrong)) if known is None else known)
        return np.asarray(outcomes, np.bool_)

    def _following(self, outcome: bool) -> float:
        """P(right) after a place with this outcome, of the places that are known; a few are taken to be like all."""
        known = [right for right in self.right if right is not None]
        share = (1 + sum(known)) / (2 + len(known))
        seen = [later for earlier, later in pairwise(self.right) if earlier is outcome and later is not None]
        return (2 * share + sum(seen)) / (2 + len(seen))


def trace_of(rounds: Sequence[Round]) -> Trace:
    """The trace of an answer whose drafts were chains of one draft model."""
    right: list[bool | None] = []
    for one in rounds:
        right += [True] * one.accepted
        if one.committed > one.accepted:  # else the answer ended with an accepted token
            right.append(False if one.tested > one.accepted else None)
    return Trace(rounds[0].context if rounds else 0, tuple(right))


def replay(right: Sequence[bool] | NDArray[np.bool_], length: int, start: int = 0) -> list[Played]:
    """The rounds of an answer with drafts of a fixed length, given where the draft model is right."""
    rounds, place, lag = [], 0, 1
    while place < len(right):
        drafted = min(length, len(right) - place - 1)
        accepted = 0
        while accepted < drafted and right[place + accepted]:
            accepted += 1
        rounds.append(Played(drafted, accepted + 1, drafted, lag, start + place))
        # the draft model has read what it drafted but for its last token, and without a draft nothing
        lag = accepted + 1 - min(drafted - 1, accepted) if drafted else lag + 1
        place += accepted + 1
    return rounds


def replays(trace: Trace, length: int, draws: int = DRAWS) -> list[list[Played]]:
    """`replay` for several ways to fill the gaps; one where there are none."""
    count = draws if None in trace.right else 1
    return [replay(trace.drawn(seed), length, trace.start) for seed in range(count)]


def play_again(drafter: Drafter, prompt: Sequence[int], answer: Sequence[int], length: int) -> list[Played]:
    """The rounds of an answer with a drafter that knows committed tokens only and drafts at most `length` of them."""
    view = _View(list(prompt), length)
    drafter.begin(view, 0)
    rounds, place = [], 0
    while place < len(answer):
        draft, limit = Draft(), min(length, len(answer) - place - 1)
        if limit:
            drafter.extend([Growth(view, draft, limit)])
        accepted = sum(1 for _ in _agreeing(draft.tokens, answer[place:]))
        rounds.append(Played(len(draft), accepted + 1, 0, 0, len(view.tokens)))
        view.tokens += answer[place : place + accepted + 1]
        place += accepted + 1
    drafter.end(view)
    return rounds


def _agreeing(one: Sequence[int], other: Sequence[int]) -> Iterator[int]:
    """The common beginning."""
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            return
        yield ours


class _View:
    """What a free drafter may know of a sequence; `core.protocols.SequenceView`."""

    id = -1

    def __init__(self, tokens: list[int], draft_limit: int) -> None:
        self.tokens = tokens
        self.draft_limit = draft_limit

    @property
    def sampler(self) -> Sampler:
        raise AssertionError("a drafter that knows committed tokens only has no use for noise")
