"""Text and bytes, as far as they are the same for every tokenizer."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from slipstream.errors import UsageError


def encoded(text: str) -> bytes:
    """UTF-8 of a text. Raises UsageError for half a surrogate pair, which strings may contain and UTF-8 may not."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"The text is not valid Unicode at character {error.start + 1} ({text[error.start]!a}); "
            "save it as UTF-8 and try again."
        ) from None


class Detokenizer(ABC):
    """A vocabulary that gives texts back."""

    @property
    @abstractmethod
    def adds_space(self) -> bool:
        """Whether a text's first word gets a space in front (most SentencePiece vocabularies)."""

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The bytes the token stands for, perhaps part of a UTF-8 character; empty for control tokens."""

    def least_tokens(self, text: str, *, parse_special: bool) -> int:
        """A number of tokens that `text` has at least, found much faster than the tokens; 0 where nothing is known."""
        return 0

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text that `tokenize` gave these tokens for, without control tokens.

        The space that the vocabulary put before the first word is taken away again. Text that goes
        on after other tokens must not lose it: join `token_bytes` there.
        """
        data = b"".join(map(self.token_bytes, tokens))
        if self.adds_space:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")
