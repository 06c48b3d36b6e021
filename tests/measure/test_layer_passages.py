"""How often layers agree with their model, on tiny native models."""

from collections.abc import Iterator

import numpy as np
import pytest

from slipstream import Engine, ModelOptions
from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Segment
from slipstream.core.sampling import Sampler
from slipstream.engine.options import sampling_params
from slipstream.measure.layer_passages import CHUNK, CONTEXT, TEMPERATURES, Passage, answered, opened, sessions_needed
from slipstream.measure.prompts import BenchPrompt
from tests.tiny_models import Shape, tiny_decoder

SHAPE = Shape(heads=4, key_value_heads=2, feed_forward=96, layers=6)
PROMPTS = [BenchPrompt(str(number), "own", text=f"{number} the thing and another {number}") for number in range(12)]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    tiny_decoder(path, request.param, shape=SHAPE)
    options = ModelOptions(runtime="native", context_length=CONTEXT, max_sequences=sessions_needed(), threads=1)
    with Engine.load(path, speculation="off", options=options) as loaded:
        # a drafter's filters are looser than the target's, which makes it wrong at times
        loaded.defaults = SamplingParams(top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.3)
        yield loaded


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def passages(engine: Engine) -> list[Passage]:
    return answered(engine, PROMPTS, 20, lambda done: None, never)


def test_answers_are_the_model_s_own_at_each_temperature(engine: Engine, passages: list[Passage]) -> None:
    assert {passage.temperature for passage in passages} == set(TEMPERATURES)
    assert {passage.checked for passage in passages} == {False, True}
    for passage in passages:
        again = engine.generate(passage.prompt, max_tokens=len(passage.answer), **passage.params())
        assert tuple(again.tokens) == passage.answer


def test_all_layers_are_always_right(engine: Engine, passages: list[Passage]) -> None:
    """Noise, positions, chunks and caches are those of plain decoding, or this would not be so."""
    with opened(engine, passages) as held:
        for checked in (False, True):
            found = held.agreement(tuple(range(SHAPE.layers)), checked=checked)
            answers = [passage for passage in passages if passage.checked == checked]
            for temperature in TEMPERATURES:
                asked = sum(len(passage.answer) for passage in answers if passage.temperature == temperature)
                assert found.asked[temperature] == found.right[temperature] == asked > 0
                assert found.rate(temperature) == 1.0


def test_some_layers_are_as_right_as_a_draft_would_be(engine: Engine, passages: list[Passage]) -> None:
    """One token after the other in a session of its own, anew from every chunk on."""
    layers, right = (0, 1, 4), dict.fromkeys(TEMPERATURES, 0)
    model = engine.target
    engine.sessions.close()
    for passage in (one for one in passages if not one.checked):
        text, first = (*passage.prompt, *passage.answer), len(passage.prompt)
        params = sampling_params(engine.defaults, passage.params())
        sampler = Sampler(params, model.vocabulary.size, passage.prompt)
        for start in range(first, len(text), CHUNK):
            session = model.open_session()
            model.forward([Segment(session, text[: start - 1], outputs=0)])
            session.commit(range(start - 1))
            for at in range(start, min(start + CHUNK, len(text))):
                [rows] = model.forward([Segment(session, [text[at - 1]])], layers=layers)
                guess = sampler.choose(np.array(rows.logits(0)), at)
                session.hold([0])
                right[passage.temperature] += guess == text[at]
                sampler.accept(text[at])
            session.close()
    with opened(engine, passages) as held:
        found = held.agreement(layers)
        assert held.agreement(layers) == found
    assert found.right == right
    assert 0 < sum(right.values()) < sum(found.asked.values())


def test_a_cost_is_a_share_of_a_plain_step(engine: Engine, passages: list[Passage]) -> None:
    with opened(engine, passages) as held:
        assert held.cost((0,)) > 0


def test_sessions_are_given_back(engine: Engine, passages: list[Passage]) -> None:
    with opened(engine, passages) as held:
        held.agreement((0, 1))
    sessions = [engine.target.open_session() for _ in range(sessions_needed())]
    for session in sessions:
        session.close()


def test_prompts_that_cannot_be_answered_are_left_out(engine: Engine) -> None:
    long = BenchPrompt("long", "own", text="a much longer text " * 60)
    assert answered(engine, [long], 20, lambda done: None, never) == []
    assert answered(engine, PROMPTS, 20, lambda done: None, lambda: True) == []
