"""The server as a process: a socket, uvicorn, and an orderly end."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

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


class Protocol(H11Protocol):
    """Hangs up on a client that has not sent the head of its first request in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(READ_TIMEOUT, self._hang_up)

    def _hang_up(self) -> None:
        cycle: object = self.cycle  # None before the first request, whatever its type says
        if cycle is None:
            self.transport.close()


class Address(NamedTuple):
    """Where to listen; port 0 is any free one."""

    host: str
    port: int

    def listen(self) -> socket.socket:
        """A listening socket. Raises RuntimeUnavailableError if the address is taken or not ours."""
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((self.host, self.port), family=family, backlog=512)
        except OSError as error:
            raise RuntimeUnavailableError(
                f"Cannot listen on {self.host}, port {self.port}: {error.strerror or error}; choose another --port "
                "or --host."
            ) from None
        listener.setblocking(False)
        return listener


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
    address: Address,
    doors: Doors,
    limits: Limits,
    *,
    parallel: int,
    queue: int,
    announce: Callable[[str], None] = say,
) -> None:
    """Serve until a signal ends it. The engine is closed, whatever happens."""
    with engine:
        listener = address.listen()
        metrics = Metrics()
        worker = Worker(engine, parallel, queue, on_round=metrics.on_round)
        try:
            service = Service(worker, limits, on_end=metrics.on_end)
            server = uvicorn.Server(
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
            port = listener.getsockname()[1]
            host = f"[{address.host}]" if ":" in address.host else address.host
            announce(f"Serving {service.name} on http://{host}:{port} (Ctrl-C ends it)")
            with _orderly_end():
                server.run([listener])
        finally:
            worker.close()
            listener.close()
