"""Sessions that outlive a sequence, so that the next prompt reuses the KV cache of a common prefix."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.core.feed import common_prefix
from slipstream.core.protocols import Capabilities, Session
from slipstream.errors import RuntimeUnavailableError

WORTH_SHARING = 16
"""Tokens of a common prefix for which a second session begins as a fork of the first."""


class Opener(Protocol):
    """What of a model a pool needs."""

    @property
    def capabilities(self) -> Capabilities: ...

    def open_session(self) -> Session:
        """Raises RuntimeUnavailableError when all are in use."""


@dataclass(slots=True, eq=False)
class Slot:
    """A session and the tokens in its KV cache (`tokens[:session.length]` is what it holds, or begins with)."""

    session: Session
    tokens: list[int] = field(default_factory=list)

    def keep(self, length: int) -> int:
        """Forget all but the first `length` tokens, or what of them can be kept, and rows of an interrupted forward.

        Returns how many it keeps.
        """
        if length < self.session.length:
            length = self.session.reachable(length)
            self.session.truncate(length)
        del self.tokens[length:]
        return length


class SessionPool:
    """The sessions of one model: those in use, and idle ones, which keep what they hold for prompts that begin alike.

    A session whose whole text goes on in the prompt is taken as it is, as in the next turn of a chat. Where a prompt
    shares a beginning with another text, such as the system prompt, and a session is free for it, it gets a fork, and
    the other text stays. Where none is free, the idle session that was used least recently makes room.

    most: sessions that may be open although fewer would do, so that more texts stay; others of the model's are left
          to whoever needs one
    """

    def __init__(self, model: Opener, most: int = 1) -> None:
        self.most = most
        self._model = model
        self._idle: list[Slot] = []
        self._used: list[Slot] = []

    def acquire(self, prompt: Sequence[int]) -> Slot:
        """A session whose KV cache holds a prefix of `prompt`, the longest there is, and nothing else.

        The last prompt token stays out: it is pending. Raises RuntimeUnavailableError when the model has no
        session left.
        """
        best = max(self.slots, key=lambda slot: self._reusable(slot, prompt), default=None)
        shared = 0 if best is None else self._reusable(best, prompt)
        others = [slot for slot in self._idle if slot is not best]
        goes_on = best in self._idle and shared == best.session.length
        if best in self._idle and shared and (goes_on or not (others or self._may_open)):
            slot = self._taken(best, shared)
        elif best is not None and shared >= WORTH_SHARING and self._model.capabilities.rollback:
            slot = self._forked(best, shared, prompt)
        else:
            slot = self._fresh(prompt)
        self._used.append(slot)
        return slot

    @contextmanager
    def lent(self, tokens: Sequence[int]) -> Iterator[Session]:
        """A session whose KV cache holds a prefix of `tokens`; they may grow until it is given back."""
        slot = self.acquire(tokens)
        try:
            yield slot.session
        finally:
            self.release(slot, tokens)

    def release(self, slot: Slot, tokens: Sequence[int]) -> None:
        """The sequence is over; `tokens` are its ids, of which the session holds a prefix."""
        self._used.remove(slot)
        slot.tokens = list(tokens[: slot.session.length])
        slot.keep(len(slot.tokens))
        self._idle.append(slot)

    @property
    def slots(self) -> list[Slot]:
        """All of them, idle ones first."""
        return [*self._idle, *self._used]

    @property
    def held(self) -> int:
        """Tokens in the KV caches of all sessions, shared ones counted for each."""
        return sum([slot.session.length for slot in self.slots])

    def close(self) -> None:
        """Close the idle ones."""
        for slot in self._idle:
            slot.session.close()
        self._idle.clear()

    def _forked(self, donor: Slot, shared: int, prompt: Sequence[int]) -> Slot:
        """A session that begins like another one's; the other itself where there is no further one."""
        if not self._may_open:
            self._make_room(donor)
        while True:
            try:
                return Slot(donor.session.fork(shared), list(prompt[:shared]))
            except RuntimeUnavailableError:
                if self._make_room(donor):
                    continue
                if donor not in self._idle:
                    raise
                return self._taken(donor, shared)

    def _make_room(self, donor: Slot) -> bool:
        """Close the idle session that was used least recently, but not this one; whether there was one."""
        oldest = next((slot for slot in self._idle if slot is not donor), None)
        if oldest is not None:
            self._idle.remove(oldest)
            oldest.session.close()
        return oldest is not None

    @property
    def _may_open(self) -> bool:
        """Whether another session may be opened without need."""
        return len(self._idle) + len(self._used) < self.most

    def _fresh(self, prompt: Sequence[int]) -> Slot:
        """A session that begins with little or nothing of the prompt."""
        if self._idle and not self._may_open:
            return self._taken(self._idle[0], self._reusable(self._idle[0], prompt))
        try:
            return Slot(self._model.open_session())
        except RuntimeUnavailableError:
            if not self._idle:
                raise
            return self._taken(self._idle[0], self._reusable(self._idle[0], prompt))

    def _taken(self, slot: Slot, length: int) -> Slot:
        self._idle.remove(slot)
        slot.keep(length)
        return slot

    def _reusable(self, slot: Slot, prompt: Sequence[int]) -> int:
        """How much of the slot's KV cache serves the prompt."""
        return slot.session.reachable(common_prefix(slot.tokens, prompt[:-1]))
