"""A real model that would seldom write JSON by itself: with a schema it always does, and the same however it drafts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from slipstream import Completion, Engine, ModelOptions
from slipstream.core.protocols import Policy
from slipstream.draft import SuffixDrafter
from slipstream.grammar import Grammar
from slipstream.policy import FixedLength
from slipstream.server.tools import Tools
from tests.server.test_tools import NAMED, SCHEMAS, TOOLS

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

SUBJECTS = ["cat", "river", "lantern", "violin", "Paris", "bread", "winter", "train", "moon", "garden"]
PROMPTS = [f"{ask} {subject}." for ask in ("Describe a", "Invent a story about a") for subject in SUBJECTS]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["animal", "place", "thing", "time of year"]},
        "words": {"type": "array", "items": {"type": "string", "pattern": "^[a-zé]{2,12}$"}, "maxItems": 4},
        "score": {"type": "integer", "minimum": 0, "maximum": 10},
        "source": {
            "anyOf": [
                {"type": "null"},
                {"type": "object", "properties": {"year": {"enum": [1, 2]}}, "additionalProperties": False},
            ]
        },
    },
    "required": ["title", "kind", "words", "score"],
    "additionalProperties": False,
}
TOKENS = 120


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Iterator[Engine]:
    options = ModelOptions(runtime="native", context_length=512)
    with Engine.load(smollm2, draft=[SuffixDrafter()], speculation="off", options=options) as engine:
        assert engine.target.capabilities.bit_exact_rows
        yield engine


def answer(engine: Engine, policy: Policy, prompt: str, grammar: Grammar | None, temperature: float) -> Completion:
    engine.policy = policy
    messages = [{"role": "user", "content": prompt}]
    return engine.generate(messages, grammar=grammar, temperature=temperature, seed=11, max_tokens=TOKENS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_follow_the_schema_and_drafts_do_not_matter(engine: Engine, temperature: float) -> None:
    grammar, complete, rounds, tokens = Grammar.from_json_schema(SCHEMA), 0, 0, 0
    assert len(PROMPTS) == 20
    for prompt in PROMPTS:
        plain = answer(engine, FixedLength(0), prompt, grammar, temperature)
        fast = answer(engine, FixedLength(3, siblings=2), prompt, grammar, temperature)
        assert (fast.tokens, fast.text, fast.logprobs) == (plain.tokens, plain.text, plain.logprobs)
        assert fast.finish_reason == plain.finish_reason
        assert plain.timings.draft_n == 0
        rounds, tokens = rounds + fast.statistics.rounds, tokens + len(fast.tokens)
        if plain.finish_reason == "stop":
            validate(json.loads(plain.text), SCHEMA)
            complete += 1
    assert complete >= 15, "an answer may be cut by its budget, but most are not"
    assert rounds < 0.8 * tokens, "what is forced was drafted"


def test_without_a_schema_it_would_have_said_something_else(engine: Engine) -> None:
    free = answer(engine, FixedLength(0), PROMPTS[0], None, 0.0)
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(free.text)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_has_to_be_is_one(engine: Engine, choice: Any, temperature: float) -> None:
    """The model's template knows no tools, so they are described in the system prompt."""
    assert engine.template is not None
    tools = Tools(engine.template, engine.target.vocabulary, TOOLS, choice, parallel=False)
    prompt = engine.tokenize_rendered(tools.render([{"role": "user", "content": "How is the weather in Rome?"}]))
    engine.policy = FixedLength(6)
    completion = engine.generate(
        prompt, grammar=tools.grammar(), spelled=tools.spelled, temperature=temperature, seed=5, max_tokens=100
    )
    parser = tools.parser()
    assert parser.push(completion.text).content + parser.finish().content == ""
    [call] = parser.calls
    validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert completion.timings.draft_n_accepted > 10
