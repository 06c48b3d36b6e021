import re
import socket
import threading
from time import monotonic

import pytest

from slipstream.core.params import SamplingParams
from slipstream.engine import GenerationOptions
from slipstream.errors import UsageError
from slipstream.measure import server_link
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.records import Answer
from slipstream.measure.runner import run_bench
from slipstream.measure.server import Server
from slipstream.measure.server_link import ServerError, parse_address
from tests.measure.openai_server import OpenAiServer, serving

PROMPT = BenchPrompt("chat-1", "chat", ({"role": "user", "content": "Count."},))
PARAMS = SamplingParams(temperature=0.5, top_k=20, repetition_penalty=1.1, logit_bias={7: float("-inf")})
OPTIONS: GenerationOptions = {"max_tokens": 12, "seed": 5, "logprobs": False}


def ask(server: OpenAiServer, patience: float = 5.0) -> Answer:
    answer = Server(server.url, PARAMS, patience=patience).answer(PROMPT, OPTIONS, lambda: False)
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://127.0.0.1:8080", (False, "127.0.0.1", 8080, "")),
        ("127.0.0.1:8080/v1/", (False, "127.0.0.1", 8080, "")),
        ("https://example.org/some/v1/chat/completions", (True, "example.org", 443, "/some")),
        ("localhost", (False, "localhost", 80, "")),
        ("http://[::1]:9", (False, "::1", 9, "")),
    ],
)
def test_addresses(url: str, parts: tuple[bool, str, int, str]) -> None:
    address = parse_address(url)
    assert (address.secure, address.host, address.port, address.path) == parts


@pytest.mark.parametrize(
    "url", ["", "ftp://host", "http://", "http://host:port", "http://host:99999", "http://me:x@host"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="--against must be the address of a server"):
        parse_address(url)


def test_the_request_says_everything_that_samples() -> None:
    with serving() as server:
        ask(server)
    [request] = server.requests
    assert request["model"] == "some-model"
    assert request["messages"] == [{"role": "user", "content": "Count."}]
    expected = {"temperature": 0.5, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "presence_penalty": 0.0, "seed": 5,
                "frequency_penalty": 0.0, "repetition_penalty": 1.1, "repeat_penalty": 1.1, "max_tokens": 12,
                "logit_bias": {"7": -100.0}, "stream": True}  # fmt: skip
    assert {name: request[name] for name in expected} == expected


def test_llama_servers_own_times_and_counters() -> None:
    with serving("llama") as server:
        answer = ask(server)
    assert (answer.tokens, answer.seconds) == (9, 0.09)
    assert (answer.prompt_tokens, answer.prompt_seconds) == (7, 0.03)
    assert (answer.drafted, answer.accepted) == (8, 5)
    assert answer.finish_reason == "length"
    assert answer.ids_hash == ""


def test_vllms_metrics_are_read_before_and_after() -> None:
    with serving("vllm") as server:
        ask(server)
        answer = ask(server)
    assert (answer.drafted, answer.accepted) == (20, 10)
    assert answer.tokens == 10  # of eleven: the first piece starts the clock


def test_other_servers_are_timed_from_here() -> None:
    started = monotonic()
    with serving("plain") as server:
        answer = ask(server)
    assert 0 < answer.seconds < monotonic() - started
    assert answer.tokens == 10
    assert (answer.drafted, answer.accepted) == (None, None)


def test_numbers_that_are_none_are_passed_over() -> None:
    with serving("odd") as server:
        answer = ask(server)
    assert answer.tokens == 3  # of four pieces the first starts the clock
    assert 0 < answer.seconds < 5
    assert (answer.drafted, answer.accepted) == (None, None)


def test_metrics_that_are_not_there_are_asked_for_once() -> None:
    with serving("plain") as server:
        contestant = Server(server.url, PARAMS)
        for _ in range(3):
            contestant.answer(PROMPT, OPTIONS, lambda: False)
    assert len(server.keys) == 2  # the models, and the metrics


@pytest.mark.parametrize(
    ("manner", "sentence"),
    [
        ("dies", "went away in the middle of an answer"),
        ("nonsense", "answered nonsense .'<html>Bad gateway</html>'."),
        ("error", "reported an error .*out of memory"),
        ("endless", "does not stop where it was asked to"),
    ],
)
def test_what_breaks_is_a_sentence(manner: str, sentence: str) -> None:
    with serving(manner) as server, pytest.raises(ServerError, match=f"The server {server.url[7:]} {sentence}"):
        ask(server)


def test_nobody_goes_on_reading_what_was_left() -> None:
    before = set(threading.enumerate())
    with serving("endless") as server, pytest.raises(ServerError):
        ask(server)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread.name


def test_a_server_that_says_nothing_is_given_up() -> None:
    with serving("silent") as server, pytest.raises(ServerError, match=r"said nothing for 0\.3 seconds"):
        ask(server, patience=0.3)


@pytest.mark.parametrize(("manner", "sentence"), [("refuses", "400: .*context of 512"), ("empty", "an empty answer")])
def test_what_concerns_one_prompt_does_not_end_the_server(manner: str, sentence: str) -> None:
    with serving(manner, good=1) as server:
        contestants = {"server": Server(server.url, PARAMS)}
        results = run_bench(contestants, [PROMPT], repeats=2, options=OPTIONS)
    [failure] = results.failures
    assert failure.prompt == "chat-1"
    assert re.search(sentence, failure.sentence)
    assert len(server.requests) == 3


def test_a_server_that_dies_half_way_keeps_what_it_answered() -> None:
    with serving("dies", good=3) as server:
        results = run_bench({"server": Server(server.url, PARAMS)}, [PROMPT], repeats=5, options=OPTIONS)
    assert len(results.answers) == 2  # and one to warm up
    [failure] = results.failures
    assert (failure.configuration, failure.prompt) == ("server", None)
    assert "left out from here on" in failure.sentence
    assert len(server.requests) == 4


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServerError, match=r"is not there \(connection refused\)"):
        Server(f"127.0.0.1:{port}", PARAMS)


def test_something_that_does_not_speak_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            with other.accept()[0] as visitor:
                visitor.sendall(b"\0\xff\r\n\r\n")

        greeter = threading.Thread(target=greet)
        greeter.start()
        with pytest.raises(ServerError, match="does not speak HTTP"):
            Server(f"127.0.0.1:{other.getsockname()[1]}", PARAMS)
        greeter.join()


def test_the_patience_that_is_told_is_the_one_that_was_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_link, "CONNECT_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ServerError, match=r"nothing for 0\.2 seconds"),
    ):
        Server(f"127.0.0.1:{silent.getsockname()[1]}", PARAMS)


def test_no_such_host() -> None:
    with pytest.raises(ServerError, match="cannot be reached"):
        Server("http://no-such-host.invalid", PARAMS)


def test_something_else_than_such_a_server() -> None:
    with serving("not json") as server, pytest.raises(ServerError, match="something else than a list of models"):
        Server(server.url, PARAMS)


def test_a_key_is_asked_for_and_sent() -> None:
    with serving("locked") as server:
        with pytest.raises(ServerError, match="status 401, so set SLIPSTREAM_API_KEY to its key"):
            Server(server.url, PARAMS)
        with pytest.raises(ServerError):
            Server(server.url, PARAMS, key="secret")
    assert server.keys == [None, "Bearer secret"]


def test_stopping_does_not_wait_for_the_server() -> None:
    with serving("silent") as server:
        contestant = Server(server.url, PARAMS, patience=30)
        started = monotonic()
        assert contestant.answer(PROMPT, OPTIONS, lambda: len(server.requests) > 0) is None
        assert monotonic() - started < 10
