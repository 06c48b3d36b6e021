from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.protocols import Growth
from slipstream.core.tree import Draft
from slipstream.draft.suffix import SuffixDrafter, SuffixIndex
from tests.helpers import View


def drafted(tokens: Sequence[int], limit: int = 8) -> list[int]:
    drafter, view, draft = SuffixDrafter(), View(list(tokens)), Draft()
    drafter.begin(view, 0)
    drafter.extend([Growth(view, draft, limit)])
    return draft.tokens


def test_proposes_what_followed_before() -> None:
    assert drafted([1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5])[:4] == [6, 7, 8, 9]


def test_two_tokens_in_common_are_enough_and_say_little() -> None:
    assert drafted([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4]


def test_one_token_in_common_is_not() -> None:
    assert drafted([1, 2, 3, 9, 2]) == []


def test_a_longer_match_drafts_more() -> None:
    text = list(range(20))
    assert drafted([*text, 99, *text[:5]]) == text[5:10]
    assert len(drafted([*text, 99, *text[:7]])) == 7


def test_the_limit_holds() -> None:
    text = list(range(20))
    assert drafted([*text, 99, *text[:7]], limit=3) == text[7:10]


def test_the_longest_match_wins_over_a_newer_one() -> None:
    assert drafted([9, 8, 1, 2, 3, 4, 50, 7, 7, 1, 2, 3, 4, 60, 9, 8, 1, 2, 3, 4])[0] == 50


def test_the_most_frequent_continuation_wins_among_equals() -> None:
    assert drafted([1, 2, 5, 0, 1, 2, 5, 0, 1, 2, 6, 0, 1, 2])[0] == 5


def test_the_newest_wins_a_tie() -> None:
    assert drafted([1, 2, 5, 0, 1, 2, 6, 9, 1, 2])[0] == 6


def test_a_loop_goes_on_beyond_its_end() -> None:
    assert drafted([1, 2, 3] * 4, limit=7) == [1, 2, 3, 1, 2, 3, 1]


def test_it_leaves_another_drafter_s_draft_alone() -> None:
    drafter, view, draft = SuffixDrafter(), View([1, 2, 3, 1, 2]), Draft.chain([7], "model")
    drafter.begin(view, 0)
    drafter.extend([Growth(view, draft, 4)])
    assert draft.tokens == [7]


@given(st.lists(st.integers(0, 3), max_size=60))
def test_matches_are_the_longest_common_suffixes(tokens: list[int]) -> None:
    index = SuffixIndex(tokens)
    index.update()
    for place, length in index.matches():
        assert tokens[place - length : place] == tokens[-length:]
        longer = length + 1
        assert length == 32 or longer > place or tokens[place - longer : place] != tokens[-longer:]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 59))
def test_indexing_step_by_step_is_indexing_at_once(tokens: list[int], cut: int) -> None:
    growing = tokens[:cut]
    index = SuffixIndex(growing)
    index.update()
    growing.extend(tokens[cut:])
    index.update()
    whole = SuffixIndex(tokens)
    whole.update()
    assert index.matches() == whole.matches()


def test_end_forgets_the_sequence() -> None:
    drafter, view = SuffixDrafter(), View([1, 2, 3])
    drafter.begin(view, 0)
    drafter.end(view)
    drafter.end(view)
    assert not drafter._indices
