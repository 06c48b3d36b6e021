#!/usr/bin/env python3
"""Microseconds of processor time that a streamed token takes, from the engine's thread to the bytes of its event.

    scripts/bench streaming [--tokens 1000] [--clients 1 4] [--pause-ms 2]

A model that says the same letter again and again, and waits between tokens as if it computed, so that each token wakes
the server up as it does in earnest. "batch" is the rounds alone; the other columns are what a server adds to them: a
worker's thread, and the whole way through the application (no sockets). Processor time of all threads, by tokens.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from threading import Event
from time import process_time, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.types import Message

from slipstream.core.protocols import Capabilities, Logits, Segment
from slipstream.engine import Engine
from slipstream.engine.worker import Job, Worker
from slipstream.models import ChatTemplate
from slipstream.policy import FixedLength
from slipstream.server.app import create_app
from slipstream.server.metrics import Metrics
from slipstream.server.service import Limits
from slipstream.server.serving import new_service

CONTEXT = 1 << 20
TEMPLATE = "{{ messages[0].content }}"
ENDPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    "chat, details": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "speculation": {"details": True}},
    ),
    "completions": ("/v1/completions", {"prompt": "a"}),
    "responses": ("/v1/responses", {"input": "a"}),
}


class Letters:
    """Token i is the character i; none ends a text."""

    size, bos, end_tokens = 128, None, frozenset[int]()

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        """Ids of the characters."""
        return list(text.encode("ascii"))

    def least_tokens(self, text: str, *, parse_special: bool) -> int:
        """As many as characters."""
        return len(text)

    def token_bytes(self, token: int) -> bytes:
        """The character."""
        return bytes([token])

    def token_name(self, token: int) -> str:
        """The character."""
        return chr(token)


class CountingSession:
    """Keeps count where a real session would keep keys and values."""

    held: object | None = None

    def __init__(self) -> None:
        self.length = 0

    def commit(self, path: Sequence[int]) -> None:
        """More tokens."""
        self.length += len(path)

    def hold(self, path: Sequence[int]) -> None:
        """Nothing is held."""

    def truncate(self, length: int) -> None:
        """Fewer tokens."""
        self.length = length

    def fork(self, length: int) -> "CountingSession":
        """Another one that is as long."""
        other = CountingSession()
        other.length = length
        return other

    def reachable(self, length: int) -> int:
        """Every length."""
        return length

    def close(self) -> None:
        """Nothing to give back."""


class SameRow:
    """Rows that are all the same."""

    def __init__(self, row: Logits) -> None:
        self._row = row

    def logits(self, row: int) -> Logits:
        """[vocab] float32."""
        return self._row

    def top(self, row: int, count: int) -> tuple[NDArray[np.int64], Logits]:
        """The largest."""
        ids = np.argsort(-self._row, kind="stable")[:count]
        return ids, self._row[ids]

    def hidden(self, row: int, layer: int) -> NDArray[np.float32]:
        """There is none."""
        raise NotImplementedError


class Repeater:
    """A model without weights that says "a" and waits `pause` seconds for it."""

    name, runtime, notice = "repeater", "none", None
    context_length, max_rows = CONTEXT, 512
    capabilities = Capabilities(bit_exact_rows=True)

    def __init__(self, pause: float) -> None:
        self.vocabulary = Letters()
        self._pause = pause
        row = np.zeros(Letters.size, np.float32)
        row[ord("a")] = 50.0
        self._rows = SameRow(row)

    def open_session(self) -> CountingSession:
        """As many as wanted."""
        return CountingSession()

    def forward(
        self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None, hidden: Sequence[int] = ()
    ) -> list[SameRow]:
        """The same for everybody."""
        sleep(self._pause)
        return [self._rows] * len(batch)

    def memory(self) -> int:
        """Next to nothing."""
        return 0

    def close(self) -> None:
        """Nothing to give back."""


def engine_of(pause: float) -> Engine:
    """Plain decoding on a repeater."""
    return Engine(Repeater(pause), policy=FixedLength(0), template=ChatTemplate(TEMPLATE))


def processor_time(work: Callable[[], int]) -> float:
    """Microseconds of processor time for each of the tokens that `work` says it made."""
    started = process_time()
    tokens = work()
    return 1e6 * (process_time() - started) / tokens


def in_a_batch(clients: int, tokens: int, pause: float) -> float:
    """Rounds alone, on this thread."""
    with engine_of(pause) as engine:
        engine.keep_sessions(clients)

        def work() -> int:
            prompts = ["a"] * clients
            return sum([len(one.tokens) for one in engine.generate_many(prompts, max_tokens=tokens, seed=1)])

        return processor_time(work)


def by_a_worker(clients: int, tokens: int, pause: float) -> float:
    """Rounds on the worker's thread, with nobody to tell."""
    worker = Worker(engine_of(pause), clients)
    ends = [Event() for _ in range(clients)]

    def work() -> int:
        for end in ends:
            generation = worker.engine.prepare("a", max_tokens=tokens, seed=1)
            worker.submit([Job(generation, lambda tokens: None, _setter(end))])
        for end in ends:
            end.wait()
        return clients * tokens

    try:
        return processor_time(work)
    finally:
        worker.close()


def _setter(end: Event) -> Callable[[object], None]:
    return lambda error: end.set()


def streamed(endpoint: str, clients: int, tokens: int, pause: float) -> float:
    """The whole application, asked as an ASGI server asks it."""
    path, body = ENDPOINTS[endpoint]
    limit = "max_output_tokens" if endpoint == "responses" else "max_tokens"
    asked = json.dumps({"model": "any", "stream": True, "temperature": 0, limit: tokens, **body}).encode()
    metrics = Metrics()
    service = new_service(engine_of(pause), metrics, Limits(timeout=None), parallel=clients, queue=clients)
    application = create_app(service, metrics)

    async def everybody() -> None:
        sizes = await asyncio.gather(*(_ask(application, path, asked) for _ in range(clients)))
        assert min(sizes) > tokens, "every token has an event"

    def work() -> int:
        asyncio.run(everybody())
        return clients * tokens

    try:
        return processor_time(work)
    finally:
        service.worker.close()


async def _ask(application: Any, path: str, body: bytes) -> int:
    """One request; returns the bytes of its answer."""
    given, size = [body], 0

    async def receive() -> Message:
        if given:
            return {"type": "http.request", "body": given.pop(), "more_body": False}
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal size
        assert message.get("status", 200) == 200, "the request is refused"
        size += len(message.get("body", b""))

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await application(scope, receive, send)
    return size


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--pause-ms", type=float, default=2.0)
    arguments = parser.parse_args()
    pause = arguments.pause_ms / 1e3
    for name in ENDPOINTS:  # what is imported and compiled at first use is no part of a token
        streamed(name, 1, 20, 0.0)
    print(f"{'us per token':>12}{'batch':>10}{'+ worker':>12}" + "".join([f"{f'+ {name}':>18}" for name in ENDPOINTS]))
    for clients in arguments.clients:
        alone = in_a_batch(clients, arguments.tokens, pause)
        worker = by_a_worker(clients, arguments.tokens, pause) - alone
        added = [streamed(name, clients, arguments.tokens, pause) - alone for name in ENDPOINTS]
        print(f"{clients:>12}{alone:10.0f}{worker:12.0f}" + "".join([f"{one:18.0f}" for one in added]))


if __name__ == "__main__":
    main()
