import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.train.packs import Order, gather
from slipstream.train.states import StateStore
from slipstream.train.target import States
from slipstream.train.texts import Shard, Text


@settings(deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=20), st.integers(2, 40), st.integers(0, 3))
def test_every_token_is_in_one_row_of_an_epoch(lengths: list[int], pack: int, epoch: int) -> None:
    order = Order(lengths, pack, seed=1)
    seen = [np.zeros(length, int) for length in lengths]
    for number in range(epoch * order.rows, (epoch + 1) * order.rows):
        row = order.row(number)
        assert 0 < sum(stop - start for _, start, stop in row) <= pack
        for text, start, stop in row:
            seen[text][start:stop] += 1
    assert all((times == 1).all() for times in seen)


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=9), st.permutations(range(12)))
def test_a_row_is_the_same_whenever_it_is_asked_for(lengths: list[int], numbers: list[int]) -> None:
    fresh = [Order(lengths, 16, seed=5).row(number) for number in range(12)]
    order = Order(lengths, 16, seed=5)
    assert [order.row(number) for number in numbers] == [fresh[number] for number in numbers]


def test_only_what_the_target_chose_is_to_be_guessed(tmp_path: object) -> None:
    text = Text(np.arange(10, 18, dtype=np.int32), 3, "chat", 0.0, 0)
    states = States(np.ones((8, 2, 4), np.float16), np.ones(8, np.float32), np.ones(8, np.int32))
    store = StateStore.__new__(StateStore)
    store.texts, store._stored = [text], [states]
    batch = gather([Order([8], 6, 0).row(0)], store, 6)
    # row i stands for what comes after token i: the answer's first token comes after the prompt's last
    assert batch.wanted.tolist() == [[False, False, True, True, True, True]]
    assert batch.tokens.tolist() == [[10, 11, 12, 13, 14, 15]]
    end = gather([Order([8], 6, 0).row(1)], store, 6)
    assert end.wanted.tolist() == [[True, False, False, False, False, False]]
    assert end.texts.tolist() == [[0, 0, -1, -1, -1, -1]]
    assert Shard([text], 1.0).answer_tokens == 5
