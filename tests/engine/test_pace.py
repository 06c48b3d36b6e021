"""How long a forward may be that reads nothing but prompts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.protocols import Segment
from slipstream.engine import Engine
from slipstream.engine.pace import FEWEST, READING_SECONDS, Pace
from slipstream.policy import FixedLength
from tests.fakes import FakeModel, FakeRows


@given(st.integers(FEWEST, 512), st.floats(1e-6, 0.1), st.integers(1, 512))
def test_a_forward_of_prompts_takes_what_it_may_and_never_fewer_rows_than_are_read_well(
    rows: int, each: float, most: int
) -> None:
    pace = Pace()
    pace.learn(rows, rows * each)
    found = pace.rows(most)
    assert min(FEWEST, most) <= found <= most
    assert found * each <= READING_SECONDS or found == min(FEWEST, most)
    assert found == most or (found + 2) * each > READING_SECONDS


def test_nothing_is_known_at_first_and_short_forwards_say_nothing() -> None:
    pace = Pace()
    pace.learn(FEWEST - 1, 1e-9)
    pace.learn(0, 0.0)
    assert pace.rows(512) == FEWEST
    pace.learn(FEWEST, FEWEST * READING_SECONDS / 300.5)
    assert pace.rows(512) == 300
    pace.learn(FEWEST, 10.0)
    assert pace.rows(512) == FEWEST


class Counting(FakeModel):
    """Notes how many rows its forwards have."""

    def __init__(self, *, exact: bool) -> None:
        super().__init__(seed=1, order=1, max_rows=512, context_length=2048)
        self.capabilities = replace(self.capabilities, bit_exact_rows=exact)
        self.rows: list[int] = []

    def forward(self, batch: Sequence[Segment], **more: Any) -> list[FakeRows]:
        self.rows.append(sum([len(segment.tokens) for segment in batch]))
        return super().forward(batch, **more)


@pytest.mark.parametrize(
    ("exact", "texts", "slice_rows", "first"),
    [(True, 1, 64, FEWEST), (True, 2, 64, FEWEST), (True, 1, 0, 512), (False, 1, 64, 512), (False, 2, 64, FEWEST)],
)
def test_a_long_prompt_is_read_in_forwards_that_let_others_come_and_go(
    exact: bool, texts: int, slice_rows: int, first: int
) -> None:
    """Without bit-exact rows a text that is alone is cut as it always is, so that it stays the same."""
    model = Counting(exact=exact)
    with Engine(model, policy=FixedLength(0)) as engine:
        batch = engine.batch()
        for number in range(texts):
            batch.add(engine.prepare(f"{number}" * 1500, max_tokens=3, seed=1))
        batch.play_round(slice_rows)
        assert model.rows == [first]
        while not batch.finished:
            batch.play_round(slice_rows)
        batch.close()
