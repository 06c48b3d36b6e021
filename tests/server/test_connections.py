"""Clients that go away, stop reading, or stop sending: what they hold is given back, and nobody else notices."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from socket import SHUT_WR, socket
from typing import Any

import httpx
import pytest

from slipstream.server.service import Limits
from tests.fakes import GatedModel
from tests.server.serving import LetterVocabulary, Served, fake_engine, serving, until

CHAT = {"messages": [{"role": "user", "content": "hello"}], "seed": 1, "max_tokens": 5}
ENDLESS = {**CHAT, "max_tokens": 400, "logit_bias": {"256": -100}}
LARGE = {**ENDLESS, "n": 4, "logprobs": True, "top_logprobs": 20, "speculation": {"details": True}}
"""Some megabytes: more than all buffers together."""
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def model() -> GatedModel:
    return GatedModel(vocabulary=LetterVocabulary(), context_length=512, max_rows=64, max_sessions=2)


@pytest.fixture
def gated(model: GatedModel) -> Iterator[Served]:
    with serving(fake_engine(2, model), parallel=2) as served:
        yield served
        model.gate.set()


def request(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def rest(client: socket) -> bytes:
    """All that comes until the server hangs up."""
    received = bytearray()
    with suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            received += part
    return bytes(received)


def still_serves(served: Served) -> None:
    assert httpx.post(f"{served.url}/v1/chat/completions", json=CHAT, timeout=60).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("forwards", [0, 4], ids=["before the first token", "in the middle"])
def test_who_leaves_ends_the_text(gated: Served, model: GatedModel, path: str, stream: bool, forwards: int) -> None:
    body = {"max_output_tokens": 400, "prompt": "hello", "input": "hello", **ENDLESS, "stream": stream}
    body |= {"temperature": 0.8, "speculation": {"num_draft_tokens": 3}}
    if forwards:
        model.closes_after = forwards
    else:
        model.gate.clear()
    client = gated.connect(request(body, path))
    until(lambda: gated.service.worker.load.active == 1 and not model.gate.is_set())
    client.close()
    until(lambda: [job.cancelled for job in gated.jobs] == [True])
    model.gate.set()
    until(lambda: gated.is_idle)
    [job] = gated.jobs
    assert job.completion.finish_reason == "cancelled"
    assert len(job.completion.tokens) <= 4 * (forwards + 1)  # each brings at most its drafts and one token more
    if forwards:  # what was read counts, whoever stayed to see it
        figures = dict(gated.metrics.figures())
        assert figures["slipstream:prompt_tokens_total"] == len(job.completion.prompt_tokens)
        assert figures["slipstream:time_to_first_token_seconds_count"] == 1
    still_serves(gated)


def test_who_leaves_the_queue_is_never_begun(gated: Served, model: GatedModel) -> None:
    model.gate.clear()
    first = gated.connect(request({**ENDLESS, "n": 2}))
    until(lambda: gated.service.worker.load.active > 0)
    waiting = gated.connect(request(ENDLESS))
    until(lambda: len(gated.jobs) == 3)
    waiting.close()
    until(lambda: gated.jobs[2].cancelled)
    first.close()
    model.gate.set()
    until(lambda: gated.is_idle)
    assert gated.jobs[2].completion.tokens == []
    still_serves(gated)


def test_a_stream_that_the_server_s_end_cuts_off_says_so(model: GatedModel) -> None:
    model.closes_after = 4
    with serving(fake_engine(2, model), parallel=2, limits=Limits(patience=1.0)) as served:
        with served.connect(request({**ENDLESS, "stream": True})) as client:
            until(lambda: served.service.worker.load.active == 1 and not model.gate.is_set())
            served.stop()
            received = rest(client)
        model.gate.set()
    assert received.endswith(b"\n0\r\n\r\n"), received[-200:]
    *_, last = [json.loads(line[6:]) for line in received.split(b"\n") if line.startswith(b"data: ")]
    assert "shut down" in last["error"]["message"]


@pytest.mark.parametrize("head", ["HTTP/1.1\r\nConnection: close", "HTTP/1.0"])
def test_who_sends_too_much_and_closes_is_told_so(head: str) -> None:
    with serving(limits=Limits(body=2**20, patience=5.0)) as served, served.connect() as client:
        client.sendall(f"POST /tokenize {head}\r\nHost: localhost\r\nContent-Length: {10**7}\r\n\r\n".encode())
        client.sendall(b" " * 10**7)
        assert b"larger than 1,048,576 bytes" in rest(client)


def test_a_client_that_closes_its_half_counts_as_gone(gated: Served, model: GatedModel) -> None:
    model.gate.clear()
    with gated.connect(request({**ENDLESS, "stream": True})) as client:
        until(lambda: gated.service.worker.load.active == 1)
        client.shutdown(SHUT_WR)
        until(lambda: gated.jobs[0].cancelled)
        model.gate.set()
        until(lambda: gated.is_idle)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_who_does_not_read_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    monkeypatch.setattr("slipstream.server.serving.SEND_TIMEOUT", 1.0)
    with serving() as served:
        readers = [served.connect(request({**LARGE, "stream": stream}), window=4096) for _ in range(3)]
        until(lambda: served.connections == 3 and len(served.jobs) == 12)
        still_serves(served)
        until(lambda: served.connections == 0)
        until(lambda: served.is_idle)
        for reader in readers:
            received = rest(reader)
            assert received.startswith(b"HTTP/1.1 200 OK")
            assert len(received) < 1 << 20
            reader.close()
        still_serves(served)
    assert "failed" not in caplog.text
    assert "Exception" not in caplog.text


def test_who_sends_a_last_request_and_does_not_read_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes by itself here, and would wait for the reader to take what is left."""
    monkeypatch.setattr("slipstream.server.serving.SEND_TIMEOUT", 1.0)
    closing = request(LARGE).replace(b"Host:", b"Connection: close\r\nHost:")
    with serving() as served, served.connect(closing, window=4096):
        until(lambda: len(served.jobs) == 4)
        until(lambda: served.connections == 0)


def test_who_reads_slowly_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.server.serving.SEND_TIMEOUT", 1.0)
    with serving() as served, served.connect(request(LARGE), window=1 << 15) as reader:
        received = bytearray(reader.recv(1 << 15))
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        [length] = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line]
        assert length > 1 << 20
        got = len(body)
        while got < length:
            time.sleep(0.05)
            part = reader.recv(1 << 15)
            assert part, f"hung up on after {got} of {length} bytes"
            got += len(part)


def test_half_a_request_holds_nothing_up(gated: Served) -> None:
    clients = [gated.connect(request({**CHAT, "user": "x" * 900})[: 20 + 4 * number]) for number in range(20)]
    still_serves(gated)
    for client in clients:
        client.close()
    still_serves(gated)
    assert len(gated.jobs) == 2


@pytest.mark.parametrize("before", [b"", HEALTH + b"\r\n"], ids=["first", "second"])
def test_half_a_head_is_hung_up_on(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    monkeypatch.setattr("slipstream.server.serving.READ_TIMEOUT", 0.5)
    with serving() as served:
        with served.connect(before + HEALTH[:8]) as client:
            assert rest(client).count(b"200 OK") == (1 if before else 0)
        with httpx.Client(base_url=served.url) as patient:  # between requests a client may take its time
            patient.get("/health")
            time.sleep(1.0)
            assert served.connections == 1
            assert patient.get("/health").status_code == 200


def test_a_body_that_nobody_needs_any_more_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.server.serving.READ_TIMEOUT", 0.5)
    with serving() as served, served.connect(HEALTH + b"Content-Length: 1000\r\n\r\n") as client:
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        client.sendall(b"x")
        rest(client)
        until(lambda: served.connections == 0)


def test_after_a_late_body_a_connection_may_be_idle_for_as_long_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.server.serving.KEEP_ALIVE", 1)
    with serving() as served, served.connect(HEALTH + b"Content-Length: 3\r\n\r\n") as client:
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        client.sendall(b"abc" + HEALTH + b"\r\n")
        assert rest(client).count(b"200 OK") == 1
    with serving() as served, served.connect(HEALTH + b"Content-Length: 3\r\n\r\n") as client:
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        client.sendall(b"abc")
        rest(client)
        until(lambda: served.connections == 0)


def test_a_connection_too_many_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.server.serving.CONNECTIONS", 2)
    with serving() as served:
        others = [served.connect() for _ in range(2)]
        until(lambda: served.connections == 2)
        answer = httpx.get(f"{served.url}/health")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_busy")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["connection"] == "close"
        others[0].close()
        until(lambda: served.connections == 1)
        assert httpx.get(f"{served.url}/health").status_code == 200
        others[1].close()


def test_a_server_that_stops_does_not_wait_for_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.server.serving.SEND_TIMEOUT", 0.5)
    with serving() as served, served.connect(request({**LARGE, "stream": True}), window=4096):
        until(lambda: len(served.jobs) == 4)
        served.stop()
        until(lambda: served.connections == 0)
