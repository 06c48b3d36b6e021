"""Advice and certificates of a drafter that wants the target's own sessions, of which there is but one."""

from collections.abc import Iterator

import pytest

from slipstream import Engine, ModelOptions
from slipstream.core.feed import feed
from slipstream.core.protocols import Growth
from slipstream.core.sampling import Sampler
from slipstream.core.tree import Draft
from slipstream.engine import GenerationOptions
from slipstream.engine.options import sampling_params
from slipstream.measure.cases import make_cases
from slipstream.measure.evidence import gather, tables_of
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.tracing import trace
from slipstream.measure.verification import Scope, Verification
from tests.helpers import View
from tests.tiny_models import Shape, tiny_llama

PROMPTS = [BenchPrompt(str(number), "own", text=f"{number} the thing and another {number}") for number in range(2)]
DRAFT = "layers:0-3"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    shape = Shape(heads=4, key_value_heads=2, feed_forward=96, layers=6)
    path = tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", shape=shape)
    options = ModelOptions(runtime="native", context_length=256, threads=1)
    with Engine.load(path, speculation="off", options=options) as loaded:
        yield loaded


def test_the_trace_is_what_would_have_been_drafted(engine: Engine) -> None:
    options = {"seed": 3, "temperature": 1.0, "max_tokens": 12}
    answer = engine.generate("the thing and another", **options)  # type: ignore[arg-type]
    params = sampling_params(engine.defaults, {"seed": 3, "temperature": 1.0})
    with engine.sharing(draft=DRAFT, speculation="on") as sharing:
        [drafter] = sharing.drafters
        sampler = Sampler(params, engine.target.vocabulary.size, answer.prompt_tokens)
        ids = answer.prompt_tokens, answer.tokens
        found = trace(drafter, *ids, sampler, siblings=3, plain=engine)
        assert found is not None
        for place, level in enumerate(found.levels):
            tokens = [*answer.prompt_tokens, *answer.tokens[:place]]
            with engine.sessions.lent(tokens) as session:
                for _ in feed(engine.target, session, tokens[session.length : -1]):
                    pass
                view, draft = View(tokens, params, engine.target.vocabulary.size, session=session), Draft()
                drafter.extend([Growth(view, draft, 3, 3)])
            assert draft.tokens == level.tokens


def test_advice_has_proposals_and_costs(engine: Engine) -> None:
    with engine.sharing(draft=DRAFT, speculation="on") as sharing:
        engine.sessions.close()
        [table] = tables_of(sharing.drafters)
        assert table is not None
        options: GenerationOptions = {"seed": 3, "temperature": 1.0, "max_tokens": 24}
        found = gather(engine, {"layers": sharing.drafters}, PROMPTS[0], options)
    [traced], [alternation] = found["layers"].traces, found["layers"].alternations
    assert traced is not None
    right = sum(level.tokens[:1] == [token] for level, token in zip(traced.levels, found["layers"].answer, strict=True))
    assert 0 < right < len(traced.levels)
    assert alternation is not None


def test_a_certificate_with_the_test_of_the_law(engine: Engine) -> None:
    given = {"temperature": 0.9, "top_p": 0.95, "min_p": 0.02, "max_tokens": 16}
    cases = make_cases(engine, PROMPTS, 7, 1)
    made = Verification(engine, cases, given, Scope([DRAFT], distribution=True, draws=300))  # type: ignore[arg-type]
    made.run()
    assert made.outcome == "identical"
    assert not made.failed
    assert made.law is not None
    own = [test for _, drafter, test in made.law.tests if drafter == DRAFT]
    assert len(own) > 0
    assert all(test.accepted > 0 for test in own)
