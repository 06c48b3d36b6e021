"""A text that is expected to come out, with changes: the file that is edited, the answer of the last time.

The user hands it over beside the prompt (OpenAI's `prediction`). Prompt lookup (Saxena 2023) with one difference: there
is one place in the prediction at which the text is, and it moves along with the text. Where the text departs from the
prediction the place is looked for again, near by first.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from slipstream.core.protocols import Growth, SequenceView
from slipstream.draft.base import TextDrafter

MAX_MATCH = 16
"""Longer runs in common count as this long."""
NEAR = 256
"""Tokens before and after the place of the last agreement within which a single token in common is enough."""
MOST_FAR = 64
"""Places farther away, where two tokens must agree, that are looked at: the nearest."""
ESTIMATES = {0: 0.3, 1: 0.5, 2: 0.8, 3: 0.9, 4: 0.95, 5: 0.97}
"""P(token accepted) by how many powers of two of tokens agree so far, until the text itself tells."""


class Alignment:
    """Where in a prediction a growing text is.

    place: index of the predicted token that should come next
    run:   tokens before `place` that agree with the newest ones of the text, up to `MAX_MATCH`

    >>> alignment = Alignment([5, 6, 7, 8, 9])
    >>> for token in (5, 1, 8):
    ...     alignment.advance(token)
    >>> alignment.place, alignment.run
    (4, 1)
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self.place = 0
        self.run = 0
        self._prediction = prediction
        self._places: dict[int, list[int]] = {}
        self._pairs: dict[tuple[int, int], list[int]] = {}
        for place, token in enumerate(prediction):
            self._places.setdefault(token, []).append(place)
        for place, pair in enumerate(pairwise(prediction), 1):
            self._pairs.setdefault(pair, []).append(place)
        self._text: list[int] = []
        self._anchor = 0

    def advance(self, token: int) -> None:
        """The text goes on with `token`."""
        self._text = [*self._text[1 - MAX_MATCH :], token]
        prediction = self._prediction
        if self.place < len(prediction) and prediction[self.place] == token:
            self.place, self.run = self.place + 1, min(self.run + 1, MAX_MATCH)
            if self.run > 1:
                self._anchor = self.place
                return
        else:
            self._anchor = self.place if self.run > 1 else self._anchor
            self.place, self.run = self.place + 1, 0  # a token in place of another one, until something agrees
        self._look_around(token)

    def _look_around(self, token: int) -> None:
        """Go where the newest tokens agree with the most; of several such places to the nearest, sooner ahead."""
        best = self.run, -abs(self.place - self._anchor)
        for place in (*self._near(token), *self._far(token)):
            run, distance = self._agreement(place), place + 1 - self._anchor
            rank = run, -distance if distance >= 0 else 2 * distance
            if rank > best:
                best, self.place, self.run = rank, place + 1, run

    def _near(self, token: int) -> Sequence[int]:
        places = self._places.get(token, ())
        return places[bisect_left(places, self._anchor - NEAR) : bisect_left(places, self._anchor + NEAR)]

    def _far(self, token: int) -> Sequence[int]:
        places = self._pairs.get((self._text[-2], token), ()) if len(self._text) > 1 else ()
        middle = bisect_left(places, self._anchor)
        return places[max(middle - MOST_FAR // 2, 0) : middle + MOST_FAR // 2]

    def _agreement(self, place: int) -> int:
        """Tokens up to and with that at `place` that are the text's newest."""
        text, prediction, run = self._text, self._prediction, 0
        most = min(len(text), place + 1)
        while run < most and prediction[place - run] == text[-1 - run]:
            run += 1
        return run


class PredictionDrafter(TextDrafter):
    """Proposes how the text's prediction goes on from where the text is in it; nothing for a text without one."""

    name = "prediction"

    def __init__(self) -> None:
        self._alignments: dict[int, Alignment] = {}
        self._seen: dict[int, int] = {}

    def serves(self, sequence: SequenceView) -> bool:
        return len(sequence.prediction) > 0

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        if self.serves(sequence):
            self._alignments[sequence.id] = Alignment(sequence.prediction)
            self._seen[sequence.id] = len(sequence.tokens)

    def end(self, sequence: SequenceView) -> None:
        self._alignments.pop(sequence.id, None)
        self._seen.pop(sequence.id, None)

    def extend(self, frontier: Sequence[Growth]) -> None:
        for growth in frontier:
            alignment = self._alignments.get(growth.sequence.id)
            if alignment is not None and len(growth.draft) == 0:
                self._follow(alignment, growth.sequence)
                bucket = alignment.run.bit_length()
                for token in growth.sequence.prediction[alignment.place :][: growth.limit]:
                    growth.draft.append(token, source=self.name, estimate=ESTIMATES[bucket], bucket=bucket)

    def _follow(self, alignment: Alignment, sequence: SequenceView) -> None:
        tokens = sequence.tokens
        for index in range(self._seen[sequence.id], len(tokens)):
            alignment.advance(tokens[index])
        self._seen[sequence.id] = len(tokens)
