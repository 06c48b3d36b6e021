"""Feeding and reusing sessions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.feed import common_prefix, feed
from slipstream.core.pool import SessionPool, Slot
from slipstream.errors import RuntimeUnavailableError
from tests.fakes import FakeModel, SmallVocabulary


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix(one: list[int], other: list[int]) -> None:
    length = common_prefix(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]


def test_feeding_goes_in_chunks_and_can_stop_between() -> None:
    model = FakeModel(SmallVocabulary(9), max_rows=4)
    session = model.open_session()
    progress = feed(model, session, [1, 2, 3, 4, 5, 6])
    assert next(progress) == 4
    assert session.tokens == [1, 2, 3, 4]
    assert list(progress) == [6]
    assert session.tokens == [1, 2, 3, 4, 5, 6]


def filled(pool: SessionPool, model: FakeModel, tokens: list[int]) -> Slot:
    slot = pool.acquire(tokens)
    for _ in feed(model, slot.session, tokens[slot.session.length :]):
        pass
    return slot


def test_the_longest_common_prefix_is_reused_and_the_pending_token_stays_out() -> None:
    model = FakeModel(SmallVocabulary(9), max_sessions=2)
    pool = SessionPool(model)
    slots = [filled(pool, model, tokens) for tokens in ([1, 2, 3, 4], [1, 2, 7, 8, 8])]
    for slot, tokens in zip(slots, ([1, 2, 3, 4], [1, 2, 7, 8, 8]), strict=True):
        pool.release(slot, tokens)
    slot = pool.acquire([1, 2, 7, 8, 8, 3])
    assert slot is slots[1]
    assert slot.session.length == 5
    pool.release(slot, [1, 2, 7, 8, 8, 3])
    assert pool.acquire([1, 2, 3, 4]).tokens == [1, 2, 3], "the last prompt token is pending"


LONG = [index % 7 for index in range(20)]


def test_a_shared_beginning_is_forked_and_the_other_text_stays() -> None:
    model = FakeModel(SmallVocabulary(9), max_sessions=3)
    pool = SessionPool(model, most=3)
    first = filled(pool, model, [*LONG, 7, 7])
    second = pool.acquire([*LONG, 8, 8])  # from one that is in use
    assert second.session.length == 0, "of a text that is being read nobody knows how far it is"
    first.tokens = [*LONG, 7]
    pool.release(second, [])
    third = pool.acquire([*LONG, 8, 8])
    assert third.session.tokens == third.tokens == LONG
    assert first.session.tokens[: len(LONG) + 1] == [*LONG, 7]
    pool.release(first, [*LONG, 7, 7])
    fourth = pool.acquire([*LONG, 6, 6])  # from one that is idle, in place of the session that nothing is in
    assert fourth.session.tokens == LONG
    assert first.session.tokens == [*LONG, 7, 7]
    pool.release(third, [*LONG, 8, 8])
    pool.release(fourth, [*LONG, 6, 6])
    assert pool.acquire([*LONG, 7, 7, 1]) is first
    assert model.open_sessions == 3


def test_the_session_that_was_not_used_for_longest_makes_room() -> None:
    model = FakeModel(SmallVocabulary(9), max_sessions=2)
    pool = SessionPool(model, most=2)
    texts = [[number, *LONG] for number in range(3)]
    for text in (*texts[:2], texts[0], texts[2]):
        slot = filled(pool, model, text)
        pool.release(slot, text)
    assert pool.acquire([*texts[0], 1]).session.length == len(texts[0])
    assert pool.acquire([*texts[1], 1]).session.length == 0


def test_sessions_are_opened_where_they_are_needed_and_no_others() -> None:
    model = FakeModel(SmallVocabulary(9), max_sessions=4)
    pool = SessionPool(model)
    slots = [filled(pool, model, [number, *LONG]) for number in range(2)]
    for number, slot in enumerate(slots):
        pool.release(slot, [number, *LONG])
    for text in ([5, *LONG], [0, *LONG, 1], [0, *LONG[:18], 8, 8], [7], [1, *LONG[:18], 8, 8]):
        slot = filled(pool, model, text)
        assert slot.session.tokens == text
        pool.release(slot, text)
        assert model.open_sessions == 2


def test_without_a_free_session_the_only_one_is_cut_back() -> None:
    model = FakeModel(SmallVocabulary(9), max_sessions=1)
    pool = SessionPool(model)
    slot = filled(pool, model, [*LONG, 7, 7])
    with pytest.raises(RuntimeUnavailableError):
        pool.acquire([*LONG, 8, 8])
    pool.release(slot, [*LONG, 7, 7])
    assert pool.acquire([*LONG, 8, 8]) is slot
    assert slot.session.tokens == LONG


def test_without_rollback_a_session_is_reused_whole_or_not_at_all() -> None:
    model = FakeModel(SmallVocabulary(9), rollback=False)
    pool = SessionPool(model)
    pool.release(filled(pool, model, [1, 2, 3]), [1, 2, 3])
    slot = pool.acquire([1, 2, 3, 4])
    assert slot.session.length == 3
    pool.release(slot, [1, 2, 3])
    assert pool.acquire([1, 2, 9]).session.length == 0


def test_what_a_window_has_left_behind_is_read_again() -> None:
    model = FakeModel(SmallVocabulary(9), max_sessions=2, max_rows=64, deepest_rollback=4)
    pool = SessionPool(model, most=2)
    text = [*LONG, *LONG]
    pool.release(filled(pool, model, text), text)
    near = pool.acquire([*text[:-3], 8, 8])
    assert near.session.tokens == near.tokens == text[:-3], "a fork"
    far = pool.acquire([*LONG, 8, 8])
    assert (far.session.length, far.tokens) == (0, []), "from so far back nothing can be taken"
    assert far.keep(0) == 0


@pytest.mark.parametrize("committed", [2, 3, 5])
def test_a_slot_holds_what_both_session_and_tokens_hold(committed: int) -> None:
    """After an interrupt the session may be ahead of the sequence."""
    model = FakeModel(SmallVocabulary(9))
    pool = SessionPool(model)
    slot = pool.acquire([1, 2, 3])
    for _ in feed(model, slot.session, [1, 2, 3, 4, 5][:committed]):
        pass
    pool.release(slot, [1, 2, 3])
    assert slot.session.length == len(slot.tokens) == min(committed, 3)


def test_close_gives_idle_sessions_back() -> None:
    model = FakeModel(SmallVocabulary(9))
    pool = SessionPool(model)
    pool.release(pool.acquire([1]), [1])
    pool.close()
    assert model.open_sessions == 0
