"""Formats and tools through OpenAI's own client, against a real server."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from jsonschema import validate
from pydantic import BaseModel, Field

from slipstream.core.params import SamplingParams
from slipstream.draft import ModelDrafter, SuffixDrafter
from slipstream.engine import Engine
from slipstream.models import ChatTemplate
from slipstream.policy import FixedLength
from tests.fakes import ByteVocabulary, FakeModel
from tests.server import templates
from tests.server.serving import Served, serving
from tests.server.test_tools import NAMED, SCHEMAS, TOOLS

ASK: list[dict[str, Any]] = [{"role": "user", "content": "How is it?"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{0,8}$"}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA}}


class Pet(BaseModel):
    name: str = Field(pattern="^[a-z]{0,8}$")
    kind: Literal["cat", "dog"]


def engine(parallel: int = 4) -> Engine:
    """Says any byte; nothing it says is JSON unless it has to be."""
    target = FakeModel(ByteVocabulary(), seed=1, order=1, context_length=2048, max_rows=64, max_sessions=parallel)
    small = FakeModel(ByteVocabulary(), seed=1, order=1, context_length=2048, max_sessions=parallel)
    template = ChatTemplate(templates.HERMES)
    defaults = SamplingParams(temperature=1.0, seed=3)
    return Engine(target, [SuffixDrafter(), ModelDrafter(small)], FixedLength(3), template=template, defaults=defaults)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(engine(8), parallel=8, queue=64) as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def create(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(model="any", messages=ASK, max_tokens=400, **options)  # type: ignore[arg-type]


def joined(chunks: Any) -> tuple[str, list[Any], str]:
    """(content, calls, finish reason) of a stream with one choice."""
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    calls = [call for choice in choices for call in choice.delta.tool_calls or []]
    return "".join(choice.delta.content or "" for choice in choices), calls, choices[-1].finish_reason


def test_a_schema_holds_streamed_or_not_with_speculation_or_without(client: openai.OpenAI) -> None:
    texts = set()
    for mode in ("auto", "off"):
        options = {"response_format": FORMAT, "extra_body": {"speculation": mode}}
        answer = create(client, **options)
        [choice] = answer.choices
        validate(json.loads(choice.message.content), SCHEMA)
        assert choice.finish_reason == "stop"
        assert joined(create(client, stream=True, **options))[0] == choice.message.content
        assert answer.timings["draft_n_accepted"] > 10 if mode == "auto" else answer.timings["draft_n"] == 0
        texts.add(choice.message.content)
    assert len(texts) == 1


def test_a_model_of_pydantic_is_filled(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(model="any", messages=ASK, response_format=Pet)  # type: ignore[arg-type]
    assert isinstance(parsed.choices[0].message.parsed, Pet)
    response = client.responses.parse(model="any", input="A pet", text_format=Pet)
    assert isinstance(response.output_parsed, Pet)


def test_responses_repeat_what_is_known_of_a_format_and_nothing_else(client: openai.OpenAI) -> None:
    known = {"type": "json_schema", "name": "pet", "schema": SCHEMA, "strict": True}
    answer = client.responses.create(
        model="any", input="A pet", max_output_tokens=5, extra_body={"text": {"format": {**known, "more": [1e9]}}}
    )
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.model_dump(by_alias=True, exclude_unset=True) == known


def test_any_object(client: openai.OpenAI) -> None:
    answer = create(client, response_format={"type": "json_object"}, extra_body={"top_k": 1})
    [choice] = answer.choices
    assert choice.message.content.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


def test_completions_take_a_format_too(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="any", prompt="Pet: ", max_tokens=200, extra_body={"response_format": FORMAT}
    )
    validate(json.loads(answer.choices[0].text), SCHEMA)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_has_to_be_is_one_streamed_or_not(client: openai.OpenAI, choice: Any) -> None:
    options = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    [answer] = create(client, **options).choices
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
    [call] = answer.message.tool_calls
    validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    content, [streamed], reason = joined(create(client, stream=True, **options))
    assert (content, reason) == ("", "tool_calls")
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    assert (streamed.index, streamed.type) == (0, "function")


def test_the_result_of_a_call_goes_on_in_the_chat(client: openai.OpenAI) -> None:
    message = create(client, tools=TOOLS, tool_choice=NAMED).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    messages = [*ASK, message, result]
    again = client.chat.completions.create(model="any", messages=messages, tools=TOOLS, max_tokens=5)  # type: ignore[arg-type]
    assert again.choices[0].message.tool_calls is None
    without = client.chat.completions.create(model="any", messages=ASK, tools=TOOLS, max_tokens=5)  # type: ignore[arg-type]
    assert again.usage is not None
    assert without.usage is not None
    assert again.usage.prompt_tokens > without.usage.prompt_tokens + 20


def test_auto_and_none_leave_it_to_the_model(client: openai.OpenAI) -> None:
    plain = create(client, seed=9).choices[0].message.content
    assert create(client, seed=9, tools=TOOLS, tool_choice="none").choices[0].message.content == plain
    auto = create(client, seed=9, tools=TOOLS).choices[0]
    assert auto.message.tool_calls is None
    assert auto.finish_reason in ("stop", "length")


def test_log_probabilities_and_details_survive_tools(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"tools": TOOLS, "tool_choice": NAMED, "logprobs": True}
    options["extra_body"] = {"speculation": {"mode": "auto", "details": True}}
    answer = create(client, **options)
    chunks = list(create(client, stream=True, **options))
    streamed = [one for chunk in chunks for c in chunk.choices if c.logprobs for one in c.logprobs.content]
    assert [one.token for one in streamed] == [one.token for one in answer.choices[0].logprobs.content]
    assert "grammar" in {token["drafter"] for token in answer.choices[0].tokens}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "poem"}}}},
            "Invalid type: poem",
        ),
        ({"response_format": {"type": "xml"}}, "response_format must have the type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}, "no text"),
        ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice must be"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "needs a name"),
    ],
)
def test_impossible_requests_are_400(client: openai.OpenAI, options: dict[str, Any], says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says):
        create(client, **options)


@pytest.mark.parametrize(
    "calls", ["text", [7], [{}], [{"function": {"name": 7}}], [{"function": {"name": "a", "arguments": 7}}]]
)
def test_calls_that_are_none_are_400(client: openai.OpenAI, calls: Any) -> None:
    messages: Any = [*ASK, {"role": "assistant", "content": None, "tool_calls": calls}]
    with pytest.raises(openai.BadRequestError, match="tool_calls of a message"):
        client.chat.completions.create(model="any", messages=messages, max_tokens=5)


def test_under_load_every_text_is_what_it_is_alone(served: Served) -> None:
    """Formats, tools, plain texts, two choices and cancellations at once."""
    kinds: list[dict[str, Any]] = [
        {"response_format": FORMAT},
        {"tools": TOOLS, "tool_choice": "required"},
        {"n": 2, "response_format": FORMAT},
        {"max_tokens": 40},
    ]
    requests = [{"seed": seed, "max_tokens": 150, **kinds[seed % 4]} for seed in range(24)]

    async def ask(client: openai.AsyncOpenAI, request: dict[str, Any]) -> list[Any]:
        answer = await client.chat.completions.create(model="any", messages=ASK, **request)  # type: ignore[call-overload]
        return [_told(choice.message) for choice in answer.choices]

    async def leave(client: openai.AsyncOpenAI, seed: int) -> None:
        options: Any = {"messages": ASK, "response_format": FORMAT, "seed": seed, "stream": True}
        async for _ in await client.chat.completions.create(model="any", **options):
            return

    async def everybody() -> tuple[list[Any], list[Any]]:
        async with openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120
        ) as client:
            leaving = [leave(client, seed) for seed in range(4)]
            together = await asyncio.gather(*[ask(client, request) for request in requests], *leaving)
            alone = [await ask(client, {**one, "extra_body": {"speculation": "off"}}) for one in requests]
        return together[: len(requests)], alone

    together, alone = asyncio.run(everybody())
    assert together == alone


def _told(message: Any) -> Any:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return message.content, calls
