from hypothesis import given
from hypothesis import strategies as st

from slipstream.models import PackedStrings


@given(st.lists(st.binary(max_size=5)))
def test_behaves_like_the_list_it_was_made_from(strings: list[bytes]) -> None:
    packed = PackedStrings.pack(strings)
    assert list(packed) == strings
    assert len(packed) == len(strings)
    assert [packed[index] for index in range(-len(strings), len(strings))] == strings + strings
    assert packed[1:4] == strings[1:4]
    assert packed == PackedStrings.pack(strings)


@given(st.lists(st.binary(max_size=3)), st.lists(st.binary(max_size=3)))
def test_equal_encodings_mean_equal_strings(first: list[bytes], second: list[bytes]) -> None:
    shared = min(len(first), len(second))
    same = PackedStrings.pack(first).encoding(shared) == PackedStrings.pack(second).encoding(shared)
    assert same == (first[:shared] == second[:shared])
