from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.corpus.index import LONG, MAX_MATCH, MOST_MATCHES, MOST_STEPS, SHORT, CorpusIndex, Match

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=6)


def index_of(*texts: list[int], size: int = 10, most: int = 1 << 14) -> CorpusIndex:
    index = CorpusIndex(size, most)
    for text in texts:
        index.add([np.array(text, np.uint32)])
    return index


def brute_force(texts: list[list[int]], tail: list[int], most: int) -> list[Match]:
    """Every occurrence of the tail's last 4 tokens that something follows, the newest last."""
    found = []
    for text in texts:
        for place in range(SHORT, len(text)):
            length = 0
            while length < min(place, len(tail), MAX_MATCH) and text[place - 1 - length] == tail[-1 - length]:
                length += 1
            if length >= SHORT:
                found.append(Match(text[place : place + most], length))
    return found


@pytest.mark.parametrize("size", [10, 1 << 17])
def test_finds_what_followed(size: int) -> None:
    index = index_of([1, 2, 3, 4, 5, 6, 7], size=size)
    assert index.matches([9, 2, 3, 4, 5], 8) == [Match([6, 7], 4)]
    assert index.matches([1, 2, 3, 4, 5], 1) == [Match([6], 5)]


def test_three_tokens_in_common_are_not_enough() -> None:
    assert index_of([1, 2, 3, 4, 5]).matches([9, 2, 3, 4], 8) == []
    assert index_of([1, 2, 3, 4, 5]).matches([2, 3, 4], 8) == []


def test_a_text_does_not_go_on_in_the_next_one() -> None:
    index = index_of([1, 2, 3, 4], [5, 6, 7, 8])
    assert index.matches([1, 2, 3, 4], 8) == []
    assert index.matches([3, 4, 5, 6], 8) == []


def test_an_old_long_match_is_found_behind_many_short_ones() -> None:
    asked = [7, 3, 9, 2, 8, 1, 6, 4, 1, 2, 3, 4]
    index = index_of([*asked, 5], *[[0, n % 10, 1, 2, 3, 4, 6] for n in range(100)])
    found = index.matches(asked, 1)
    assert Match([5], LONG) in found
    assert len(found) == MOST_MATCHES


def test_tokens_that_the_vocabulary_does_not_have_are_left_out() -> None:
    index = index_of([1, 2, 3, 4, 99], size=10)
    assert index.matches([1, 2, 3, 4], 8) == []


def test_the_oldest_are_given_up() -> None:
    chance = np.random.default_rng(1)
    texts = chance.integers(0, 5000, (60, 500)).tolist()
    index = index_of(*texts, size=5000, most=1 << 13)
    assert len(index) <= 1 << 13
    assert index.matches(texts[-1][:20], 4) == [Match(texts[-1][20:24], MAX_MATCH)]
    assert index.matches(texts[0][:20], 4) == []


def test_memory_is_a_few_bytes_a_token() -> None:
    index = CorpusIndex(49152, 1 << 20)
    index.add([np.arange(1 << 18, dtype=np.uint32) % 49152])
    assert 8 <= index.memory() / len(index) <= 14


@given(texts=TEXTS, tail=st.lists(st.integers(0, 2), max_size=24), most=st.integers(1, 5))
def test_it_finds_what_a_look_at_everything_finds(texts: list[list[int]], tail: list[int], most: int) -> None:
    found = index_of(*texts).matches(tail, most)
    everything = brute_force(texts, tail, most)
    assert all(one in everything for one in found)
    if sum(map(len, texts)) <= MOST_STEPS:  # else a chain may be too long to be followed to its end
        newest = everything[-MOST_MATCHES:]
        assert found[-len(newest) :] == newest if newest else not found


@given(texts=TEXTS, cuts=st.lists(st.booleans(), min_size=6, max_size=6))
def test_it_does_not_matter_what_is_added_together(texts: list[list[int]], cuts: list[bool]) -> None:
    apart = index_of(*texts)
    together, waiting = CorpusIndex(10, 1 << 14), []
    for text, cut in zip(texts, cuts, strict=False):
        waiting.append(np.array(text, np.uint32))
        if cut:
            together.add(waiting)
            waiting = []
    together.add(waiting)
    for text in texts:
        for end in range(SHORT, len(text)):
            assert apart.matches(text[:end], 3) == together.matches(text[:end], 3)


def test_large_additions_are_entered_as_small_ones_are() -> None:
    chance = np.random.default_rng(2)
    texts = [chance.integers(0, 300, 70_000) for _ in range(9)]
    index = CorpusIndex(300, 1 << 21)
    index.add(texts)
    tail = texts[4][1000:1020].tolist()
    assert Match(texts[4][1020:1023].tolist(), MAX_MATCH) in index.matches(tail, 3)
    assert not set(chain(*[one.following for one in index.matches(tail, 3)])) - set(range(300))
