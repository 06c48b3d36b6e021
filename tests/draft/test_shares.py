"""How the rows of a draft model's forward are shared."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.draft.shares import shares


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.integers(9, 300))
def test_what_is_little_is_granted_and_the_rest_is_shared_evenly(lacking: list[int], most: int) -> None:
    granted = shares(lacking, most)
    assert all(1 <= one <= wanted for one, wanted in zip(granted, lacking, strict=True))
    assert sum(granted) == min(sum(lacking), most)
    cut = [one for one, wanted in zip(granted, lacking, strict=True) if one < wanted]
    assert not cut or max(granted) <= min(cut) + 1


def test_where_rows_do_not_go_round_everybody_gets_one() -> None:
    assert shares([5, 1, 2], 2) == [1, 1, 1]
