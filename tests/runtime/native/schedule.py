"""Random lives of a few sessions in one model, beside a plain account of what each of them must hold."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.core.protocols import Segment
from slipstream.policy.fixed import MOST_DRAFT_TOKENS
from slipstream.runtime.native import NativeModel
from slipstream.runtime.native.model import NativeRows
from slipstream.runtime.native.session import NativeSession
from tests.runtime.native.helpers import Reference, cached, feed_silently, same_bits, same_cache

SUBSET = (0, 2)
"""Layers that drafts go through; one of the three is left out."""

SESSIONS = 4
CHECKED_ROWS = 2


@dataclass
class Tracked:
    """A session and what it must hold: committed tokens, and draft rows of the layer subset after them."""

    session: NativeSession
    tokens: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    longest: int = 0
    """The most tokens it has held since it was empty, or what it was forked from had: a window may lack the rest."""

    def reachable(self, length: int) -> int:
        """As the session says, which may only deny what is further back than the longest draft."""
        self.longest = max(self.longest, len(self.tokens))
        kept = self.session.reachable(length)
        assert kept == length or (kept == 0 and length < self.longest - MOST_DRAFT_TOKENS), (length, self.longest)
        return kept


@dataclass(frozen=True)
class Planned:
    """A segment of a forward that is about to run."""

    of: Tracked
    tokens: list[int]
    parents: list[int]
    is_chain: bool
    outputs: int

    @property
    def segment(self) -> Segment:
        return Segment(self.of.session, self.tokens, None if self.is_chain else self.parents, self.outputs)

    def path(self, row: int) -> list[int]:
        """Rows from the first one after the cache down to `row`."""
        path = []
        while row >= 0:
            path.append(row)
            row = self.parents[row]
        return path[::-1]

    def texts(self, path: Sequence[int]) -> list[int]:
        return [self.tokens[row] for row in path]


class Schedule:
    """Steps drawn from a seed, so that a shorter schedule with the same seed is a prefix of the longer one.

    Where the reference has beginnings every session begins with most of one, and several are open from the start.
    """

    def __init__(self, model: NativeModel, reference: Reference, seed: int) -> None:
        self.model = model
        self.reference = reference
        self.random = random.Random(seed)
        self.tracked = [self.opened() for _ in range(SESSIONS - 1 if reference.beginnings else 1)]

    def opened(self) -> Tracked:
        one = Tracked(self.model.open_session())
        if self.reference.beginnings:
            text = self.random.choice(self.reference.beginnings).tokens
            one.tokens = text[: self.random.randint(len(text) - 100, len(text))]
            feed_silently(self.model, one.session, one.tokens, self.model.max_rows)
        return one

    def step(self) -> None:
        """One thing that an engine may do."""
        steps = [self.forward] * 6 + [self.draft] * 3 + [self.truncate, self.fork, self.fork, self.replace, self.check]
        self.random.choice(steps)()

    def forward(self) -> None:
        self._run(None)

    def draft(self) -> None:
        self._run(SUBSET)

    def truncate(self) -> None:
        one = self.random.choice(self.tracked)
        whole = len(one.tokens)
        earliest = self.random.choice([whole // 2, max(whole - MOST_DRAFT_TOKENS, 0)])
        length = one.reachable(self.random.randint(earliest, whole))
        one.session.truncate(length)
        del one.tokens[length:]
        one.held.clear()
        if not length:
            one.longest = 0

    def fork(self) -> None:
        if len(self.tracked) == SESSIONS:
            self.tracked.pop(self.random.randrange(SESSIONS)).session.close()
        one = self.random.choice(self.tracked)
        length = one.reachable(self.random.choice([len(one.tokens), self.random.randint(0, len(one.tokens))]))
        longest = one.longest if length else 0
        self.tracked.append(Tracked(one.session.fork(length), one.tokens[:length], longest=longest))

    def replace(self) -> None:
        """Close a session and open another: its blocks may be used again."""
        index = self.random.randrange(len(self.tracked))
        self.tracked[index].session.close()
        self.tracked[index] = self.opened()

    def check(self) -> None:
        """Cache and next row of every session are those of a fresh one that was fed token by token."""
        for one in self.tracked:
            if one.tokens:
                assert same_cache(cached(self.model, one.session), self.reference.cached(one.tokens))
        fitting = [one for one in self.tracked if len(one.tokens) < self.model.context_length]
        if not fitting:
            return
        batch = [Planned(one, [self._token()], [-1], True, 1) for one in fitting]
        self._check_rows(batch, self.model.forward([planned.segment for planned in batch]), None)
        for one in fitting:
            one.held.clear()

    def close(self) -> None:
        for one in self.tracked:
            one.session.close()

    def _run(self, layers: Sequence[int] | None) -> None:
        chosen = self.random.sample(self.tracked, self.random.randint(1, len(self.tracked)))
        share = self.model.max_rows // len(chosen)
        batch = [planned for one in chosen if (planned := self._plan(one, share, layers is not None))]
        if not batch:
            return
        hidden = self.random.choice([(), (0,), (0, 2)])
        rows = self.model.forward([planned.segment for planned in batch], layers=layers, hidden=hidden)
        self._check_rows(batch, rows, layers)
        if layers is None:
            for planned in batch:
                planned.of.held.clear()
        if self.random.random() < 0.2:  # shares the block that the rows lie in
            self.fork()
        for planned in batch:
            if self.random.random() < 0.8 and planned.of in self.tracked:
                self._keep(planned, layers is not None)

    def _plan(self, one: Tracked, most: int, is_draft: bool) -> Planned | None:
        held = len(one.held) if is_draft else 0
        room = min(self.model.context_length - len(one.tokens), self.model.max_rows) - held
        count = min(self.random.choice([1, 2, 3, 5, 8, 9, 12, 20, 33, 70]), room, most)
        if count == 0:
            return None
        is_chain = self.random.random() < 0.4
        parents = [row - 1 if is_chain else self._parent(row) for row in range(count)]
        outputs = self.random.choice([0, 1, count, self.random.randint(0, count)])
        return Planned(one, [self._token() for _ in range(count)], parents, is_chain, outputs)

    def _parent(self, row: int) -> int:
        """Deep trees and bushes."""
        return self.random.choice([row - 1, row - 1, self.random.randint(-1, row - 1)])

    def _token(self) -> int:
        return self.random.randrange(self.model.vocabulary.size)

    def _check_rows(self, batch: Sequence[Planned], rows: Sequence[NativeRows], layers: Sequence[int] | None) -> None:
        for planned, computed in zip(batch, rows, strict=True):
            count = len(planned.tokens)
            asked = range(count - planned.outputs, count)
            for row in self.random.sample(asked, min(CHECKED_ROWS, len(asked))):
                found = np.array(computed.logits(row))
                path = planned.texts(planned.path(row))
                if layers is None:
                    expected = self.reference.row(planned.of.tokens + path)
                else:
                    expected = self.reference.draft_row(planned.of.tokens, planned.of.held + path, layers)
                assert same_bits(found, expected), (planned, row)

    def _keep(self, planned: Planned, is_draft: bool) -> None:
        path = planned.path(self.random.randint(-1, len(planned.tokens) - 1))
        if is_draft:
            planned.of.session.hold(path)
            planned.of.held += planned.texts(path)
        else:
            planned.of.session.commit(path)
            planned.of.tokens += planned.texts(path)
