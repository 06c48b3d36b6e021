import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Growth
from slipstream.core.tree import Draft
from slipstream.draft import ModelDrafter
from slipstream.errors import UnsupportedModelError
from tests.fakes import ByteVocabulary, FakeModel, SmallVocabulary
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
