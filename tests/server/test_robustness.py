"""Clients that go away, send nonsense, or come in crowds."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from slipstream.server.app import Doors
from slipstream.server.service import Limits
from tests.server.serving import Served, fake_engine, serving

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


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_idle(served: Served) -> bool:
    load = served.service.worker.load
    return load.active == load.waiting == 0


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
        (
            json.dumps({"messages": [{"role": "user", "content": "x" * 2**21}]}).encode(),
            413,
            "larger than 1,048,576 bytes",
        ),
        (b'{"seed": NaN, "messages": [{"role": "user", "content": "x"}]}', 400, "NaN"),
        (b'{"temperature": Infinity, "messages": [{"role": "user", "content": "x"}]}', 400, "Infinity"),
        (b'{"metadata": {"\\ud800": 1}, "messages": [{"role": "user", "content": "x"}]}', 400, "not JSON"),
        (b'{"seed": 1e400, "messages": [{"role": "user", "content": "x"}]}', 400, "seed"),
        (b'{"max_tokens": 1' + b"0" * 5000 + b"}", 400, ""),
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


def test_what_is_sent_to_waste_time_is_refused_at_once(served: Served, client: httpx.Client) -> None:
    ids = b"[" + b"null," * 150_000 + b"null]"
    bodies = {
        "/v1/completions": [b'{"prompt": %s}' % ids, b'{"prompt": %s}' % json.dumps(["a"] * 250).encode()],
        "/v1/chat/completions": [
            b'{"messages": %s}' % ids,
            b'{"messages": [{"role": "user", "content": %s}]}' % ids,
            json.dumps({**CHAT, "stop": "x" * 300}).encode(),
            json.dumps({**CHAT, "n": 17}).encode(),
            b'{"messages": [], "tools": %s}' % ids,
        ],
        "/detokenize": [b'{"tokens": %s}' % ids],
        "/v1/responses": [b'{"input": %s}' % ids, b'{"input": "x", "tools": [{"type": "function"}]}'],
    }
    for path, several in bodies.items():
        for body in several:
            started = time.monotonic()
            answer = client.post(path, content=body)
            assert answer.status_code in (400, 503), (path, body[:60], answer.text[:200])
            assert time.monotonic() - started < 5
            assert len(answer.text) < 500
    assert "at most 20" in client.post("/v1/completions", json={"prompt": ["a"] * 21}).json()["error"]["message"]
    still_serves(client)


def test_null_is_not_given(client: httpx.Client) -> None:
    nothing = dict.fromkeys(("stream", "stream_options", "speculation", "temperature", "stop", "n", "logprobs"))
    assert client.post("/v1/chat/completions", json={**CHAT, **nothing}).status_code == 200
    assert client.post("/v1/completions", json={"prompt": "a", "echo": None, "max_tokens": 2}).status_code == 200


def test_unknown_paths_and_methods_are_told_so(client: httpx.Client) -> None:
    assert "no /v2/x here" in client.get("/v2/x").json()["error"]["message"]
    assert client.get("/v1/chat/completions").status_code == 405
    assert client.delete("/health").json()["error"]["type"] == "invalid_request_error"


def test_a_reader_who_leaves_frees_a_place(served: Served, client: httpx.Client) -> None:
    for leave_after in (0, 1, 5):
        with client.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True}) as stream:
            for number, _ in enumerate(stream.iter_lines()):
                if number >= leave_after:
                    break
        until(lambda: is_idle(served))
    still_serves(client)


def test_whoever_waits_for_a_whole_answer_may_leave_too(served: Served, client: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json={**ENDLESS, "n": 16}, timeout=0.02)
    until(lambda: is_idle(served))
    still_serves(client)


def test_half_a_request_holds_nothing_up(served: Served, client: httpx.Client) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(20)]
    for number, one in enumerate(sockets):
        one.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"[: 20 + 4 * number]
        )
    still_serves(client)
    for one in sockets:
        one.close()
    still_serves(client)
    assert is_idle(served)


def test_readers_who_do_not_read_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.server.streams.SEND_TIMEOUT", 1.0)
    body = json.dumps({**ENDLESS, "n": 4, "stream": True, "speculation": {"details": True}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with serving() as served, httpx.Client(base_url=served.url, timeout=60) as client:
        host, port = served.url.removeprefix("http://").split(":")
        readers = []
        for _ in range(3):
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect((host, int(port)))
            reader.sendall(head + body)
            readers.append(reader)
        until(lambda: served.service.worker.load.active > 0)
        still_serves(client)
        until(lambda: is_idle(served))
        still_serves(client)
        for reader in readers:
            reader.close()


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_half_a_head_is_hung_up_on(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    monkeypatch.setattr("slipstream.server.serving.READ_TIMEOUT", 0.5)
    with serving() as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(before + b"GET /hea")
            received = b""
            while part := client.recv(4096):
                received += part
        assert received.count(b"200 OK") == (1 if before else 0)
        with httpx.Client(base_url=served.url) as patient:  # between requests a client may take its time
            patient.get("/health")
            time.sleep(1.0)
            still_serves(patient)


def test_a_crowd_gets_answers_or_is_told_to_come_back() -> None:
    with serving(parallel=2, queue=8) as served:
        statuses: list[int] = []

        def ask() -> None:
            answer = httpx.post(f"{served.url}/v1/chat/completions", json={**CHAT, "max_tokens": 20}, timeout=60)
            statuses.append(answer.status_code)
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) >= 1
                assert "try again" in answer.json()["error"]["message"]

        threads = [threading.Thread(target=ask) for _ in range(60)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert set(statuses) <= {200, 503}
        assert statuses.count(200) >= 10
        assert len(statuses) == 60
        assert is_idle(served)


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
    assert answer.headers["x-request-id"] in caplog.text
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
    answers = []
    begin = served.service.begin

    async def remembering(*given: Any, **more: Any) -> Any:
        answers.append(await begin(*given, **more))
        return answers[-1]

    served.service.begin = remembering  # type: ignore[method-assign]
    try:
        with client.stream("POST", "/v1/responses", json={"input": "x", "stream": True, "max_output_tokens": 400}):
            pass  # and away, perhaps before anything came
    finally:
        served.service.begin = begin  # type: ignore[method-assign]
    until(lambda: is_idle(served))
    assert all(job.cancelled for job in answers[0]._jobs)
