"""A head drafts: one layer that goes on from the target's hidden states (EAGLE-3; Li et al. 2025, arXiv 2503.01840).

It proposes with the target's own noise, as a draft model does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream.core.pool import SessionPool, Slot
from slipstream.core.protocols import (
    Capabilities,
    Continuation,
    Growth,
    HeadModel,
    Logits,
    Requirements,
    Rows,
    SequenceView,
    Session,
)
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict
from slipstream.draft.base import BaseDrafter
from slipstream.draft.proposing import propose

States = NDArray[np.float32]

MOST_WAITING = 4096
"""Hidden states that wait to be read, at most: where a head stays off for longer, the oldest are forgotten."""


class HeadDrafter(BaseDrafter):
    """Drafts one level a step for all sequences in one forward, the first from what the target thinks, the others from
    its own states.

    It keeps the target's hidden states as they come by, of prompts too, and reads them when it is next asked for a
    draft. Where it has not seen a text from the beginning it knows the text from there on.
    """

    def __init__(self, model: HeadModel, *, source: str = "head") -> None:
        self.name = source
        self.model: HeadModel = model
        self.requires = Requirements(hidden_layers=tuple(model.hidden_layers))
        self._pool = SessionPool(_Memories(model))
        self._slots: dict[int, Slot] = {}
        self._row = np.full(model.vocabulary.size, -np.inf, np.float32)

    def lag(self, sequence: SequenceView) -> int:
        """Tokens whose hidden states wait to be read; 0 where the target has to read the text before."""
        slot = self._slots.get(sequence.id)
        known = slot is not None and _memory(slot).knows(len(sequence.tokens))
        return max(_memory(slot).waiting.count, 1) if slot is not None and known else 0

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        self._slots[sequence.id] = self._pool.acquire(sequence.tokens)

    def end(self, sequence: SequenceView) -> None:
        slot = self._slots.pop(sequence.id, None)
        if slot is not None:
            _memory(slot).forget_draft()
            self._pool.release(slot, sequence.tokens)

    def observe_prompt(self, sequence: SequenceView, start: int, count: int, rows: Rows) -> None:
        self._keep(sequence, start, rows, range(count))

    def observe(self, sequence: SequenceView, draft: Draft, verdict: Verdict, rows: Rows) -> None:
        pending = len(sequence.tokens) - len(verdict.commits) - 1
        if verdict.commits:
            self._keep(sequence, pending, rows, [0, *(1 + node for node in verdict.kv_path)])

    def extend(self, frontier: Sequence[Growth]) -> None:
        going_on = [growth for growth in frontier if self._prepare(growth)]
        share = max(self.model.max_rows // max(len(going_on), 1), 1)
        batch = [self._continuation(growth, share) for growth in going_on]
        if not batch:
            return
        for growth, one, rows in zip(going_on, batch, self.model.go_on(batch), strict=True):
            last = len(one.tokens) - 1
            one.session.commit(range(len(one.tokens)))
            self._memory_of(growth).has_read(one, rows.hidden(last, 0).copy())
            if np.isfinite(logits := rows.logits(last)).all():
                propose(growth, self._target_sized(logits), self.name)

    def memory(self) -> int:
        """Of the head itself, and of the hidden states that wait."""
        return self.model.memory() + sum([_memory(slot).waiting.nbytes for slot in self._pool.slots])

    def keep_sessions(self, most: int) -> None:
        """How many texts' memories may stay for texts to come (`core.pool.SessionPool`)."""
        self._pool.most = most

    def close(self) -> None:
        self._pool.close()
        self.model.close()

    def _keep(self, sequence: SequenceView, position: int, rows: Rows, which: Sequence[int]) -> None:
        slot, layers = self._slots.get(sequence.id), self.requires.hidden_layers
        if slot is not None:
            states = np.array([[rows.hidden(row, layer) for layer in layers] for row in which], np.float32)
            _memory(slot).add(position, states.reshape(len(which), -1))
            slot.tokens += sequence.tokens[len(slot.tokens) : slot.session.length]

    def _memory_of(self, growth: Growth) -> "Memory":
        return _memory(self._slots[growth.sequence.id])

    def _prepare(self, growth: Growth) -> bool:
        """Whether there is something to go on from, in a draft that is the head's own, and room for it."""
        memory, depth = self._memory_of(growth), len(growth.draft.path(growth.draft.tip))
        if depth == 0:
            memory.forget_draft()
            memory.look_again()
            known = memory.knows(len(growth.sequence.tokens)) and memory.waiting.count > 0
        else:
            known = memory.drafted == depth - 1 and memory.tip is not None
        return known and memory.rows + memory.waiting.count + depth <= self.model.context_length

    def _continuation(self, growth: Growth, most: int) -> Continuation:
        """What the head reads next: hidden states that wait, `most` at most of which are left, or its own state."""
        memory, draft = self._memory_of(growth), growth.draft
        if memory.tip is not None:
            return Continuation(memory.session, draft.path_tokens(draft.tip)[-1:], memory.tip[None], own=True)
        while memory.waiting.count > most:
            early = memory.next(growth.sequence.tokens, min(self.model.max_rows, memory.waiting.count - most))
            self.model.go_on([early])
            early.session.commit(range(len(early.tokens)))
            memory.has_read(early, None)
        return memory.next(growth.sequence.tokens, most)

    def _target_sized(self, logits: Logits) -> Logits:
        """[vocab of the target]; what the head has no logits for cannot be proposed."""
        if self.model.draft_tokens is None:
            return logits
        self._row[self.model.draft_tokens] = logits
        return self._row


class Waiting:
    """Hidden states of neighbouring positions, [count, numbers], that have not been read; the oldest first."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[States] = []

    @property
    def nbytes(self) -> int:
        return sum([part.nbytes for part in self._parts])

    def append(self, states: States) -> None:
        if len(states):
            self._parts.append(states)
            self.count += len(states)

    def all(self) -> States:
        """All of them, in one piece from now on."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def keep(self, first: int, end: int) -> None:
        """Keep those from `first` on, up to `end`."""
        parts = [self.all()[first:end]] if self.count else []
        self._parts = [part for part in parts if len(part)]
        self.count = sum(map(len, self._parts))

    def copied(self) -> "Waiting":
        """Another one with the same; what is in it is never written to."""
        other = Waiting()
        other.count, other._parts = self.count, list(self._parts)
        return other


@dataclass(eq=False)
class Memory:
    """What a head knows of one text: rows in its KV cache, hidden states of the target that wait to be read behind
    them, and rows of a draft. Implements `core.protocols.Session` for a pool, by tokens of the text.

    Row i has the hidden states at position `start + i` and token `start + i + 1`.

    start:   position of the first row; the text before it is not known
    rows:    that are read, without those of a draft
    last:    [1, numbers] hidden states of the newest of them, where they are still here
    drafted: rows of a draft behind them
    tip:     [width] the head's own state in its newest row
    """

    session: Session
    start: int = 0
    rows: int = 0
    waiting: Waiting = field(default_factory=Waiting)
    last: States | None = None
    drafted: int = 0
    tip: States | None = None

    @property
    def end(self) -> int:
        """The position behind those whose hidden states were here."""
        return self.start + self.rows + self.waiting.count

    @property
    def held(self) -> None:
        """Rows of layer subsets, which a head has not."""
        return None

    @property
    def length(self) -> int:
        """Tokens of the text that it depends on."""
        return self.end + (self.rows > 0 and self.waiting.count == 0)

    def knows(self, tokens: int) -> bool:
        """Whether the hidden states are here of all of a text's tokens but the pending one, or of the last of them."""
        return self.start < self.end == tokens - 1

    def add(self, position: int, states: States) -> None:
        """Hidden states from `position` on, [n, numbers]; those that were here already are left out."""
        if position > self.end:  # a stretch is missing: the text is known from here on
            self.truncate(0)
            self.start = position
        self.waiting.append(states[self.end - position :])
        if self.waiting.count > MOST_WAITING:
            end = self.end
            self.waiting.keep(self.waiting.count - MOST_WAITING // 2, self.waiting.count)
            self._keep_rows(0)
            self.start = end - self.waiting.count

    def next(self, tokens: Sequence[int], most: int) -> Continuation:
        """The hidden states to read next, with the text's tokens behind them."""
        states, first = self.waiting.all()[:most], self.start + self.rows + 1
        return Continuation(self.session, tokens[first : first + len(states)], states, own=False)

    def has_read(self, read: Continuation, tip: States | None) -> None:
        """A continuation is in the KV cache; `tip` is the head's state in its last row."""
        self.tip = tip
        if read.own:
            self.drafted += 1
        else:
            self.rows, self.last = self.rows + len(read.tokens), read.states[-1:].copy()
            self.waiting.keep(len(read.tokens), self.waiting.count)

    def forget_draft(self) -> None:
        """Take rows of a draft back."""
        if self.session.length > self.rows:
            self.session.truncate(self.rows)
        self.drafted, self.tip = 0, None

    def look_again(self) -> None:
        """Where nothing waits, let the newest row be read once more: a draft begins behind it again."""
        if self.waiting.count == 0 and self.last is not None:
            self.waiting.append(self.last)
            self._keep_rows(self.rows - 1)

    def reachable(self, length: int) -> int:
        """All of the first `length` tokens, or 0 where nothing would be left of them."""
        rows, waiting = self._parts_of(length)
        return length if rows or waiting else 0

    def truncate(self, length: int) -> None:
        """Forget all but what depends on the first `length` tokens only."""
        self.forget_draft()
        rows, waiting = self._parts_of(length)
        if rows < self.rows:
            self.waiting = Waiting()
            if waiting and self.last is not None:
                self.waiting.append(self.last)
            self._keep_rows(rows)
        else:
            self.waiting.keep(0, waiting)
        if not (rows or waiting):
            self.start = 0

    def fork(self, length: int) -> "Memory":
        """Another text's memory, which begins as that of the first `length` tokens of this one."""
        rows = min(self._parts_of(length)[0] + 1, self.rows)
        other = Memory(self.session.fork(rows), self.start, rows)
        if rows == self.rows:
            other.waiting, other.last = self.waiting.copied(), self.last
        other.truncate(length)
        return other

    def close(self) -> None:
        self.session.close()
        self.waiting = Waiting()

    def commit(self, path: Sequence[int]) -> None:
        raise AssertionError("a head's rows are read, not committed")

    def hold(self, path: Sequence[int]) -> None:
        raise AssertionError("a head's rows are read, not held")

    def _parts_of(self, length: int) -> tuple[int, int]:
        """How many rows, and how many waiting hidden states behind them, depend on the first `length` tokens only."""
        known = max(length - self.start, 0)  # positions whose hidden states do; a row needs the token behind its own
        rows = max(min(self.rows, known - 1), 0)
        if rows == self.rows:
            return rows, min(self.waiting.count, known - rows)
        return rows, int(known > 0 and self.last is not None and rows == self.rows - 1)

    def _keep_rows(self, count: int) -> None:
        """Take all rows but the first `count` back."""
        self.session.truncate(count)
        self.rows, self.last = count, None


def _memory(slot: Slot) -> Memory:
    assert isinstance(slot.session, Memory)
    return slot.session


class _Memories:
    """Opens memories where a pool expects to open sessions."""

    def __init__(self, model: HeadModel) -> None:
        self._model = model

    @property
    def capabilities(self) -> Capabilities:
        return self._model.capabilities

    def open_session(self) -> Memory:
        return Memory(self._model.open_session())
