import pytest

from slipstream.core.tree import ROOT, Draft
from slipstream.errors import UsageError


@pytest.fixture
def bush() -> Draft:
    """Root -> 5 -> (6 -> 8, 7); root -> 9."""
    draft = Draft()
    five = draft.add(5, ROOT, source="a", estimate=0.8)
    six = draft.add(6, five, source="a", estimate=0.5)
    draft.add(7, five, source="a", estimate=0.25)
    draft.add(8, six, source="b", estimate=0.5, bucket=3)
    draft.add(9, ROOT, source="b", estimate=0.1)
    return draft


def test_children_and_paths(bush: Draft) -> None:
    assert bush.child(ROOT, 9) == 4
    assert bush.child(0, 7) == 2
    assert bush.child(0, 9) is None
    assert [bush.has_children(node) for node in range(ROOT, 5)] == [True, True, True, False, False, False]
    assert bush.path(3) == [0, 1, 3]
    assert bush.path(ROOT) == []
    assert bush.path_tokens(3) == [5, 6, 8]


def test_a_chain_is_a_tree_and_a_bush_is_no_chain(bush: Draft) -> None:
    chain = Draft.chain([1, 2, 3], "a")
    assert chain.is_chain
    assert chain.parents == [ROOT, 0, 1]
    assert Draft().is_chain
    assert not bush.is_chain


def test_estimates_multiply_along_paths(bush: Draft) -> None:
    assert list(bush.path_estimates()) == pytest.approx([0.8, 0.4, 0.2, 0.2, 0.1])
    assert bush.expected_accepted() == pytest.approx(1.7)


def test_a_subset_is_a_tree_of_its_own(bush: Draft) -> None:
    part = bush.subset([0, 1, 3, 4])
    assert (part.tokens, part.parents) == ([5, 6, 8, 9], [ROOT, 0, 1, ROOT])
    assert (part.sources, part.buckets, part.estimates) == (["a", "a", "b", "b"], [0, 0, 3, 0], [0.8, 0.5, 0.5, 0.1])
    assert len(bush.subset([])) == 0
    assert len(bush) == 5


def test_siblings_stand_beside_the_main_chain() -> None:
    draft = Draft()
    first = draft.append(1, source="a")
    draft.add(2, ROOT, source="a")
    second = draft.append(3, source="a")
    assert draft.path_tokens(draft.tip) == [1, 3]
    assert draft.parents == [ROOT, ROOT, first]
    assert draft.subset([first, second]).tip == 1


def test_siblings_carry_different_tokens_and_parents_come_first(bush: Draft) -> None:
    with pytest.raises(UsageError, match="a proposed a token twice"):
        bush.add(5, ROOT, source="a")
    with pytest.raises(AssertionError, match="before its children"):
        bush.add(1, 17, source="a")
