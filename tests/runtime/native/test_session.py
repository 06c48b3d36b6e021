"""What sessions promise: only commit and truncate change them, and forks share memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.protocols import Segment
from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.session import NativeSession
from tests.runtime.native.helpers import cached, feed, same_bits, same_cache
from tests.tiny_models import GROUPED, tiny_decoder

TOTAL = 3 * 256 // 64
"""Blocks of the tiny model's KV cache."""


def next_row(model: NativeModel, session: NativeSession) -> np.ndarray:
    return np.array(model.forward([Segment(session, [99])])[0].logits(0))


def test_a_forward_alone_changes_nothing(model: NativeModel) -> None:
    session, same = model.open_session(), model.open_session()
    feed(model, session, [40, 41])
    feed(model, same, [40, 41])
    before = next_row(model, same)
    model.forward([Segment(session, [50, 51, 52], [-1, -1, 0])])
    assert session.length == 2
    assert same_bits(next_row(model, session), before)


def test_a_path_through_a_tree_is_kept(model: NativeModel) -> None:
    session, same = model.open_session(), model.open_session()
    feed(model, session, [40])
    #  41 - 43 - 45
    #  42 - 44
    model.forward([Segment(session, [41, 42, 43, 44, 45], [-1, -1, 0, 1, 2])])
    session.commit([1, 3])
    assert session.length == 3
    feed(model, same, [40, 42, 44])
    assert same_cache(cached(model, session), cached(model, same))
    assert same_bits(next_row(model, session), next_row(model, same))


def test_committing_nothing_forgets_the_rows(model: NativeModel) -> None:
    session = model.open_session()
    model.forward([Segment(session, [40, 41])])
    session.commit([])
    assert session.length == 0
    with pytest.raises(RuntimeError, match="a row that the last forward did not compute"):
        session.commit([0])


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ([1], "whose parent is not the one before it"),
        ([0, 2], "whose parent is not the one before it"),
        ([0, 0], "whose parent is not the one before it"),
        ([3], "did not compute"),
        ([-1], "did not compute"),
    ],
)
def test_paths_that_are_none(model: NativeModel, path: list[int], says: str) -> None:
    session = model.open_session()
    model.forward([Segment(session, [40, 41, 42])])
    with pytest.raises(RuntimeError, match=says):
        session.commit(path)
    assert session.length == 0


def test_drafts_are_held_and_everything_else_committed(model: NativeModel) -> None:
    session = model.open_session()
    model.forward([Segment(session, [40])], layers=[0])
    with pytest.raises(RuntimeError, match="rows of a layer subset cannot be committed"):
        session.commit([0])
    model.forward([Segment(session, [40])])
    with pytest.raises(RuntimeError, match="only rows of a layer subset are held"):
        session.hold([0])
    session.commit([0])
    assert session.length == 1


def test_truncate_forgets_what_is_held(model: NativeModel) -> None:
    session, same = model.open_session(), model.open_session()
    for one in (session, same):
        feed(model, one, [40, 41])
    model.forward([Segment(session, [50])], layers=[0])
    session.hold([0])
    session.truncate(2)
    drafts = [np.array(model.forward([Segment(one, [51])], layers=[0])[0].logits(0)) for one in (session, same)]
    assert same_bits(*drafts)


def test_who_held_rows_can_tell_whether_they_are_still_there(model: NativeModel) -> None:
    session = model.open_session()
    feed(model, session, [40, 41])
    seen: list[object] = []
    for token in (50, 51):
        model.forward([Segment(session, [token])], layers=[0])
        session.hold([0])
        assert session.held is not None
        assert session.held is session.held
        seen.append(session.held)
    assert seen[0] is not seen[1]
    model.forward([Segment(session, [52])])
    assert session.held is None
    model.forward([Segment(session, [53])], layers=[0])
    assert session.held is None, "computed and not held"
    session.hold([0])
    assert session.held not in (*seen, None)
    session.truncate(2)
    assert session.held is None
    session.close()
    assert session.held is None


def test_truncate_after_a_forward_forgets_its_rows(model: NativeModel) -> None:
    session = model.open_session()
    model.forward([Segment(session, [40])])
    session.truncate(0)
    with pytest.raises(RuntimeError, match="did not compute"):
        session.commit([0])


@pytest.mark.parametrize("length", [-1, 3])
@pytest.mark.parametrize("call", [NativeSession.truncate, NativeSession.fork])
def test_lengths_that_it_does_not_have(
    model: NativeModel, call: Callable[[NativeSession, int], object], length: int
) -> None:
    session = model.open_session()
    feed(model, session, [40, 41])
    with pytest.raises(AssertionError, match="of 2 tokens"):
        call(session, length)


def test_forks_share_blocks_until_they_write(model: NativeModel) -> None:
    session = model.open_session()
    feed(model, session, range(50))
    feed(model, session, range(50))  # two blocks, the second holds 36
    assert model.native.free_blocks() == TOTAL - 2
    fork = session.fork(90)
    assert (fork.length, model.native.free_blocks()) == (90, TOTAL - 2)
    before = cached(model, session)
    feed(model, fork, [7])
    assert model.native.free_blocks() == TOTAL - 3  # the first block is still shared
    assert same_cache(cached(model, session), before)
    session.close()
    assert model.native.free_blocks() == TOTAL - 2
    assert fork.length == 91


def test_a_fork_takes_no_drafts_along(model: NativeModel) -> None:
    session = model.open_session()
    feed(model, session, [40, 41])
    model.forward([Segment(session, [50])], layers=[0])
    session.hold([0])
    fork, same = session.fork(2), model.open_session()
    feed(model, same, [40, 41])
    drafts = [np.array(model.forward([Segment(one, [51])], layers=[0])[0].logits(0)) for one in (fork, same)]
    assert same_bits(*drafts)


def test_truncate_gives_blocks_back(model: NativeModel) -> None:
    session = model.open_session()
    for _ in range(4):
        feed(model, session, range(50))
    assert model.native.free_blocks() == TOTAL - 4
    session.truncate(64)
    assert model.native.free_blocks() == TOTAL - 1
    session.truncate(0)
    assert model.native.free_blocks() == TOTAL


def test_closing_twice_is_harmless(model: NativeModel) -> None:
    session, other = model.open_session(), model.open_session()
    feed(model, session, [40])
    session.close()
    third = model.open_session()  # may have the number of the first
    feed(model, third, [41])
    session.close()
    assert (session.length, session.is_open) == (0, False)
    assert (third.length, third.is_open, other.is_open) == (1, True, True)


def test_a_new_session_knows_nothing_of_the_old(model: NativeModel) -> None:
    expected = feed(model, model.open_session(), [40, 41])
    used = model.open_session()
    feed(model, used, range(60))
    used.close()
    assert same_bits(feed(model, model.open_session(), [40, 41]), expected)


def test_every_session_can_be_filled_at_once(model: NativeModel) -> None:
    """Also after forks have shared and copied blocks."""
    first = model.open_session()
    for _ in range(4):
        feed(model, first, range(64))
    others = [first.fork(200), first.fork(130)]
    for one in others:
        while one.length < 256:
            feed(model, one, range(min(64, 256 - one.length)))
    assert model.native.free_blocks() == TOTAL - 4 - 1 - 2  # whole blocks before 200 and 130 are shared


# ---- Windows ---------------------------------------------------------------------------------------------------------

WINDOW = 24
LONGEST_DRAFT = 64
"""How far back a session can always go (`kLongestDraft`)."""


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeModel]:
    """Two of three layers see 24 tokens; of them a session's share is ceil((24 + 64 + 32) / 64) + 1 = 3 blocks."""
    path = tiny_decoder(tmp_path_factory.mktemp("windowed") / "it.gguf", "gemma3", shape=GROUPED)
    loaded = load_native(path, context_length=1024, max_sequences=2, max_rows=32, threads=1)
    yield loaded
    loaded.close()


def test_windows_take_little_memory(windowed: NativeModel) -> None:
    """A block of a layer has 64 positions x 2 heads x 32 numbers x keys and values x 2 bytes."""
    assert windowed.memory_parts["kv_cache"] == 2 * (16 + 2 * 3) * 64 * 2 * 32 * 2 * 2
    assert windowed.native.free_blocks() == 2 * (16 + 3)


def test_a_draft_can_always_be_taken_back(windowed: NativeModel) -> None:
    session, other = windowed.open_session(), windowed.open_session()
    tokens = [number * 7 % 250 for number in range(600)]
    for start in range(0, 600, 20):
        feed(windowed, session, tokens[start : start + 20])
        feed(windowed, other, tokens[start : start + 20])
    lengths = [length for length in range(601) if session.reachable(length) == length]
    assert lengths[1:] == list(range(lengths[1], 601)), "all from some length on, and none"
    assert WINDOW < lengths[1] <= 600 - LONGEST_DRAFT
    assert session.reachable(lengths[1] - 1) == 0
    with pytest.raises(RuntimeError, match="a window would see what is gone"):
        session.truncate(lengths[1] - 1)
    other.close()
    with pytest.raises(RuntimeError, match="a window would see what is gone"):
        session.fork(lengths[1] - 1)
    fork = session.fork(600 - LONGEST_DRAFT)
    expected = next_row(windowed, fork)
    session.truncate(600 - LONGEST_DRAFT)
    assert same_bits(next_row(windowed, session), expected)
    session.truncate(0)
    for start in range(0, 600 - LONGEST_DRAFT, 32):
        feed(windowed, session, tokens[start : min(start + 32, 600 - LONGEST_DRAFT)])
    assert same_bits(next_row(windowed, session), expected)
    for one in (session, fork):
        one.close()


# ---- Closed ----------------------------------------------------------------------------------------------------------

USES: list[Callable[[NativeSession], object]] = [
    lambda session: session.commit([0]),
    lambda session: session.commit([]),
    lambda session: session.hold([0]),
    lambda session: session.truncate(0),
    lambda session: session.fork(0),
    lambda session: session.reachable(0),
]


@pytest.mark.parametrize("use", USES)
def test_a_closed_session(model: NativeModel, use: Callable[[NativeSession], object]) -> None:
    session = model.open_session()
    session.close()
    with pytest.raises(AssertionError, match="the session is closed"):
        use(session)


def test_a_session_of_a_closed_model(file: Path) -> None:
    model = load_native(file, context_length=64, threads=1)
    session = model.open_session()
    model.forward([Segment(session, [40])])
    model.close()
    for use in USES:
        with pytest.raises(AssertionError, match="the session is closed"):
            use(session)
