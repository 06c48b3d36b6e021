"""Clients that send nonsense, have no key, or ask what others asked; and what is counted and logged."""

import json
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from slipstream.models import ChatTemplate
from slipstream.server.app import Doors
from slipstream.server.description import BODIES
from slipstream.server.service import Limits
from tests.fakes import GatedModel
from tests.server.serving import LetterVocabulary, Served, fake_engine, serving, until

CHAT = {"messages": [{"role": "user", "content": "hello"}], "seed": 1, "max_tokens": 5}
ENDLESS = {**CHAT, "max_tokens": 400, "logit_bias": {"256": -100}}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(limits=Limits(body=2**20, patience=5.0)) as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=20) as one:
        yield one


def still_serves(client: httpx.Client) -> None:
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"{", 400, "not JSON"),
        (b'{"messages": "\xff"}', 400, "not JSON"),
        (b"[" * 10_000, 400, "deeply"),
        (b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400, "deeply"),
        (b"[]", 400, "object"),
        (b"null", 400, "object"),
        (b"", 400, "not JSON"),
        (b'{"messages": 5}', 400, "messages"),
        (b'{"messages": [5]}', 400, "messages.0: Input should be an object."),
        (json.dumps({**CHAT, "stop": ["x"] * 65}).encode(), 400, "stop: List should have at most 64 items"),
        (json.dumps({**CHAT, "stop": ["x", 5]}).encode(), 400, "stop.1: Input should be a valid string"),
        (json.dumps({**CHAT, "speculation": 5}).encode(), 400, "speculation: Input should be an object."),
        (
            json.dumps({"messages": [{"role": "user", "content": "x" * 2**21}]}).encode(),
            413,
            "larger than 1,048,576 bytes",
        ),
        (b'{"seed": NaN, "messages": [{"role": "user", "content": "x"}]}', 400, "NaN"),
        (b'{"temperature": Infinity, "messages": [{"role": "user", "content": "x"}]}', 400, "Infinity"),
        (b'{"metadata": {"\\ud800": 1}, "messages": [{"role": "user", "content": "x"}]}', 400, "not JSON"),
        (b'{"seed": 1e400, "messages": [{"role": "user", "content": "x"}]}', 400, "too large, 1e400"),
        (b'{"max_tokens": 1' + b"0" * 5000 + b"}", 400, ""),
        (b'{"input": "x", "text": {"format": {"type": "text", "x": 1e999}}}', 400, "too large, 1e999"),
        (b'{"input": "\xed\xa0\x80", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', 400, "not JSON"),
        (json.dumps({**CHAT, "input": "x", "prompt": "x"}).encode("utf-16"), 400, "not JSON"),
        (json.dumps({**CHAT, "input": "x", "prompt": "x"}).encode("utf-16-le"), 400, "not JSON"),
    ],
)
def test_nonsense_is_refused(client: httpx.Client, body: bytes, status: int, word: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"):
        answer = client.post(path, content=body)
        assert answer.status_code in (status, 400), (path, answer.text)
        error = answer.json()["error"]
        if path == "/v1/chat/completions":
            assert answer.status_code == status
            assert word in error["message"]
    still_serves(client)


NULLS = [None] * 50_000
MANY = {f"a{number}": None for number in range(30_000)}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": NULLS}),
        ("/v1/completions", {"prompt": "a", "logit_bias": MANY}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"x" * 100_000: 1}}),
        ("/v1/completions", {"prompt": "a", "stop": NULLS}),
        ("/v1/chat/completions", {"messages": NULLS}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": NULLS}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "x" * 100_000}]}]}),
        ("/v1/chat/completions", {**CHAT, "stop": "x" * 300}),
        ("/v1/chat/completions", {**CHAT, "n": 17}),
        ("/v1/chat/completions", {**CHAT, "logit_bias": MANY}),
        ("/v1/chat/completions", {"messages": [], "tools": NULLS}),
        ("/v1/responses", {"input": NULLS}),
        ("/v1/responses", {"input": "x", "metadata": MANY}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "function"}]}),
        ("/detokenize", {"tokens": NULLS}),
    ],
)
def test_what_is_sent_to_waste_time_is_refused_at_the_first_mistake(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as caught:
        BODIES[path][0].model_validate(body)
    assert caught.value.error_count() < 10
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert len(answer.text) < 500
    still_serves(client)


def test_a_request_for_more_than_there_could_ever_be_room_for_is_no_matter_of_waiting(client: httpx.Client) -> None:
    assert "at most 20" in client.post("/v1/completions", json={"prompt": ["a"] * 21}).json()["error"]["message"]


def test_null_is_not_given(client: httpx.Client) -> None:
    nothing = dict.fromkeys(("stream", "stream_options", "speculation", "temperature", "stop", "n", "logprobs"))
    assert client.post("/v1/chat/completions", json={**CHAT, **nothing}).status_code == 200
    assert client.post("/v1/completions", json={"prompt": "a", "echo": None, "max_tokens": 2}).status_code == 200


def test_unknown_paths_and_methods_are_told_so(client: httpx.Client) -> None:
    assert "no /v2/x here" in client.get("/v2/x").json()["error"]["message"]
    assert client.get("/v1/chat/completions").status_code == 405
    assert client.delete("/health").json()["error"]["type"] == "invalid_request_error"


def test_a_crowd_gets_answers_or_is_told_to_come_back() -> None:
    """As many as there are places, and not one more."""
    model = GatedModel(vocabulary=LetterVocabulary(), context_length=512, max_rows=64, max_sessions=2)
    with serving(fake_engine(2, model), parallel=2, queue=8) as served:
        statuses: list[int] = []

        def ask() -> None:
            answer = httpx.post(f"{served.url}/v1/chat/completions", json={**CHAT, "max_tokens": 20}, timeout=60)
            statuses.append(answer.status_code)
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) >= 1
                assert "try again" in answer.json()["error"]["message"]

        model.gate.clear()
        threads = [threading.Thread(target=ask) for _ in range(60)]
        for one in threads:
            one.start()
        until(lambda: len(statuses) == 50)
        model.gate.set()
        for one in threads:
            one.join()
        assert (statuses.count(200), statuses.count(503)) == (10, 50)
        assert served.is_idle


def test_nothing_is_prepared_for_whom_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """No template, no tokens, no schema: who is told to come back costs next to nothing."""
    model = GatedModel(vocabulary=LetterVocabulary(), context_length=512, max_rows=64, max_sessions=1)
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "string"}}}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {**CHAT, "response_format": schema},
        "/v1/completions": {"prompt": "x", "response_format": schema},
        "/v1/responses": {"input": "x", "text": {"format": schema}},
    }

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    with serving(fake_engine(1, model), parallel=1, queue=0) as served:
        model.gate.clear()
        first = threading.Thread(
            target=httpx.post, args=(f"{served.url}/v1/chat/completions",), kwargs={"json": CHAT, "timeout": 60}
        )
        first.start()
        until(lambda: served.service.worker.load.active == 1)
        monkeypatch.setattr(ChatTemplate, "render", never)
        monkeypatch.setattr(LetterVocabulary, "tokenize", never)
        monkeypatch.setattr("slipstream.server.response_format.Grammar.from_json_schema", never)
        for path, body in bodies.items():
            assert httpx.post(f"{served.url}{path}", json=body).status_code == 503, path
        model.gate.set()
        first.join()


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(LetterVocabulary, "tokenize", never)
    text = "x" * 500_000
    for path, body in {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/v1/completions": {"prompt": text},
        "/v1/responses": {"input": text},
    }.items():
        error = client.post(path, json=body).json()["error"]
        assert error["code"] == "context_length_exceeded", path
        assert "at least" in error["message"]


def test_large_answers_are_built_beside_the_loop(
    served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    details, spelling = served.service.details, served.service.spelling

    def watched(function: Any) -> Any:
        def watching(*given: Any) -> Any:
            threads.add(threading.current_thread().name)
            return function(*given)

        return watching

    monkeypatch.setattr(served.service, "details", watched(details))
    monkeypatch.setattr(served.service, "spelling", watched(spelling))
    more = {"seed": 1, "speculation": {"details": True}}
    client.post("/v1/chat/completions", json={**CHAT, **more, "logprobs": True, "top_logprobs": 3})
    client.post("/v1/completions", json={"prompt": "x", **more, "logprobs": 3})
    client.post("/v1/responses", json={"input": "x", **more, "max_output_tokens": 5})
    client.post("/tokenize", json={"content": "abc", "with_pieces": True})
    assert threads
    assert "server" not in threads


def test_what_takes_too_long_is_ended() -> None:
    with serving(limits=Limits(timeout=0.0, patience=1.0)) as served:
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=ENDLESS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json={**ENDLESS, "stream": True}) as stream:
            lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "timeout"


def test_a_shutdown_lets_streams_end() -> None:
    with serving() as served, httpx.stream(
        "POST", f"{served.url}/v1/chat/completions", json={**ENDLESS, "stream": True, "max_tokens": 300}
    ) as stream:  # fmt: skip
        lines = stream.iter_lines()
        next(lines)
        served.stop()
        rest = list(lines)
    assert rest[-2:].count("data: [DONE]") == 1


def test_the_key_opens_and_nothing_else() -> None:
    with serving(doors=Doors(api_key="voilà")) as served, httpx.Client(base_url=served.url) as client:
        assert client.get("/health").status_code == 200
        for given in (None, "", "Bearer", "Bearer wrong", "Basic voilà", "Bearer voil"):
            headers = {} if given is None else {"Authorization": given.encode()}
            answer = client.get("/v1/models", headers=headers)
            assert answer.status_code == 401, given
            assert answer.json()["error"]["type"] == "authentication_error"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 401
        assert client.get("/metrics").status_code == 401
        answer = client.get("/v1/models", headers={"Authorization": "Bearer voilà".encode()})
        assert answer.status_code == 200


def test_other_sites_stay_out_unless_they_are_named() -> None:
    doors = Doors(cors_origins=["https://a.example"], hosts=["127.0.0.1", "localhost"])
    with serving(doors=doors) as served, httpx.Client(base_url=served.url) as client:
        ask: dict[str, Any] = {"url": "/v1/chat/completions", "json": CHAT}
        assert client.post(**ask, headers={"Origin": served.url}).status_code == 200
        allowed = client.post(**ask, headers={"Origin": "https://a.example"})
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        assert client.post(**ask, headers={"Origin": "https://b.example"}).status_code == 403
        for origin in ("null", "http://[::1", ""):
            assert client.post(**ask, headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize(
    ("host", "welcome"),
    [
        ("127.0.0.1", True),
        ("LOCALHOST:8080", True),
        ("a.b.example", True),
        ("[::1]:80", True),
        ("evil.example", False),
        ("b.example", False),
        ("127.0.0.1.evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_a_server_answers_to_its_own_names(host: str, welcome: bool) -> None:
    doors = Doors(hosts=["127.0.0.1", "localhost", "::1", "*.b.example"])
    with serving(doors=doors) as served:
        answer = httpx.get(f"{served.url}/health", headers={"Host": host})
        assert answer.status_code == (200 if welcome else 400)
        assert welcome or "--allowed-host" in answer.json()["error"]["message"]


def test_nothing_leaks_from_one_request_into_the_next(served: Served, client: httpx.Client) -> None:
    with fake_engine() as alone:
        for seed in range(30):
            messages = [{"role": "user", "content": f"secret {seed}" * (1 + seed % 5)}]
            body = {"messages": messages, "seed": seed, "max_tokens": 15, "presence_penalty": 1.5 * (seed % 2)}
            answer = client.post("/v1/chat/completions", json=body).json()
            expected = alone.generate(messages, seed=seed, max_tokens=15, presence_penalty=1.5 * (seed % 2))
            assert answer["choices"][0]["message"]["content"] == expected.text


def test_every_request_has_an_id_and_no_prompt_is_logged(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="slipstream.server"):
        answer = client.post(
            "/v1/chat/completions", json={**CHAT, "messages": [{"role": "user", "content": "PRIVATE"}]}
        )
        until(lambda: answer.headers["x-request-id"] in caplog.text)  # the line is written when the answer has gone
    assert "/v1/chat/completions 200" in caplog.text
    assert "PRIVATE" not in caplog.text


def test_metrics_count_what_was_drafted(client: httpx.Client, served: Served) -> None:
    before = dict(served.metrics.figures())
    client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 30})
    text = client.get("/metrics").text
    after = dict(served.metrics.figures())
    for name in ("rounds", "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "tokens_predicted"):
        assert after[f"slipstream:{name}_total"] > before[f"slipstream:{name}_total"]
        assert f"slipstream:{name}_total" in text
    grown = after["slipstream:tokens_predicted_total"] - before["slipstream:tokens_predicted_total"]
    assert 1 <= grown <= 30
    assert "slipstream:time_to_first_token_seconds_bucket" in text
    assert 'slipstream:spec_decode_num_accepted_tokens_per_pos_total{position="0"}' in text


def test_tokens_and_text(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"content": "abc", "add_special": True}).json()["tokens"]
    assert ids == list(b"abc")
    assert client.post("/detokenize", json={"tokens": ids}).json()["content"]
    pieces = client.post("/tokenize", json={"content": "ab", "with_pieces": True}).json()["tokens"]
    assert [one["id"] for one in pieces] == list(b"ab")
    assert client.post("/detokenize", json={"tokens": [0, 256]}).json() == {"content": "a<end>"}
    assert "between 0 and 257" in client.post("/detokenize", json={"tokens": [258]}).json()["error"]["message"]
    props = client.get("/props").json()
    assert (props["context_length"], props["parallel"], props["drafter"]) == (512, 4, "suffix+model")
    assert props["default_generation_settings"]["temperature"] == 0.8
    assert client.get("/health").json()["status"] == "ok"


def test_a_mistake_of_ours_is_a_500_with_an_id_and_a_line_in_the_log(
    served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(served.service, "figures", broken)
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert answer.headers["x-request-id"] in caplog.text
    assert "a mistake" in caplog.text
    monkeypatch.undo()
    still_serves(client)


def test_a_stream_that_cannot_begin_holds_nothing(served: Served, client: httpx.Client) -> None:
    served.jobs.clear()
    body = {"input": "x", "stream": True, "max_output_tokens": 400, "seed": 6}  # with which it is so long
    with client.stream("POST", "/v1/responses", json=body):
        pass  # and away, perhaps before anything came
    until(lambda: served.is_idle)
    assert [job.cancelled for job in served.jobs] == [True]


def test_the_first_token_is_waited_for_from_the_request_on(
    served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template and the tokens take time that clients wait, too."""
    rendered_at: list[float] = []
    tokenize = LetterVocabulary.tokenize

    def noting(self: LetterVocabulary, text: str, **options: Any) -> list[int]:
        rendered_at.append(monotonic())
        return tokenize(self, text, **options)

    monkeypatch.setattr(LetterVocabulary, "tokenize", noting)
    for path, body in {
        "/v1/chat/completions": CHAT,
        "/v1/completions": {"prompt": "x"},
        "/v1/responses": {"input": "x", "max_output_tokens": 5},
    }.items():
        rendered_at.clear()
        client.post(path, json=body)
        job = served.jobs[-1]
        assert job.asked_at < rendered_at[0]
        assert job.waited is not None
