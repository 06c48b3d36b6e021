"""The target's own layers draft: what they propose, and that nothing of the target changes by it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Growth, Segment
from slipstream.core.tree import Draft
from slipstream.draft import LayersDrafter
from slipstream.draft.layers import MOST_READ
from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.session import NativeSession
from tests.helpers import View
from tests.runtime.native.helpers import cached, feed, feed_silently, same_cache
from tests.tiny_models import Shape, tiny_decoder

SHAPE = Shape(heads=4, key_value_heads=2, feed_forward=96, layers=6)
LAYERS, OTHERS = (0, 2, 5), (0, 5)
SAMPLED = SamplingParams(temperature=1.0, top_p=1.0, min_p=0.0, seed=9)
CONTEXT = 256


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeModel]:
    path = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    tiny_decoder(path, request.param, shape=SHAPE)
    loaded = load_native(path, context_length=CONTEXT, max_sequences=4, threads=1)
    yield loaded
    loaded.close()


def view_of(model: NativeModel, tokens: Sequence[int], params: SamplingParams = SAMPLED) -> tuple[View, NativeSession]:
    """A text whose tokens but the last the target has read."""
    session = model.open_session()
    feed_silently(model, session, tokens[:-1], 64)
    return View(list(tokens), params, model.vocabulary.size, session=session), session


def grow(drafter: LayersDrafter, view: View, steps: int, draft: Draft | None = None) -> Draft:
    draft = Draft() if draft is None else draft
    for step in range(steps):
        drafter.extend([Growth(view, draft, steps - step)])
    return draft


def decoded(model: NativeModel, view: View, path: Sequence[int], steps: int, layers: Sequence[int]) -> list[int]:
    """What the layers themselves say behind a path, a token at a time in a session of their own."""
    session = model.open_session()
    feed_silently(model, session, view.tokens[:-1], 64)
    tokens, said = [view.tokens[-1], *path], []
    position = len(view.tokens) + len(path)
    for step in range(len(path) + steps):
        rows = model.forward([Segment(session, [tokens[step]])], layers=layers)[0]
        row = np.array(rows.logits(0))
        session.hold([0])
        if step >= len(path):
            said.append(view.sampler.choose(row, position))
            tokens.append(said[-1])
            position += 1
    session.close()
    return said


@pytest.mark.parametrize("params", [SamplingParams(temperature=0, seed=1), SAMPLED])
def test_drafts_what_its_layers_say(model: NativeModel, params: SamplingParams) -> None:
    view, session = view_of(model, range(40, 90), params)
    drafter = LayersDrafter(model, LAYERS)
    drafter.begin(view, 0)
    assert grow(drafter, view, 5).tokens == decoded(model, view, [], 5, LAYERS)
    drafter.end(view)
    session.close()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=5),
    st.integers(1, 60),
)
def test_no_draft_changes_the_target_s_cache(
    model: NativeModel, seed: int, rounds: list[tuple[int, int, int]], prompt_length: int
) -> None:
    """Any history of drafts, another drafter's tokens before them, and of what was committed of them."""
    random = np.random.default_rng(seed)
    view, session = view_of(model, random.integers(0, 200, prompt_length).tolist())
    same = model.open_session()
    feed_silently(model, same, view.tokens[:-1], 64)
    drafter = LayersDrafter(model, LAYERS)
    drafter.begin(view, 0)
    for steps, foreign, accepted in rounds:
        path = random.integers(0, 200, foreign).tolist()
        draft = grow(drafter, view, steps, Draft.chain(path, "other"))
        assert draft.tokens == [*path, *decoded(model, view, path, steps, LAYERS)]
        assert session.length == len(view.tokens) - 1
        assert same_cache(cached(model, session), cached(model, same))
        committed = [view.tokens[-1], *draft.tokens[:accepted]]
        model.forward([Segment(session, [view.tokens[-1], *draft.tokens])])
        session.commit(range(len(committed)))
        feed(model, same, committed)
        assert same_cache(cached(model, session), cached(model, same))
        view.tokens += [*committed[1:], int(random.integers(0, 200))]
    drafter.end(view)
    session.close()
    same.close()


def test_a_step_is_one_forward_for_all_sequences(model: NativeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    views = [view_of(model, range(40, 60)), view_of(model, range(50, 120))]
    expected = [decoded(model, view, [], 2, LAYERS) for view, _ in views]
    drafter, drafts, forwards = LayersDrafter(model, LAYERS), [Draft(), Draft()], []
    inner = model.forward
    monkeypatch.setattr(model, "forward", lambda batch, **more: forwards.append(len(batch)) or inner(batch, **more))
    for _ in range(2):
        drafter.extend([Growth(view, draft, 4) for (view, _), draft in zip(views, drafts, strict=True)])
    assert [draft.tokens for draft in drafts] == expected
    assert forwards == [2, 2]
    for _, session in views:
        session.close()


def test_rows_of_another_subset_are_not_continued(model: NativeModel) -> None:
    """Two drafters in turn on one session; each begins anew where the other has been."""
    view, session = view_of(model, range(40, 90))
    one, other = LayersDrafter(model, LAYERS), LayersDrafter(model, OTHERS, source="layers2")
    mine, yours = Draft(), Draft()
    for _ in range(3):
        grow(one, view, 1, mine)
        grow(other, view, 1, yours)
    assert mine.tokens == decoded(model, view, [], 3, LAYERS)
    assert yours.tokens == decoded(model, view, [], 3, OTHERS)
    assert {*mine.sources, *yours.sources} == {"layers", "layers2"}
    session.close()


def test_another_draft_of_the_same_round_begins_anew(model: NativeModel) -> None:
    view, session = view_of(model, range(40, 90))
    drafter = LayersDrafter(model, LAYERS)
    grow(drafter, view, 3)
    path = [7, 8]
    again = grow(drafter, view, 2, Draft.chain(path, "other"))
    assert again.tokens[2:] == decoded(model, view, path, 2, LAYERS)
    session.close()


def test_siblings_cost_no_forward(model: NativeModel) -> None:
    view, session = view_of(model, range(40, 90))
    draft = Draft()
    LayersDrafter(model, LAYERS).extend([Growth(view, draft, 3, 3)])
    assert draft.parents == [-1, -1, -1]
    assert draft.tokens[0] == decoded(model, view, [], 1, LAYERS)[0]
    session.close()


def test_a_prompt_that_is_not_read_yet(model: NativeModel) -> None:
    """A short rest is read through the layers, a long one by the target first."""
    drafter, session = LayersDrafter(model, LAYERS), model.open_session()
    feed_silently(model, session, range(10), 10)
    view = View(list(range(10 + MOST_READ)), SAMPLED, model.vocabulary.size, session=session)
    assert drafter.lag(view) == MOST_READ
    assert len(grow(drafter, view, 2)) == 2
    view.tokens.append(1)
    assert len(grow(drafter, view, 2)) == 0
    imagined = View(list(range(10)), SAMPLED, model.vocabulary.size)
    assert (drafter.lag(imagined), len(grow(drafter, imagined, 1))) == (1, 0)
    session.close()


def test_more_rows_than_a_forward_takes_are_read_in_several(tmp_path: Path) -> None:
    path = tiny_decoder(tmp_path / "tiny.gguf", "llama", shape=SHAPE)
    small = load_native(path, context_length=CONTEXT, max_sequences=4, threads=1, max_rows=16)
    drafter, views = LayersDrafter(small, LAYERS), []
    for start in (0, 50):
        session = small.open_session()
        views.append(View(list(range(start, start + 50)), SAMPLED, small.vocabulary.size, session=session))
    drafts = [Draft(), Draft()]
    for _ in range(2):
        drafter.extend([Growth(view, draft, 2) for view, draft in zip(views, drafts, strict=True)])
    for view, draft in zip(views, drafts, strict=True):
        alone = small.open_session()
        view = View(view.tokens, SAMPLED, small.vocabulary.size, session=alone)
        assert grow(LayersDrafter(small, LAYERS), view, 2).tokens == draft.tokens
        alone.close()
    small.close()


def test_the_context_s_end_ends_drafting(model: NativeModel) -> None:
    view, session = view_of(model, [3] * (CONTEXT - 2))
    assert len(grow(LayersDrafter(model, LAYERS), view, 5)) == 3
    session.close()


def test_it_takes_no_memory_and_leaves_the_target_open(model: NativeModel) -> None:
    drafter = LayersDrafter(model, LAYERS)
    assert drafter.memory() == 0
    drafter.close()
    assert drafter.model.capabilities == model.capabilities
    drafter.model.close()
    assert model.is_open
