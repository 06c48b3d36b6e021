"""The server as a process: a socket, uvicorn, and an orderly end."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.engine import Engine
from slipstream.engine.worker import Worker
from slipstream.errors import RuntimeUnavailableError
from slipstream.server.app import Doors, create_app
from slipstream.server.bodies import READ_TIMEOUT
from slipstream.server.metrics import Metrics
from slipstream.server.service import Limits, Service

CONNECTIONS = 2048
"""Open at once; more are refused with 503."""

BACKLOG = 512
"""Connections that may wait to be accepted."""


class Protocol(H11Protocol):
    """Hangs up on a client that connects, or begins a request, and has not sent its head in time."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._patience = self.loop.call_later(READ_TIMEOUT, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_head()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._patience is not None:
            self._patience.cancel()

    def _wait_for_head(self) -> None:
        """Start waiting when half a head is there, stop when it is complete."""
        half = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not half and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        elif half and self._patience is None:
            self._patience = self.loop.call_later(READ_TIMEOUT, self.transport.close)


class _Server(uvicorn.Server):
    """Says what it waits for when it is told to stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit and self.server_state.tasks:
            with suppress(OSError):  # no print within a signal handler
                os.write(2, b"Waiting for the answers that are being written; Ctrl-C ends them now.\n")
        super().handle_exit(sig, frame)


class Address(NamedTuple):
    """Where to listen; port 0 is any free one."""

    host: str
    port: int

    def bind(self) -> socket.socket:
        """A socket that has the address and refuses connections until it is told to listen.

        Raises RuntimeUnavailableError if the address is taken or not ours.
        """
        with ExitStack() as undo:
            try:
                family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
                bound = undo.enter_context(socket.socket(family))
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                bound.bind((self.host, self.port))
            except OSError as error:
                raise self._unavailable(error) from None
            bound.setblocking(False)
            undo.pop_all()
        return bound

    def listen(self, bound: socket.socket) -> None:
        """Accept connections from now on. Raises RuntimeUnavailableError if another process was sooner."""
        try:
            bound.listen(BACKLOG)
        except OSError as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: OSError) -> RuntimeUnavailableError:
        return RuntimeUnavailableError(
            f"Cannot listen on {self.host}, port {self.port}: {error.strerror or error}; "
            "choose another --port or --host."
        )


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Uvicorn takes signals while it runs and sends them again when it is done; by then they have had their effect."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(text: str) -> None:
    """A line on standard error, where the log is. A server goes on where that cannot be written to."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def run_server(
    engine: Engine,
    listener: socket.socket,
    doors: Doors,
    limits: Limits,
    *,
    parallel: int,
    queue: int,
    announce: Callable[[str], None] = say,
) -> None:
    """Serve on a bound socket until a signal ends it. The engine is closed, whatever happens."""
    with engine:
        metrics = Metrics()
        worker = Worker(engine, parallel, queue, on_round=metrics.on_round)
        try:
            service = Service(worker, limits, on_end=metrics.on_end)
            server = _Server(
                uvicorn.Config(
                    create_app(service, metrics, doors),
                    http=Protocol,
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    lifespan="on",
                    limit_concurrency=CONNECTIONS,
                    timeout_keep_alive=15,
                    timeout_graceful_shutdown=max(int(limits.patience), 1),
                )
            )
            address = Address(*listener.getsockname()[:2])
            address.listen(listener)
            host = f"[{address.host}]" if ":" in address.host else address.host
            announce(f"Serving {service.name} on http://{host}:{address.port} (Ctrl-C ends it)")
            with _orderly_end():
                server.run([listener])
        finally:
            worker.close()
