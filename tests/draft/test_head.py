"""A head's drafts are those of a head that read the text from its beginning, whatever happened on the way."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipstream.core.params import SamplingParams
from slipstream.core.pool import WORTH_SHARING
from slipstream.core.protocols import Capabilities, Continuation, Growth, Logits
from slipstream.core.tree import Draft
from slipstream.core.verify import Commit, Verdict
from slipstream.draft import HeadDrafter, head
from slipstream.errors import RuntimeUnavailableError
from tests.fakes import SmallVocabulary
from tests.helpers import GREEDY, View

VOCABULARY = 12
WIDTH = 4
LAYERS = (2, 5, 0)
DRAFTED = np.array([1, 2, 3, 5, 7, 8, 9, 11])
SAMPLED = SamplingParams(temperature=1.0, top_p=1.0, min_p=0.0, seed=9)

Row = tuple[bytes, int]
"""What a row went on from, and its token."""


def noise(*what: object) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "little"))


def hidden(tokens: Sequence[int], layer: int) -> NDArray[np.float32]:
    """The target's hidden state behind these tokens."""
    return noise("hidden", tuple(tokens), layer).standard_normal(WIDTH, np.float32)


class TargetRows:
    """Rows of the target for a path of tokens behind others."""

    def __init__(self, before: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self._before, self._paths = list(before), paths

    def hidden(self, row: int, layer: int) -> NDArray[np.float32]:
        return hidden([*self._before, *self._paths[row]], layer)

    def logits(self, row: int) -> Logits:
        raise AssertionError("a head reads no logits")

    def top(self, row: int, count: int) -> tuple[NDArray[np.int64], Logits]:
        raise AssertionError("a head reads no logits")


class HeadRows:
    def __init__(self, rows: Sequence[Row], last: int) -> None:
        self._rows, self._last = rows, last

    def logits(self, row: int) -> Logits:
        assert row == self._last, "only the last row has logits"
        return logits_of(self._rows)

    def hidden(self, row: int, layer: int) -> NDArray[np.float32]:
        assert (row, layer) == (self._last, 0)
        return state_of(self._rows)

    def top(self, row: int, count: int) -> tuple[NDArray[np.int64], Logits]:
        raise NotImplementedError


def logits_of(rows: Sequence[Row]) -> Logits:
    return 3 * noise("logits", tuple(rows)).standard_normal(len(DRAFTED), np.float32)


def state_of(rows: Sequence[Row]) -> NDArray[np.float32]:
    return noise("state", tuple(rows)).standard_normal(WIDTH, np.float32)


@dataclass(eq=False)
class FakeSession:
    model: "FakeHead"
    rows: list[Row] = field(default_factory=list)
    uncommitted: list[Row] = field(default_factory=list)
    closed: bool = False

    @property
    def length(self) -> int:
        return len(self.rows)

    def commit(self, path: Sequence[int]) -> None:
        assert list(path) == list(range(len(self.uncommitted)))
        self.rows += self.uncommitted
        self.uncommitted = []

    def hold(self, path: Sequence[int]) -> None:
        raise AssertionError

    def truncate(self, length: int) -> None:
        assert 0 <= length <= len(self.rows)
        del self.rows[length:]
        self.uncommitted = []

    def reachable(self, length: int) -> int:
        return length

    def fork(self, length: int) -> "FakeSession":
        assert 0 <= length <= len(self.rows)
        other = self.model.open_session()
        other.rows = self.rows[:length]
        return other

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.model.open -= 1


class FakeHead:
    """Implements `core.protocols.HeadModel`: what it says depends on all rows of a session and on nothing else."""

    name, runtime, notice = "head", "fake", None
    capabilities = Capabilities(bit_exact_rows=True, hidden_states=True)
    vocabulary = SmallVocabulary(VOCABULARY)
    hidden_layers = LAYERS
    draft_tokens = DRAFTED

    def __init__(self, *, max_rows: int = 7, context_length: int = 400, sessions: int = 3) -> None:
        self.max_rows, self.context_length, self.sessions = max_rows, context_length, sessions
        self.open = self.forwards = self.rows_read = 0
        self.closed = False

    def open_session(self) -> FakeSession:
        if self.open == self.sessions:
            raise RuntimeUnavailableError("All sessions are in use.")
        self.open += 1
        return FakeSession(self)

    def forward(self, batch: object, **more: object) -> list[HeadRows]:
        raise AssertionError("a head goes on from states")

    def go_on(self, batch: Sequence[Continuation]) -> list[HeadRows]:
        self.forwards += 1
        assert 0 < sum(len(one.tokens) for one in batch) <= self.max_rows
        found = []
        for one in batch:
            assert isinstance(one.session, FakeSession)
            assert one.states.shape == (len(one.tokens), WIDTH * (1 if one.own else len(LAYERS)))
            assert one.session.length + len(one.tokens) <= self.context_length
            new = [(state.tobytes(), token) for state, token in zip(one.states, one.tokens, strict=True)]
            one.session.uncommitted = new
            self.rows_read += 0 if one.own else len(new)
            found.append(HeadRows([*one.session.rows, *new], len(new) - 1))
        return found

    def memory(self) -> int:
        return 1000

    def close(self) -> None:
        self.closed = True


def fused(tokens: Sequence[int]) -> bytes:
    return np.concatenate([hidden(tokens, layer) for layer in LAYERS]).tobytes()


def expected(view: View, steps: int, start: int = 0) -> list[int]:
    """What a head drafts that has read the text from position `start` on."""
    tokens, drafted = view.tokens, []
    rows = [(fused(tokens[: at + 1]), tokens[at + 1]) for at in range(start, len(tokens) - 1)]
    for _ in range(steps if rows else 0):
        row = np.full(VOCABULARY, -np.inf, np.float32)
        row[DRAFTED] = logits_of(rows)
        prefix = list(drafted)
        drafted += view.sampler.propose(row, len(tokens) + len(prefix), prefix, 1).tokens
        rows.append((state_of(rows).tobytes(), drafted[-1]))
    return drafted


def grow(drafter: HeadDrafter, view: View, steps: int) -> Draft:
    draft = Draft()
    for step in range(steps):
        drafter.extend([Growth(view, draft, steps - step)])
    return draft


def read_prompt(drafter: HeadDrafter, view: View, start: int, slices: Sequence[int] = ()) -> None:
    """As the engine shows the target's rows: in slices, all but the last token of the text."""
    end = len(view.tokens) - 1
    for at in [*sorted({min(start + one, end) for one in slices if one > 0}), end]:
        paths = [view.tokens[start : start + count + 1] for count in range(at - start)]
        if paths:
            drafter.observe_prompt(view, start, len(paths), TargetRows(view.tokens[:start], paths))
        start = at


def decide(drafter: HeadDrafter, view: View, draft: Draft, accepted: int, own: int) -> None:
    """Verify: the chain's first tokens are right, then comes a token of the target's own."""
    before = list(view.tokens)
    accepted = min(accepted, len(draft))
    commits = [Commit(draft.tokens[node], node, draft.sources[node], "", None) for node in range(accepted)]
    view.tokens += [*draft.tokens[:accepted], own]
    paths = [[], *([*draft.path_tokens(node)] for node in range(len(draft)))]
    verdict = Verdict([*commits, Commit(own, None, "", "", None)])
    drafter.observe(view, draft, verdict, TargetRows(before, paths))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rounds=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8),
    prompt_length=st.integers(1, 40),
    slices=st.lists(st.integers(1, 40), max_size=3),
    sampled=st.booleans(),
)
def test_it_reads_whatever_it_lacks(
    seed: int, rounds: list[tuple[int, int]], prompt_length: int, slices: list[int], sampled: bool
) -> None:
    """Drafts that were accepted in part, in whole, or not made at all, so that hidden states wait."""
    model, random = FakeHead(), np.random.default_rng(seed)
    drafter = HeadDrafter(model)
    tokens = random.integers(0, VOCABULARY, prompt_length).tolist()
    view = View(tokens, SAMPLED if sampled else GREEDY, vocabulary_size=VOCABULARY)
    drafter.begin(view, 0)
    assert drafter.lag(view) == 0
    assert len(grow(drafter, view, 2)) == 0, "the target has not read the text"
    read_prompt(drafter, view, 0, slices)
    for steps, accepted in rounds:
        draft = grow(drafter, view, steps)
        assert draft.tokens == expected(view, steps)
        decide(drafter, view, draft, accepted, int(random.integers(0, VOCABULARY)))
        assert drafter.lag(view) >= 1
    drafter.end(view)
    drafter.close()
    assert (model.open, model.closed) == (0, True)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 1000),
    texts=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(0, 3), st.booleans()), min_size=2, max_size=6
    ),
    sessions=st.integers(1, 3),
    most=st.integers(1, 3),
)
def test_texts_that_begin_alike_share_what_was_read(
    seed: int, texts: list[tuple[int, int, int, bool]], sessions: int, most: int
) -> None:
    """Each text begins as the one before it, goes on differently, and may rest: the target has what they share but its
    last token, whatever the head has.
    """
    random = np.random.default_rng(seed)
    model = FakeHead(sessions=sessions)
    drafter = HeadDrafter(model)
    drafter.keep_sessions(min(most, sessions))
    before: list[int] = []
    for shared, more, rounds, rests in texts:
        tokens = [*before[:shared], *random.integers(0, VOCABULARY, more).tolist()]
        view = View(tokens, SAMPLED, vocabulary_size=VOCABULARY)
        common = min(shared, len(before), len(tokens) - 1)
        reused = common - 1 if common > WORTH_SHARING else 0
        drafter.begin(view, reused)
        read_prompt(drafter, view, reused)
        for _ in range(rounds):
            draft = grow(drafter, view, 0 if rests else 3)
            assert draft.tokens == ([] if rests else expected(view, 3)), "as if it had been read from the beginning"
            decide(drafter, view, draft, 1, int(random.integers(0, VOCABULARY)))
        before = view.tokens
        drafter.end(view)
    drafter.close()
    assert model.open == 0


def test_a_shared_beginning_is_not_read_again() -> None:
    model = FakeHead(max_rows=64)
    drafter, tokens = HeadDrafter(model), [one % VOCABULARY for one in range(50)]
    for text, fresh in ((tokens, 49), ([*tokens, 1, 2], 2), ([*tokens[:40], 5, 6], 2)):
        view = View(list(text), SAMPLED, vocabulary_size=VOCABULARY)
        before = model.rows_read
        reused = max(len(text) - 4, 0) if model.rows_read else 0
        drafter.begin(view, reused)
        read_prompt(drafter, view, reused)
        assert grow(drafter, view, 2).tokens == expected(view, 2)
        assert model.rows_read - before == fresh
        drafter.end(view)


def test_two_texts_at_once_that_begin_alike() -> None:
    """The second begins as a fork of the first, which goes on meanwhile."""
    model = FakeHead(max_rows=64)
    drafter = HeadDrafter(model)
    first = View([one % VOCABULARY for one in range(40)], SAMPLED, vocabulary_size=VOCABULARY)
    drafter.begin(first, 0)
    read_prompt(drafter, first, 0)
    draft = grow(drafter, first, 3)
    decide(drafter, first, draft, 2, 4)
    second = View([*first.tokens[:30], 3, 3], GREEDY, vocabulary_size=VOCABULARY)
    drafter.begin(second, 29)
    read_prompt(drafter, second, 29)
    drafts = [Draft(), Draft()]
    for _ in range(3):
        drafter.extend([Growth(view, draft, 3) for view, draft in zip((first, second), drafts, strict=True)])
    assert [draft.tokens for draft in drafts] == [expected(first, 3), expected(second, 3)]
    assert model.open == 2


def test_a_text_that_was_not_seen_from_the_beginning_is_known_from_there_on() -> None:
    drafter = HeadDrafter(FakeHead())
    view = View([one % VOCABULARY for one in range(20)], SAMPLED, vocabulary_size=VOCABULARY)
    drafter.begin(view, 15)
    read_prompt(drafter, view, 15)
    assert grow(drafter, view, 3).tokens == expected(view, 3, start=15)


def test_more_than_can_wait_is_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MOST_WAITING", 16)
    drafter = HeadDrafter(FakeHead())
    view = View([one % VOCABULARY for one in range(30)], SAMPLED, vocabulary_size=VOCABULARY)
    drafter.begin(view, 0)
    read_prompt(drafter, view, 0, [12])
    assert drafter.lag(view) == 8
    assert drafter.memory() == 1000 + 8 * 4 * WIDTH * len(LAYERS)
    assert grow(drafter, view, 2).tokens == expected(view, 2, start=21)
    assert drafter.memory() == 1000


def test_siblings_cost_no_forward() -> None:
    model = FakeHead()
    drafter, view = HeadDrafter(model), View([1, 2, 3], SAMPLED, vocabulary_size=VOCABULARY)
    drafter.begin(view, 0)
    read_prompt(drafter, view, 0)
    draft = Draft()
    for _ in range(2):
        drafter.extend([Growth(view, draft, 3, siblings=3)])
    assert (len(draft), model.forwards) == (6, 2)
    assert set(draft.tokens) <= set(DRAFTED.tolist())


def test_a_step_costs_one_forward_for_all_sequences() -> None:
    model = FakeHead(max_rows=64)
    drafter = HeadDrafter(model)
    views = [View(list(range(count)), SAMPLED, vocabulary_size=VOCABULARY) for count in (3, 9)]
    for view in views:
        drafter.begin(view, 0)
        read_prompt(drafter, view, 0)
    drafts = [Draft(), Draft()]
    drafter.extend([Growth(view, draft, 4) for view, draft in zip(views, drafts, strict=True)])
    assert model.forwards == 1
    assert [draft.tokens for draft in drafts] == [expected(view, 1) for view in views]


def test_the_context_s_end_ends_drafting() -> None:
    drafter = HeadDrafter(FakeHead(context_length=8))
    view = View([1, 2, 3, 4, 5, 6, 7], SAMPLED, vocabulary_size=VOCABULARY)
    drafter.begin(view, 0)
    read_prompt(drafter, view, 0)
    assert len(grow(drafter, view, 5)) == 3, "six rows are the text's, and two a draft's"


def test_what_is_no_number_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadRows, "logits", lambda rows, row: np.full(len(DRAFTED), np.nan, np.float32))
    drafter, view = HeadDrafter(FakeHead()), View([1, 2, 3], SAMPLED, vocabulary_size=VOCABULARY)
    drafter.begin(view, 0)
    read_prompt(drafter, view, 0)
    assert len(grow(drafter, view, 3)) == 0


def test_a_draft_that_begins_again_begins_at_the_same_place() -> None:
    """A round may be given up after its drafts were made."""
    drafter, view = HeadDrafter(FakeHead()), View([1, 2, 3, 4], SAMPLED, vocabulary_size=VOCABULARY)
    drafter.begin(view, 0)
    read_prompt(drafter, view, 0)
    assert grow(drafter, view, 4).tokens == grow(drafter, view, 4).tokens == expected(view, 4)
