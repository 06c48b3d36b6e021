"""From tokens to text that may be shown, and the one place that decides where a generation ends."""

import codecs
from collections.abc import Collection, Sequence

from slipstream.core.protocols import Emission, Vocabulary
from slipstream.errors import UsageError


class TextStream:
    """Decodes incrementally and ends at an end token, a stop string or the token budget.

    Text is held back while it is half a character or could still become a stop string. The ids of a
    generation include the token that completed the stop string; its text leaves the string out.

    stop:       strings, found across token borders
    max_tokens: tokens this generation may have; `finish_reason` is then "length", else "stop"
    spelled:    control tokens whose names are part of the text
    """

    def __init__(
        self, vocabulary: Vocabulary, stop: Sequence[str], max_tokens: int, spelled: Collection[int] = ()
    ) -> None:
        if any(not string for string in stop):
            raise UsageError("A stop string must not be empty.")
        self._vocabulary = vocabulary
        self._end_tokens = vocabulary.end_tokens
        self._stop = tuple(stop)
        self._names = {token: vocabulary.token_name(token).encode() for token in spelled}
        self._left = max_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def tokens_left(self) -> int:
        return self._left

    def push(self, token: int) -> Emission:
        """Take the next token of the generation."""
        self._left -= 1
        if token in self._end_tokens:
            return Emission(self.flush(), "stop")
        self._held += self._decoder.decode(self._names.get(token) or self._vocabulary.token_bytes(token))
        cut = self._stop_position()
        if cut is not None:
            text, self._held = self._held[:cut], ""
            self._decoder.reset()
            return Emission(text, "stop")
        if self._left == 0:
            return Emission(self.flush(), "length")
        return Emission(self._release(), None)

    def flush(self) -> str:
        """All text that is still held back; half a character becomes U+FFFD. Nothing follows after this."""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        cut = min((text.find(string) for string in self._stop if string in text), default=len(text))
        return text[:cut]

    def _stop_position(self) -> int | None:
        positions = [self._held.find(string) for string in self._stop if string in self._held]
        return min(positions, default=None)

    def _release(self) -> str:
        """Everything but the longest tail that begins a stop string."""
        keep = max((_overlap(self._held, string) for string in self._stop), default=0)
        safe = len(self._held) - keep
        text, self._held = self._held[:safe], self._held[safe:]
        return text


def _overlap(text: str, string: str) -> int:
    """Length of the longest proper prefix of `string` that ends `text`."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
