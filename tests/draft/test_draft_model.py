from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Growth, Segment
from slipstream.core.tree import Draft
from slipstream.draft import ModelDrafter
from slipstream.draft.shares import MOST_READ
from slipstream.errors import UnsupportedModelError
from tests.fakes import ByteVocabulary, FakeModel, FakeRows, SmallVocabulary
from tests.helpers import View, accept_first

SAMPLED = SamplingParams(temperature=1.0, top_p=1.0, min_p=0.0, seed=9)


def grow(drafter: ModelDrafter, view: View, steps: int) -> Draft:
    draft = Draft()
    for step in range(steps):
        drafter.extend([Growth(view, draft, steps - step)])
    return draft


def decoded(model: FakeModel, view: View, steps: int) -> list[int]:
    """What the model itself would say, with the view's noise."""
    tokens = list(view.tokens)
    for _ in range(steps):
        tokens.append(view.sampler.choose(model.row(tokens), len(tokens)))
    return tokens[len(view.tokens) :]


@pytest.mark.parametrize("params", [SamplingParams(temperature=0, seed=1), SAMPLED])
def test_drafts_what_the_model_itself_would_say(params: SamplingParams) -> None:
    model = FakeModel()
    drafter, view = ModelDrafter(model), View(list(b"hello there"), params)
    drafter.begin(view, 0)
    assert grow(drafter, view, 5).tokens == decoded(model, view, 5)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8),
    st.integers(1, 40),
    st.sampled_from([1, 3, 100]),
)
def test_the_session_feeds_whatever_it_lacks(
    seed: int, rounds: list[tuple[int, int]], prompt_length: int, deepest: int
) -> None:
    """Any history of drafts that were accepted in part, in whole, or not made at all; some cannot be taken back."""
    model = FakeModel(SmallVocabulary(5), max_rows=7, seed=seed, deepest_rollback=deepest)
    random = np.random.default_rng(seed)
    view = View(random.integers(0, 5, prompt_length).tolist(), SAMPLED, vocabulary_size=5)
    drafter = ModelDrafter(model)
    drafter.begin(view, 0)
    for steps, accepted in rounds:
        expected = decoded(model, view, steps)
        draft = grow(drafter, view, steps)
        assert draft.tokens == expected
        accepted = min(accepted, steps)
        view.tokens += [*draft.tokens[:accepted], int(random.integers(0, 5))]
        drafter.observe(view, draft, accept_first(draft, accepted), None)  # type: ignore[arg-type]
    drafter.end(view)
    drafter.close()
    assert model.open_sessions == 0
    assert model.closed


def test_a_step_costs_one_forward_for_all_sequences() -> None:
    model = FakeModel()
    drafter = ModelDrafter(model)
    views = [View(list(b"one"), SAMPLED), View(list(b"another"), SAMPLED)]
    for view in views:
        drafter.begin(view, 0)
    drafts = [Draft(), Draft()]
    drafter.extend([Growth(view, draft, 4) for view, draft in zip(views, drafts, strict=True)])
    assert model.forwards == 1
    assert [draft.tokens for draft in drafts] == [decoded(model, view, 1) for view in views]


def test_a_later_sequence_reuses_the_common_prefix() -> None:
    model = FakeModel(max_rows=4)
    drafter, first = ModelDrafter(model), View(list(b"a common beginning, then one"))
    drafter.begin(first, 0)
    grow(drafter, first, 1)
    drafter.end(first)
    before, second = model.forwards, View(list(b"a common beginning, then two"))
    drafter.begin(second, 0)
    assert grow(drafter, second, 1).tokens == decoded(model, second, 1)
    assert model.forwards - before == 1


def test_a_longer_target_context_ends_drafting_and_breaks_nothing() -> None:
    drafter, view = ModelDrafter(FakeModel(context_length=8)), View(list(b"1234567"))
    drafter.begin(view, 0)
    assert len(grow(drafter, view, 4)) == 2, "seven tokens and one draft token fill the context"
    view.tokens += b"89"
    assert len(grow(drafter, view, 4)) == 0


def test_tokens_that_only_one_vocabulary_has_are_not_proposed_and_end_drafting() -> None:
    model = FakeModel(SmallVocabulary(40), seed=3, sharpness=0.1)
    drafter = ModelDrafter(model, usable_size=10)
    view = View([1, 2, 3], SAMPLED, vocabulary_size=30)
    drafter.begin(view, 0)
    for _ in range(30):
        draft = grow(drafter, view, 1)
        assert draft.tokens[0] < 10
        view.tokens += draft.tokens
    view.tokens.append(29)  # the draft model has 40 rows, but 29 means something else to it
    assert len(grow(drafter, view, 1)) == 0


def test_a_model_without_rollback_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot take tokens back"):
        ModelDrafter(FakeModel(ByteVocabulary(), rollback=False))


class Counting(FakeModel):
    """Notes how many rows its forwards have."""

    def __init__(self) -> None:
        super().__init__(max_rows=512, context_length=4096)
        self.rows: list[int] = []

    def forward(self, batch: Sequence[Segment], **more: Any) -> list[FakeRows]:
        self.rows.append(sum([len(segment.tokens) for segment in batch]))
        return super().forward(batch, **more)


def test_a_long_text_that_was_missed_is_read_over_several_steps_and_keeps_nobody_from_drafting() -> None:
    model = Counting()
    drafter = ModelDrafter(model)
    short, long = View(list(b"short"), SAMPLED), View(list(b"long text " * 100), SAMPLED)
    for view in (short, long):
        drafter.begin(view, 0)
    steps = 0
    while True:
        drafts = [Draft(), Draft()]
        before = drafter.lag(long)
        drafter.extend([Growth(view, draft, 4) for view, draft in zip((short, long), drafts, strict=True)])
        steps += 1
        assert drafts[0].tokens == decoded(model, short, 1)
        if drafts[1].tokens:
            break
        assert drafter.lag(long) < before
        short.tokens += drafts[0].tokens
    assert drafts[1].tokens == decoded(model, long, 1)
    assert steps == -(-len(long.tokens) // (MOST_READ - 5))
    assert len(model.rows) == steps
    assert max(model.rows) <= MOST_READ


def test_a_long_text_that_is_alone_is_read_at_once() -> None:
    model = Counting()
    drafter, view = ModelDrafter(model), View(list(b"long text " * 100), SAMPLED)
    drafter.begin(view, 0)
    assert grow(drafter, view, 1).tokens == decoded(model, view, 1)
    assert model.rows == [1000 - 512, 512]
