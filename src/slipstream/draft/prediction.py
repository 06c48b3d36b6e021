"""A text that is expected to come out, with changes: the file that is edited, the answer of the last time.

The user hands it over beside the prompt (OpenAI's `prediction`). Prompt lookup (Saxena 2023) with two differences.
There is one place in the prediction at which the text is, and it moves along with the text; where the text departs from
the prediction the place is looked for again, near by first. And the place is one among the prediction's bytes, not its
tokens, because models do not always spell a text as a tokenizer does.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from slipstream.core.protocols import Growth, SequenceView, Vocabulary
from slipstream.draft.base import TextDrafter

MAX_MATCH = 16
"""Tokens that are compared when a place is looked for; longer runs in common count as this long there."""
LONGEST_RUN = 64
"""Longer agreements count as this long."""
NEAR = 256
"""Tokens before and after the place of the last agreement within which a single token in common is enough."""
MOST_FAR = 64
"""Places farther away, where two tokens must agree, that are looked at: the nearest."""
ESTIMATES = (0.1, 0.4, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98)
"""P(token accepted) by how many bits the number of tokens has that agree so far, until the text itself tells."""
REST = len(ESTIMATES)
"""Bucket of tokens that spell the rest of a predicted one which the text began with another token."""
REST_ESTIMATE = 0.7


def _number(token: int) -> bytes:
    """A spelling for tokens of which nothing is known: none is the beginning of another."""
    return token.to_bytes(4, "little")


class Alignment:
    """Where in a prediction a growing text is.

    place: index of the predicted token that should come next, or of which the text has `begun` a part
    begun: bytes of that token that the text has; 0 where it has not begun it
    run:   tokens of the text that agree with what is before the place, up to `LONGEST_RUN`
    spell: bytes of a token

    >>> alignment = Alignment([5, 6, 7, 8, 9])
    >>> for token in (5, 1, 8):
    ...     alignment.advance(token)
    >>> alignment.place, alignment.run
    (4, 1)
    """

    def __init__(self, prediction: Sequence[int], spell: Callable[[int], bytes] = _number) -> None:
        self.run = 0
        self._prediction, self._spell = prediction, spell
        pieces = [spell(token) for token in prediction]
        self._bytes = b"".join(pieces)
        self._starts = list(accumulate(map(len, pieces), initial=0))
        """Of each predicted token, and the end of all."""
        self._at = 0
        self._places: dict[int, list[int]] = {}
        self._pairs: dict[tuple[int, int], list[int]] = {}
        for place, token in enumerate(prediction):
            self._places.setdefault(token, []).append(place)
        for place, pair in enumerate(pairwise(prediction), 1):
            self._pairs.setdefault(pair, []).append(place)
        self._text: list[int] = []
        self._anchor = 0

    @property
    def place(self) -> int:
        return bisect_right(self._starts, self._at) - 1

    @property
    def begun(self) -> int:
        return self._at - self._starts[self.place]

    @property
    def rest(self) -> bytes:
        """What the text lacks of a predicted token that it has begun; empty where it has begun none."""
        return self._bytes[self._at : self._starts[self.place + 1]] if self.begun else b""

    def advance(self, token: int) -> None:
        """The text goes on with `token`."""
        self._text = [*self._text[1 - MAX_MATCH :], token]
        piece = self._spell(token)
        if piece and self._bytes.startswith(piece, self._at):
            self._at, self.run = self._at + len(piece), min(self.run + 1, LONGEST_RUN)
            if self.run > 1:
                self._anchor = self.place
                return
        else:
            self._anchor = self.place if self.run > 1 else self._anchor
            self._go(self.place + 1)  # a token in place of another one, until something agrees
            self.run = 0
        self._look_around(token)

    def _go(self, place: int) -> None:
        self._at = self._starts[min(place, len(self._prediction))]

    def _look_around(self, token: int) -> None:
        """Go where the newest tokens agree with the most; of several such places to the nearest, sooner ahead."""
        best = self.run, -abs(self.place - self._anchor)
        for place in (*self._near(token), *self._far(token)):
            run, distance = self._agreement(place), place + 1 - self._anchor
            rank = run, -distance if distance >= 0 else 2 * distance
            if rank > best:
                best, self.run = rank, run
                self._go(place + 1)

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
    """Proposes how the text's prediction goes on from where the text is in it; nothing for a text without one.

    vocabulary: of the target, None where only tokens are compared
    """

    name = "prediction"

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        self._vocabulary = vocabulary
        self._alignments: dict[int, Alignment] = {}
        self._seen: dict[int, int] = {}

    def serves(self, sequence: SequenceView) -> bool:
        return len(sequence.prediction) > 0

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        if self.serves(sequence):
            spell = _number if self._vocabulary is None else self._spelling
            self._alignments[sequence.id] = Alignment(sequence.prediction, spell)
            self._seen[sequence.id] = len(sequence.tokens)

    def end(self, sequence: SequenceView) -> None:
        self._alignments.pop(sequence.id, None)
        self._seen.pop(sequence.id, None)

    def extend(self, frontier: Sequence[Growth]) -> None:
        for growth in frontier:
            alignment = self._alignments.get(growth.sequence.id)
            if alignment is not None and len(growth.draft) == 0:
                self._follow(alignment, growth.sequence)
                self._propose(alignment, growth)

    def _propose(self, alignment: Alignment, growth: Growth) -> None:
        """The rest of a token that has been begun, and the tokens after it.

        That a token of the draft is tested means that those before it agreed: its run is longer by them.
        """
        rest, place = self._rest(alignment), alignment.place + (alignment.begun > 0)
        for token in rest[: growth.limit]:
            growth.draft.append(token, source=self.name, estimate=REST_ESTIMATE, bucket=REST)
        if alignment.begun and not rest:
            return
        run, left = alignment.run + len(rest), max(growth.limit - len(rest), 0)
        for depth, token in enumerate(growth.sequence.prediction[place : place + left]):
            bucket = min(run + depth, LONGEST_RUN).bit_length()
            growth.draft.append(token, source=self.name, estimate=ESTIMATES[bucket], bucket=bucket)

    def _rest(self, alignment: Alignment) -> Sequence[int]:
        """Tokens that spell what is missing of a predicted token; none where that cannot be spelt alone."""
        rest = alignment.rest
        if not rest or self._vocabulary is None:
            return ()
        try:
            tokens = self._vocabulary.tokenize(rest.decode(), add_bos=False, parse_special=False)
        except UnicodeDecodeError:
            return ()
        return tokens if b"".join(map(self._spelling, tokens)) == rest else ()

    def _spelling(self, token: int) -> bytes:
        """Control tokens stand for no text: theirs is like no other."""
        assert self._vocabulary is not None
        return self._vocabulary.token_bytes(token) or b"\0" + _number(token)

    def _follow(self, alignment: Alignment, sequence: SequenceView) -> None:
        tokens = sequence.tokens
        for index in range(self._seen[sequence.id], len(tokens)):
            alignment.advance(tokens[index])
        self._seen[sequence.id] = len(tokens)
