"""One sequence of a llama.cpp context."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slipstream.errors import ContextLimitError

if TYPE_CHECKING:
    from slipstream.runtime.llamacpp.model import LlamaCppModel

UNKNOWN = -1
"""Rows in the library's cache after something failed half-way."""


class LlamaCppSession:
    """Implements `core.protocols.Session`.

    The library's cache may hold more than is committed: rows of the last forward stay there until
    `settle` takes them out, which the next forward does first. So whatever happens between a forward
    and its commit, `length` is the truth. A model that cannot take rows out (recurrent) is cleared and
    fed its committed tokens again: slow, but nothing that was not committed ever shows.
    """

    def __init__(self, model: "LlamaCppModel", sequence: int) -> None:
        self.sequence = sequence
        self._model = model
        self._tokens: list[int] = []
        self._computed: list[int] = []
        self._cached = 0

    @property
    def length(self) -> int:
        """Committed tokens in the KV cache."""
        return len(self._tokens)

    @property
    def held(self) -> object | None:
        """Never anything: llama.cpp has no layer subsets."""
        return None

    @property
    def is_open(self) -> bool:
        return self.sequence >= 0 and self._model.is_open

    def belongs_to(self, model: "LlamaCppModel") -> bool:
        return self._model is model

    def commit(self, path: Sequence[int]) -> None:
        """Keep these rows of the last forward: the first `len(path)`, as llama.cpp has chains only."""
        assert list(path) == list(range(len(path))), f"a chain commits rows 0, 1, ...; not {list(path)}"
        assert len(path) <= len(self._computed), f"{len(path)} rows to commit of {len(self._computed)}"
        self._tokens += self._computed[: len(path)]
        self._computed = []

    def hold(self, path: Sequence[int]) -> None:
        """llama.cpp has no layer subsets; `Capabilities.layer_subsets` says so."""
        raise AssertionError("the llama.cpp runtime has no layer subsets")

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` committed tokens.

        Raises RuntimeUnavailableError if the model cannot take tokens back; 0 always works.
        """
        assert 0 <= length <= self.length, f"cannot keep {length} of {self.length} tokens"
        if 0 < length < self.length:
            self._model.require_rollback()
        self._computed = []
        del self._tokens[length:]
        self.settle()

    def reachable(self, length: int) -> int:
        """`length`, or 0 where the model cannot take tokens back."""
        assert 0 <= length <= self.length, f"{length} of {self.length} tokens"
        return length if length == self.length or self._model.capabilities.rollback else 0

    def fork(self, length: int) -> "LlamaCppSession":
        """A new session that begins with the first `length` tokens of this one.

        Raises RuntimeUnavailableError if all sessions are in use, or if `length` is neither 0 nor all
        and the model cannot take tokens back.
        """
        assert 0 <= length <= self.length, f"cannot fork {length} of {self.length} tokens"
        if 0 < length < self.length:
            self._model.require_rollback()
        other = self._model.open_session()
        if length:
            self._model.copy_sequence(self.sequence, other.sequence)
            other._tokens, other._cached = self._tokens[:length], self._cached
            other.settle()
        return other

    def close(self) -> None:
        """Give the KV cache back; closing twice is harmless."""
        if self.is_open:
            self._model.close_session(self)
        self.sequence = -1
        self._tokens, self._computed, self._cached = [], [], 0

    def begin(self, tokens: Sequence[int]) -> None:
        """The model is about to compute these rows after the committed tokens.

        Raises ContextLimitError if they do not fit.
        """
        assert self.is_open, "the session is closed"
        self.settle()
        if self.length + len(tokens) > self._model.context_length:
            raise ContextLimitError(
                f"The context is full: it holds {self._model.context_length} tokens, {self.length} are in use "
                f"and {len(tokens)} more are needed; shorten the text or load the model with a longer context."
            )

    def computing(self, tokens: Sequence[int]) -> None:
        """From here on the cache may hold any part of these rows."""
        self._cached = self.length + len(tokens)

    def computed(self, tokens: Sequence[int]) -> None:
        """The forward succeeded: these rows can be committed."""
        self._computed = list(tokens)

    def settle(self) -> None:
        """Take everything out of the library's cache that is not committed."""
        self._computed = []
        if self._cached > self.length and self._model.keep_first(self.sequence, self.length):
            self._cached = self.length
        if self._cached != self.length:
            self._cached = UNKNOWN
            self._model.replay(self.sequence, self._tokens)
            self._cached = self.length
