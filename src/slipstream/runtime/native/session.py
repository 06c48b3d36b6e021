"""One sequence of a native model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.runtime.native.model import NativeModel

CLOSED = -1


class NativeSession:
    """Implements `core.protocols.Session`. The cache is the C++ side's; this is a handle.

    Blocks of 64 tokens are shared by forks until one of them writes there; taking tokens back costs nothing. Layers
    with a window keep what lies before it only as long as there is room.
    """

    def __init__(self, model: "NativeModel", number: int) -> None:
        self.number = number
        self._model = model
        self._held: object | None = None

    @property
    def length(self) -> int:
        """Committed tokens in the KV cache."""
        return self._model.native.length(self.number) if self.is_open else 0

    @property
    def held(self) -> object | None:
        """What is held: another object after every `hold`, None when it is gone."""
        return self._held if self.is_open and self._model.native.used(self.number) > self.length else None

    @property
    def is_open(self) -> bool:
        return self.number != CLOSED and self._model.is_open

    def belongs_to(self, model: "NativeModel") -> bool:
        return self._model is model

    def commit(self, path: Sequence[int]) -> None:
        """Keep these rows of the last forward: row indices in its segment, each the parent of the next."""
        self._require_open()
        self._model.native.commit(self.number, path)

    def hold(self, path: Sequence[int]) -> None:
        """Keep these rows of a forward through a layer subset, for the next such forward."""
        self._require_open()
        self._model.native.hold(self.number, path)
        self._held = object()

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` committed tokens, and everything held."""
        self._require_open()
        assert 0 <= length <= self.length, f"cannot keep {length} of {self.length} tokens"
        self._model.native.truncate(self.number, length)

    def reachable(self, length: int) -> int:
        """The most committed tokens, up to `length`, that can be kept: all, or 0 where a window's are gone."""
        self._require_open()
        assert 0 <= length <= self.length, f"{length} of {self.length} tokens"
        return self._model.native.reachable(self.number, length)

    def fork(self, length: int) -> "NativeSession":
        """A new session that begins with the first `length` tokens of this one; they share memory.

        Raises RuntimeUnavailableError if all sessions are in use.
        """
        self._require_open()
        assert 0 <= length <= self.length, f"cannot fork {length} of {self.length} tokens"
        return self._model.adopt(self._model.native.fork(self.number, length))

    def close(self) -> None:
        """Give the KV cache back; closing twice is harmless."""
        if self.is_open:
            self._model.native.close(self.number)
        self.number = CLOSED

    def _require_open(self) -> None:
        assert self.is_open, "the session is closed"
