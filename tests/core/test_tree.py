import pytest

from slipstream.core.tree import ROOT, Draft


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


def test_a_cut_leaves_a_tree(bush: Draft) -> None:
    bush.cut(2)
    assert (bush.tokens, bush.parents, bush.sources, bush.buckets) == ([5, 6], [ROOT, 0], ["a", "a"], [0, 0])
    bush.cut(0)
    assert len(bush) == 0


def test_siblings_carry_different_tokens_and_parents_come_first(bush: Draft) -> None:
    with pytest.raises(AssertionError, match="different tokens"):
        bush.add(5, ROOT, source="a")
    with pytest.raises(AssertionError, match="before its children"):
        bush.add(1, 17, source="a")
