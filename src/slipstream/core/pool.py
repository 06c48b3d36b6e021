"""Sessions that outlive a sequence, so that the next prompt reuses the KV cache of a common prefix."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.feed import common_prefix
from slipstream.core.protocols import Model, Session


@dataclass(slots=True, eq=False)
class Slot:
    """A session and the tokens in its KV cache (`tokens[:session.length]` is what it holds)."""

    session: Session
    tokens: list[int] = field(default_factory=list)

    def keep(self, length: int) -> None:
        """Forget all but the first `length` tokens, and rows of an interrupted forward with them."""
        if length < self.session.length:
            self.session.truncate(length)
        del self.tokens[length:]


class SessionPool:
    """Idle sessions of one model, at most as many as were ever in use at once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._idle: list[Slot] = []

    def acquire(self, prompt: Sequence[int]) -> Slot:
        """A session whose KV cache holds a prefix of `prompt`, the longest there is, and nothing else.

        The last prompt token stays out: it is pending. Raises RuntimeUnavailableError when the model has no
        session left.
        """
        best = max(self._idle, key=lambda slot: self._reusable(slot, prompt), default=None)
        if best is None:
            return Slot(self._model.open_session())
        length = self._reusable(best, prompt)
        best.keep(length)
        self._idle.remove(best)
        return best

    def release(self, slot: Slot, tokens: Sequence[int]) -> None:
        """The sequence is over; `tokens` are its ids, of which the session holds a prefix."""
        slot.tokens = list(tokens[: slot.session.length])
        slot.keep(len(slot.tokens))
        self._idle.append(slot)

    def close(self) -> None:
        for slot in self._idle:
            slot.session.close()
        self._idle.clear()

    def _reusable(self, slot: Slot, prompt: Sequence[int]) -> int:
        """How much of the slot's KV cache serves the prompt."""
        shared = common_prefix(slot.tokens, prompt[:-1])
        if shared < len(slot.tokens) and not self._model.capabilities.rollback:
            return 0
        return shared
