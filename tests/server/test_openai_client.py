"""OpenAI's own client against a real server."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from slipstream.engine import Engine
from slipstream.models import ChatTemplate
from tests.fakes import ByteVocabulary, FakeModel
from tests.server.serving import TEMPLATE, LetterVocabulary, Served, fake_engine, serving

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there, hello there"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def alone() -> Iterator[Engine]:
    with fake_engine() as engine:
        yield engine


def test_a_chat_is_the_engine_s_text(client: openai.OpenAI, alone: Engine, served: Served) -> None:
    expected = alone.generate(MESSAGES, seed=3, max_tokens=40, num_draft_tokens=0)
    for speculation in ("auto", "off"):
        answer = client.chat.completions.create(
            model="any", messages=MESSAGES, seed=3, max_tokens=40, extra_body={"speculation": speculation}
        )
        [choice] = answer.choices
        assert choice.message.content == expected.text
        assert choice.finish_reason == expected.finish_reason
        assert answer.model == "fake"
        assert answer.usage.prompt_tokens == len(expected.prompt_tokens)
        assert answer.usage.completion_tokens == len(expected.tokens)
        assert answer.timings["draft_n"] == 0 if speculation == "off" else answer.timings["draft_n"] > 0
        assert answer.speculation["rounds"] <= len(expected.tokens)
        assert answer.speculation["enabled"] == (speculation == "auto")


def test_a_stream_joins_to_the_same_text_and_ends_with_its_usage(client: openai.OpenAI, alone: Engine) -> None:
    expected = alone.generate(MESSAGES, seed=4, max_tokens=30)
    chunks = list(
        client.chat.completions.create(
            model="any", messages=MESSAGES, seed=4, max_tokens=30, stream=True, stream_options={"include_usage": True},
            extra_body={"speculation": {"mode": "auto", "details": True}},
        )
    )  # fmt: skip
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == expected.text
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == [expected.finish_reason]
    assert chunks[-1].usage.completion_tokens == len(expected.tokens)
    assert chunks[-1].timings["predicted_n"] == len(expected.tokens)
    tokens = [token for chunk in chunks if chunk.choices for token in getattr(chunk.choices[0], "tokens", [])]
    assert [token["id"] for token in tokens] == expected.tokens
    assert "".join([token["text"] for token in tokens]) == expected.text
    assert any(token["accepted"] for token in tokens)
    assert {token["drafter"] for token in tokens if token["accepted"]} <= {"suffix", "model"}
    assert tokens[-1]["round"] == max(token["round"] for token in tokens)


def test_a_prediction_is_counted_and_changes_nothing(alone: Engine) -> None:
    expected = alone.generate(MESSAGES, seed=3, max_tokens=40, num_draft_tokens=0)
    model = FakeModel(LetterVocabulary(), seed=1, order=1, context_length=512, max_rows=64, max_sessions=4)
    engine = Engine(model, template=ChatTemplate(TEMPLATE), defaults=alone.defaults)
    with serving(engine) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "any", "messages": MESSAGES, "seed": 3, "max_tokens": 40}
        for content in ("a text", [{"type": "text", "text": "a "}, {"type": "text", "text": "text"}]):
            answer = client.chat.completions.create(**asked, prediction={"type": "content", "content": content})
            assert answer.choices[0].message.content == expected.text
            details = answer.usage.completion_tokens_details
            counts = details.accepted_prediction_tokens, details.rejected_prediction_tokens
            assert sum(counts) == answer.timings["draft_n"] > 0
            assert counts[0] == answer.timings["draft_n_accepted"]
            assert answer.speculation["drafter"] == "prediction"
        without = client.chat.completions.create(**asked)
        assert without.usage.completion_tokens_details.rejected_prediction_tokens == 0
        with pytest.raises(openai.BadRequestError, match="prediction"):
            client.chat.completions.create(**asked, prediction={"type": "image", "content": "x"})


def test_log_probabilities_are_those_of_plain_decoding(client: openai.OpenAI, alone: Engine) -> None:
    expected = alone.generate(MESSAGES, seed=5, max_tokens=12, num_draft_tokens=0)
    answer = client.chat.completions.create(
        model="any", messages=MESSAGES, seed=5, max_tokens=12, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert [one.logprob for one in content] == expected.logprobs
    for one in content:
        assert len(one.top_logprobs) == 3
        assert one.top_logprobs[0].logprob >= one.top_logprobs[1].logprob >= one.top_logprobs[2].logprob
        assert one.top_logprobs[0].logprob >= one.logprob


def test_several_choices_differ_and_the_first_is_the_only_one_s(client: openai.OpenAI) -> None:
    def texts(n: int) -> list[str]:
        answer = client.chat.completions.create(model="any", messages=MESSAGES, seed=6, max_tokens=20, n=n)
        assert [choice.index for choice in answer.choices] == list(range(n))
        return [choice.message.content for choice in answer.choices]

    three = texts(3)
    assert len(set(three)) == 3
    assert texts(1) == three[:1]


@pytest.mark.parametrize("usage", [False, True])
def test_the_figures_of_a_request_are_of_all_its_texts(client: openai.OpenAI, served: Served, usage: bool) -> None:
    asked: Any = {"model": "any", "messages": MESSAGES, "seed": 6, "max_tokens": 20, "n": 3}
    asked |= {"logit_bias": {"256": -100}}
    answer = client.chat.completions.create(**asked)
    assert answer.timings["predicted_n"] == answer.usage.completion_tokens == 60
    rounds = [len(job.completion.rounds) for job in served.jobs[-3:]]
    assert answer.speculation["rounds"] == sum(rounds) > max(rounds)
    more: Any = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(client.chat.completions.create(**asked, stream=True, **more))
    assert [bool(getattr(chunk, "timings", None)) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].timings["predicted_n"] == 60
    texts = client.completions.create(model="any", prompt=["a", "b"], max_tokens=5, logit_bias={"256": -100}, n=2)
    assert texts.timings["predicted_n"] == texts.usage.completion_tokens == 20


def test_stop_strings_biases_and_penalties_go_through(client: openai.OpenAI, alone: Engine) -> None:
    plain = alone.generate(MESSAGES, seed=7, max_tokens=30).text
    stop = plain[5:7]
    answer = client.chat.completions.create(model="any", messages=MESSAGES, seed=7, max_tokens=30, stop=[stop, "!?"])
    assert answer.choices[0].message.content == plain[: plain.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    answer = client.chat.completions.create(
        model="any", messages=MESSAGES, seed=7, max_completion_tokens=10, logit_bias={"42": 100}, temperature=0
    )
    assert answer.choices[0].message.content == "q" * 10


@pytest.mark.parametrize(
    ("field", "option", "value"),
    [
        ("top_k", "top_k", 3),
        ("min_p", "min_p", 0.3),
        ("repetition_penalty", "repetition_penalty", 1.8),
        ("repeat_penalty", "repetition_penalty", 1.8),
        ("top_p", "top_p", 0.3),
        ("presence_penalty", "presence_penalty", 1.9),
        ("frequency_penalty", "frequency_penalty", 1.9),
    ],
)
def test_every_sampling_option_is_the_engine_s(
    client: openai.OpenAI, alone: Engine, field: str, option: str, value: float
) -> None:
    options: dict[str, Any] = {"seed": 11, "max_tokens": 40, "temperature": 1.5}
    expected = alone.generate(MESSAGES, **options, **{option: value}).text  # type: ignore[arg-type]
    assert expected != alone.generate(MESSAGES, **options).text
    answer = client.chat.completions.create(model="any", messages=MESSAGES, extra_body={**options, field: value})
    assert answer.choices[0].message.content == expected
    continued = client.completions.create(model="any", prompt="Once", extra_body={**options, field: value})
    assert continued.choices[0].text == alone.generate("Once", **options, **{option: value}).text  # type: ignore[arg-type]
    response = client.responses.create(
        model="any", input=MESSAGES, max_output_tokens=40, extra_body={**options, field: value}
    )
    assert response.output_text == expected


def test_thinking_can_be_switched() -> None:
    engine = fake_engine()
    engine.template = ChatTemplate(TEMPLATE + "{% if enable_thinking is false %}<think></think>{% endif %}")
    with serving(engine) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        for switch, more in ((None, 0), (True, 0), (False, len("<think></think>"))):
            thinking = {} if switch is None else {"chat_template_kwargs": {"enable_thinking": switch, "other": 1}}
            answer = client.chat.completions.create(
                model="any", messages=MESSAGES, max_tokens=3, seed=1, extra_body=thinking
            )
            expected = served.engine.tokenize(MESSAGES, think=switch)
            assert answer.usage.prompt_tokens == len(expected)
            assert len(expected) == len(served.engine.tokenize(MESSAGES)) + more


def test_completions_continue_text_and_ids_and_several_prompts(client: openai.OpenAI, alone: Engine) -> None:
    expected = alone.generate("Once upon", seed=8, max_tokens=16)
    answer = client.completions.create(
        model="any", prompt=["Once upon", "Once upon"], seed=8, n=2, echo=True, logprobs=2
    )
    assert len(answer.choices) == 4
    assert answer.choices[0].text == answer.choices[2].text == "Once upon" + expected.text
    assert answer.choices[0].logprobs.token_logprobs == expected.logprobs
    assert all(len(top) <= 2 for top in answer.choices[0].logprobs.top_logprobs)
    ids = list(b"Once upon")
    streamed = client.completions.create(model="any", prompt=ids, seed=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected.text


def test_tokens_that_are_no_text_keep_their_log_probabilities_apart() -> None:
    """Half a character is named by its bytes, as OpenAI names it; of tokens with one name the likelier keeps it."""

    class Twins(ByteVocabulary):
        def token_bytes(self, token: int) -> bytes:
            return b"a" if token in (97, 98) else super().token_bytes(token)

    def engine() -> Engine:
        return fake_engine(1, FakeModel(Twins(), seed=1, order=1, context_length=512, max_rows=64))

    with engine() as alone:
        expected = alone.generate("x", seed=2, max_tokens=60, logit_bias={256: -100.0, 257: -100.0})
    with serving(engine(), parallel=1) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        answer = client.completions.create(
            model="any", prompt="x", seed=2, max_tokens=60, logprobs=20, logit_bias={"256": -100, "257": -100}
        )
    told = answer.choices[0].logprobs
    assert [len(top) for top in told.top_logprobs] == [20] * 60
    names = {98: "a"} | {token: f"bytes:\\x{token:02x}" for token in range(128, 256)}
    assert told.tokens == [names.get(token, chr(token)) for token in expected.tokens]
    keys = {name for top in told.top_logprobs for name in top}
    assert "bytes:\\x80" in keys
    assert not any("\ufffd" in name for name in keys)


def test_responses(client: openai.OpenAI, alone: Engine) -> None:
    expected = alone.generate(MESSAGES, seed=9, max_tokens=200)
    answer = client.responses.create(
        model="any", instructions="be brief", input="hello there, hello there", max_output_tokens=200,
        extra_body={"seed": 9},
    )  # fmt: skip
    assert answer.output_text == expected.text
    assert answer.status == ("completed" if expected.finish_reason == "stop" else "incomplete")
    events = list(
        client.responses.create(model="any", input=MESSAGES, max_output_tokens=200, stream=True, extra_body={"seed": 9})
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type == f"response.{answer.status}"
    assert text == expected.text == events[-1].response.output_text
    with pytest.raises(openai.BadRequestError, match="not stored"):
        client.responses.create(model="any", input="hi", previous_response_id="resp_1")


def test_responses_tell_of_their_tokens_when_asked(client: openai.OpenAI, alone: Engine) -> None:
    expected = alone.generate(MESSAGES, seed=9, max_tokens=50)
    extra: dict[str, Any] = {"seed": 9, "speculation": {"details": True}}
    answer = client.responses.create(model="any", input=MESSAGES, max_output_tokens=50, extra_body=extra)
    [part] = answer.output[0].content
    assert [token["id"] for token in part.tokens] == expected.tokens
    assert [token["logprob"] for token in part.tokens] == expected.logprobs
    assert any(token["accepted"] for token in part.tokens)
    events = list(
        client.responses.create(model="any", input=MESSAGES, max_output_tokens=50, stream=True, extra_body=extra)
    )
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [token["id"] for event in deltas for token in event.tokens] == expected.tokens
    [done] = [event for event in events if event.type == "response.output_text.done"]
    assert done.tokens == part.tokens
    assert events[-1].response.output[0].content[0].tokens == part.tokens


def test_many_at_once_get_the_texts_they_would_have_alone(served: Served, alone: Engine) -> None:
    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            jobs = [
                client.chat.completions.create(
                    model="any", messages=[{"role": "user", "content": f"say {seed}"}], seed=seed, max_tokens=25
                )
                for seed in range(12)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*jobs)]

    texts = asyncio.run(all_of_them())
    for seed, text in enumerate(texts):
        assert text == alone.generate([{"role": "user", "content": f"say {seed}"}], seed=seed, max_tokens=25).text


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.models.retrieve("gpt")


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("temperature", -1, "temperature"),
        ("top_p", 0, "top_p"),
        ("n", 0, "n"),
        ("n", 100, "n"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("temperature", "1", "temperature"),
        ("top_logprobs", 3, "needs logprobs"),
        ("functions", [{"name": "f"}], "as tools"),
        ("stop", [""], "stop"),
        ("seed", "x", "seed"),
        ("logit_bias", {"5": 1000}, "logit_bias"),
        ("logit_bias", {"99999": 1}, "logit_bias"),
        ("top_logprobs", 21, "top_logprobs"),
        ("speculation", "sometimes", "speculation"),
        ("speculation", {"num_draft_tokens": 65}, "speculation"),
        ("messages", [], "messages"),
        ("messages", [{"role": "king", "content": "x"}], "messages"),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "image_url"),
        (
            "messages",
            [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}],
            "input_audio",
        ),
        ("messages", [{"role": "user", "content": "x" * 600}], "context holds 512"),
    ],
)
def test_impossible_values_are_refused_in_openai_s_shape(
    client: openai.OpenAI, field: str, value: object, word: str
) -> None:
    body = {"model": "any", "messages": MESSAGES, field: value}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    error = caught.value.body
    assert word in error["message"]
    assert error["type"] == "invalid_request_error"
    assert json.dumps(error)


@pytest.mark.parametrize(("field", "value"), [("suffix", "end"), ("best_of", 3)])
def test_what_would_change_the_answer_and_is_not_supported_is_refused(
    client: openai.OpenAI, field: str, value: object
) -> None:
    with pytest.raises(openai.BadRequestError, match=field):
        client.post("/completions", body={"model": "any", "prompt": "x", field: value}, cast_to=object)
    client.post("/completions", body={"prompt": "x", "max_tokens": 1, "n": 2, "best_of": 2}, cast_to=object)


def test_unknown_fields_are_ignored(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any", messages=MESSAGES, max_tokens=3, user="me", extra_body={"service_tier": "x", "foo": {"bar": 1}}
    )
    assert answer.choices[0].finish_reason == "length"
