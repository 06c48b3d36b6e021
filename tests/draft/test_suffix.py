from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.protocols import Growth
from slipstream.core.tree import ROOT, Draft
from slipstream.corpus import Corpus
from slipstream.draft.recycling import RecyclingDrafter
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


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Corpus]:
    one = Corpus(tmp_path / "corpus", 100)
    yield one
    one.close()


def drafted_from(corpus: Corpus, tokens: Sequence[int], *, scope: str = "", limit: int = 8, siblings: int = 1) -> Draft:
    drafter, view, draft = SuffixDrafter(corpus), View(list(tokens), scope=scope), Draft()
    drafter.begin(view, 0)
    corpus.flush()
    drafter.extend([Growth(view, draft, limit, siblings)])
    return draft


def test_the_corpus_is_drafted_from_under_a_name_of_its_own(corpus: Corpus) -> None:
    corpus.add("", list(range(20)))
    draft = drafted_from(corpus, [90, 5, 6, 7, 8])
    assert draft.tokens == [9, 10, 11, 12]
    assert set(draft.sources) == {"corpus"}


def test_a_longer_match_wins_wherever_it_is(corpus: Corpus) -> None:
    corpus.add("", [1, 2, 3, 4, 5, 6, 7, 50, 51, 52])
    here = [4, 5, 6, 7, 60, 61, 0]
    assert drafted_from(corpus, [*here, 1, 2, 3, 4, 5, 6, 7]).tokens[0] == 50
    assert drafted_from(corpus, [*here, 90, 91, 92, 4, 5, 6, 7]).sources[0] == "suffix"


def test_a_text_s_end_puts_it_into_the_corpus(corpus: Corpus) -> None:
    drafter, view = SuffixDrafter(corpus), View(list(range(20)))
    drafter.begin(view, 0)
    view.tokens += [60, 61, 62]
    drafter.end(view)
    drafter.end(view)
    assert drafted_from(corpus, [90, 17, 18, 19, 60]).tokens[:2] == [61, 62]


def test_no_text_of_another_scope_is_drafted(corpus: Corpus) -> None:
    corpus.add("one", list(range(20)))
    assert drafted_from(corpus, [90, 5, 6, 7, 8], scope="two").tokens == []
    assert drafted_from(corpus, [90, 5, 6, 7, 8], scope="one").tokens[0] == 9


def test_a_split_vote_makes_a_branch_where_the_target_takes_trees(corpus: Corpus) -> None:
    corpus.add("", [1, 2, 3, 4, 5, 6, 7, 50, 51, 52, 53])
    corpus.add("", [9, 2, 3, 4, 5, 6, 7, 60, 61, 62, 63])
    tail = [8, 2, 3, 4, 5, 6, 7]
    draft = drafted_from(corpus, tail, siblings=3, limit=12)
    assert draft.path_tokens(draft.tip)[:3] == [60, 61, 62]
    branch = draft.child(ROOT, 50)
    assert branch is not None
    assert draft.child(branch, 51) is not None
    assert draft.parents.index(ROOT) == branch - 1, "siblings stand together"
    assert draft.buckets[branch] != draft.buckets[0]
    assert drafted_from(corpus, tail, limit=12).is_chain


def test_where_nothing_matches_another_drafter_is_asked() -> None:
    other = RecyclingDrafter(100)
    drafter, view, draft = SuffixDrafter(otherwise=other), View([5, 6, 7, 5], vocabulary_size=100), Draft()
    drafter.begin(view, 0)
    drafter.extend([Growth(view, draft, 4)])
    assert draft.tokens[:2] == [6, 7]
    assert set(draft.sources) == {"recycling"}
    matching, second = View([1, 2, 3, 9, 1, 2], vocabulary_size=100), Draft()
    drafter.begin(matching, 0)
    drafter.extend([Growth(matching, second, 4)])
    assert second.sources == ["suffix"] * len(second)
    assert drafter.memory() == other.memory() > 0
    assert drafter.requires == other.requires


@given(st.lists(st.integers(0, 3), min_size=8, max_size=60), st.integers(1, 12), st.integers(1, 3))
def test_drafts_are_trees_within_their_limits(tokens: list[int], limit: int, siblings: int) -> None:
    drafter, view, draft = SuffixDrafter(), View(tokens), Draft()
    drafter.begin(view, 0)
    drafter.extend([Growth(view, draft, limit, siblings)])
    assert len(draft) <= limit
    assert siblings > 1 or draft.is_chain
    assert max(map(draft.parents.count, draft.parents), default=0) <= 2
