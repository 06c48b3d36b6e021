"""A model without weights: its logits are a table looked up by the tokens before, so every test knows them."""

from collections.abc import Mapping, Sequence
from itertools import count
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.blocks import ranked
from slipstream.core.protocols import Capabilities, Logits, Segment
from slipstream.errors import GrammarError, RuntimeUnavailableError

PATIENCE = 60.0
"""Seconds after which a gate that nobody opens is a mistake."""


class ByteVocabulary:
    """Token i is byte i; 256 is the end token, 257 begins a text."""

    size = 258
    end_tokens = frozenset({256})

    def __init__(self, bos: int | None = None) -> None:
        self.bos = bos

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        tokens: list[int] = [257] if add_bos and self.bos is not None else []
        for index, part in enumerate(text.split("<end>") if parse_special else [text]):
            tokens += [256] if index else []
            tokens += part.encode()
        return tokens

    def least_tokens(self, text: str, *, parse_special: bool) -> int:
        longest = max(len(self.token_bytes(token) or self.token_name(token)) for token in range(self.size))
        return -(-len(text) // longest)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def token_name(self, token: int) -> str:
        return {256: "<end>", 257: "<bos>"}.get(token) or chr(token)


class SmallVocabulary(ByteVocabulary):
    """The first `size` bytes, counted from "a"; `end` may be any of them."""

    def __init__(self, size: int, end: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.size = size
        self.end_tokens = end

    def token_bytes(self, token: int) -> bytes:
        return bytes([97 + token])


class FakeRows:
    def __init__(self, rows: list[Logits], first: int) -> None:
        self._rows = rows
        self._first = first

    def logits(self, row: int) -> Logits:
        assert row >= self._first, "this row was not asked for"
        return self._rows[row]

    def top(self, row: int, count: int) -> tuple[NDArray[np.int64], Logits]:
        logits = self.logits(row)
        return ranked(np.arange(len(logits)), logits, count)

    def hidden(self, row: int, layer: int) -> NDArray[np.float32]:
        raise NotImplementedError


class FakeSession:
    """Holds the committed tokens as a list and checks every call against the protocol."""

    def __init__(self, model: "FakeModel") -> None:
        self.model = model
        self.tokens: list[int] = []
        self.batch: Segment | None = None
        self.closed = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    def commit(self, path: Sequence[int]) -> None:
        assert self.batch is not None, "commit follows a forward"
        parent = -1
        for row in path:
            assert parents_of(self.batch)[row] == parent, "a path goes from parent to child"
            self.tokens.append(self.batch.tokens[row])
            parent = row
        self.batch = None

    @property
    def held(self) -> object | None:
        return None

    def hold(self, path: Sequence[int]) -> None:
        raise AssertionError("this model has no layer subsets")

    def truncate(self, length: int) -> None:
        assert self.reachable(length) == length
        del self.tokens[length:]
        self.batch = None

    def reachable(self, length: int) -> int:
        assert 0 <= length <= self.length
        return length if self.length - length <= self.model.deepest_rollback else 0

    def fork(self, length: int) -> "FakeSession":
        assert self.reachable(length) == length
        other = self.model.open_session()
        other.tokens = self.tokens[:length]
        return other

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.model.open_sessions -= 1


def parents_of(segment: Segment) -> Sequence[int]:
    return segment.parents if segment.parents is not None else range(-1, len(segment.tokens) - 1)


class FakeModel:
    """Logits are normal noise drawn from a seed and the last `order` tokens.

    sharpness scales them: 0 is uniform, 10 nearly deterministic. Rows are bit-exact, trees are welcome.
    deepest_rollback: how many tokens can be taken back at once, as where layers have windows
    """

    runtime = "fake"

    def __init__(
        self,
        vocabulary: ByteVocabulary | None = None,
        *,
        seed: int = 0,
        order: int = 2,
        sharpness: float = 3.0,
        context_length: int = 256,
        max_rows: int = 16,
        max_sessions: int = 4,
        rollback: bool = True,
        deepest_rollback: int = 1 << 30,
        name: str = "fake",
    ) -> None:
        self.name = name
        self.deepest_rollback = deepest_rollback if rollback else 0
        self.vocabulary = vocabulary or ByteVocabulary()
        self.capabilities = Capabilities(rollback=rollback, trees=True, bit_exact_rows=True)
        self.notice = None if rollback else f"{name} cannot take tokens back, so it decodes plainly."
        self.context_length = context_length
        self.max_rows = max_rows
        self.max_sessions = max_sessions
        self.open_sessions = 0
        self.forwards = 0
        self.closed = False
        self._seed, self._order, self._sharpness = seed, order, sharpness
        self._table: dict[tuple[int, ...], Logits] = {}
        self._ids = count()

    def row(self, context: Sequence[int]) -> Logits:
        """[vocab] logits after these tokens."""
        key = tuple(context[-self._order :])
        if key not in self._table:
            normal = np.random.default_rng([self._seed, *key]).standard_normal(self.vocabulary.size)
            self._table[key] = (self._sharpness * normal).astype(np.float32)
            self._table[key].setflags(write=False)
        return self._table[key]

    def open_session(self) -> FakeSession:
        if self.open_sessions == self.max_sessions:
            raise RuntimeUnavailableError("All sessions are in use.")
        self.open_sessions += 1
        return FakeSession(self)

    def forward(
        self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None, hidden: Sequence[int] = ()
    ) -> list[FakeRows]:
        assert layers is None, "this model has no layer subsets"
        assert not hidden, "this model has no hidden states"
        assert sum(len(segment.tokens) for segment in batch) <= self.max_rows, "more rows than a forward takes"
        self.forwards += 1
        return [self._rows(segment) for segment in batch]

    def _rows(self, segment: Segment) -> FakeRows:
        session = segment.session
        assert isinstance(session, FakeSession)
        assert not session.closed
        assert len(segment.tokens) > 0
        rows: list[Logits] = []
        contexts: list[list[int]] = []
        for row, (token, parent) in enumerate(zip(segment.tokens, parents_of(segment), strict=True)):
            assert -1 <= parent < row
            assert 0 <= token < self.vocabulary.size
            contexts.append([*(session.tokens if parent < 0 else contexts[parent]), token])
            assert len(contexts[-1]) <= self.context_length, "the context is full"
            rows.append(self.row(contexts[-1]))
        session.batch = segment
        return FakeRows(rows, 0 if segment.outputs is None else len(rows) - segment.outputs)

    def memory(self) -> int:
        return 1

    def close(self) -> None:
        self.closed = True


class GatedModel(FakeModel):
    """Its forwards wait until the gate is open; `broken` is raised by the next one.

    closes_after: the gate closes behind so many forwards of its life, so that a text stops in the middle
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(seed=1, order=1, **more)
        self.gate = Event()
        self.gate.set()
        self.broken: Exception | None = None
        self.closes_after: int | None = None

    def forward(self, batch: Sequence[Segment], **more: Any) -> list[FakeRows]:
        assert self.gate.wait(PATIENCE)
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        rows = super().forward(batch, **more)
        if self.forwards == self.closes_after:
            self.gate.clear()
        return rows


class TableConstraint:
    """An automaton: `table[state]` maps the tokens that may come to the states they lead to, beginning with state 0.

    breaks: this many tokens on, it fails
    """

    def __init__(self, table: Sequence[Mapping[int, int]], breaks: int | None = None) -> None:
        self.table, self.breaks = table, breaks
        self.states = [0]

    @property
    def _allowed(self) -> Sequence[int]:
        return list(self.table[self.states[-1]])

    def mask(self, row: Logits) -> None:
        if self.breaks is not None and len(self.states) > self.breaks:
            raise GrammarError("The table is torn.")
        kept = row[self._allowed]
        row[:] = -np.inf
        row[self._allowed] = kept

    def advance(self, token: int) -> bool:
        if token not in self._allowed:
            return False
        self.states.append(self.table[self.states[-1]][token])
        return True

    def rollback(self, count: int) -> None:
        assert 0 <= count < len(self.states), "no more than was advanced"
        del self.states[len(self.states) - count :]

    def forced(self) -> list[int]:
        tokens: list[int] = []
        state = self.states[-1]
        while len(self.table[state]) == 1 and len(tokens) < 10:
            [(token, state)] = self.table[state].items()
            tokens.append(token)
        return tokens

    def fork(self) -> "TableConstraint":
        other = TableConstraint(self.table, self.breaks)
        other.states = list(self.states)
        return other
