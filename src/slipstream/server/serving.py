"""The server as a process: a socket, uvicorn, and an orderly end."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.engine import Engine
from slipstream.engine.worker import Worker
from slipstream.errors import BusyError, RuntimeUnavailableError
from slipstream.server.app import Doors, create_app
from slipstream.server.bodies import READ_TIMEOUT
from slipstream.server.errors import response
from slipstream.server.metrics import Metrics
from slipstream.server.service import Limits, Service

CONNECTIONS = 2048
"""Open at once; more are refused with 503."""

BACKLOG = 512
"""Connections that may wait to be accepted."""

KEEP_ALIVE = 15
"""Seconds that a connection may be idle between requests."""

SEND_TIMEOUT = 60.0
"""Seconds between looks at whether a client reads what it asked for."""

SEND_BUFFER = 1 << 17
"""Bytes that the kernel keeps for a client: with megabytes of them a slow reader looks like one that does not read."""

_logger = logging.getLogger("slipstream.server")


class Protocol(H11Protocol):
    """Hangs up on clients that keep the server waiting: that do not send what they have begun, or do not read.

    A client has READ_TIMEOUT for a head, from the connection or its first byte on, and for what is left of a body when
    its answer has been written already. One that reads nothing from one look to the next is not waited for.
    """

    _late: asyncio.TimerHandle | None = None
    _next_look: asyncio.TimerHandle | None = None
    _unread: tuple[object, int] | None = None
    """The answer that was being read at the last look and the bytes that were left; None while more is written."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            self.app = _no_more
        self._late = self.loop.call_later(READ_TIMEOUT, transport.close)
        self._next_look = self.loop.call_later(SEND_TIMEOUT, self._look)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_client()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = None

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for timer in (self._late, self._next_look):
            if timer is not None:
                timer.cancel()

    def _wait_for_client(self) -> None:
        """Start waiting when the client owes the rest of something, stop when it is there."""
        idle = self.conn.their_state is h11.IDLE
        owes_head = idle and bool(self.conn.trailing_data[0])
        owes_body = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        owes = owes_head or owes_body
        if not owes and self._late is not None:
            self._late.cancel()
            self._late = None
        elif owes and self._late is None:
            self._late = self.loop.call_later(READ_TIMEOUT, self.transport.close)
        if idle and not owes and self.timeout_keep_alive_task is None:  # a body's end stopped uvicorn's waiting
            self.timeout_keep_alive_task = self.loop.call_later(KEEP_ALIVE, self.timeout_keep_alive_handler)

    def _look(self) -> None:
        """Hang up on who has read nothing since the last look; `close` alone would wait until all is read."""
        left = self.transport.get_write_buffer_size()
        before = self._unread[1] if self._unread is not None and self._unread[0] is self.cycle else 0
        self._unread = None if self._is_writing else (self.cycle, left)
        if self._unread is not None and 0 < before <= left:
            self.transport.abort()
            return
        self._next_look = self.loop.call_later(SEND_TIMEOUT, self._look)

    @property
    def _is_writing(self) -> bool:
        """Whether more of an answer may come, so that what is left to be read says nothing."""
        # None before the first request, whatever uvicorn says
        running = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]
        return running and not self.flow.write_paused and not self.transport.is_closing()


async def _no_more(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a connection too many."""
    answer = response(BusyError("The server has as many connections as it can take; try again in a moment."))
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)


class _Server(uvicorn.Server):
    """Says what it waits for when it is told to stop."""

    async def on_tick(self, counter: int) -> bool:
        ends = await super().on_tick(counter)
        if ends and self.server_state.tasks:
            _logger.info("Waiting for the answers that are being written; Ctrl-C ends them now.")
        return ends


def new_server(app: ASGIApp, patience: float) -> uvicorn.Server:
    """Uvicorn as it is used here.

    patience: seconds that answers have to end in when it is stopped
    """
    return _Server(
        uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=max(int(patience), 1),
        )
    )


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
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # its connections inherit it
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


def new_service(
    engine: Engine, metrics: Metrics, limits: Limits, *, parallel: int, queue: int, shared: bool = False
) -> Service:
    """The engine on a thread of its own, which `metrics` counts. Closing the service's worker closes the engine."""
    worker = Worker(
        engine,
        parallel,
        queue,
        on_round=metrics.on_round,
        on_first=metrics.on_first,
        on_end=metrics.on_end,
    )
    return Service(worker, limits, shared=shared)


def run_server(
    engine: Engine,
    listener: socket.socket,
    doors: Doors,
    limits: Limits,
    *,
    parallel: int,
    queue: int,
    shared: bool = False,
    announce: Callable[[str], None] = say,
) -> None:
    """Serve on a bound socket until a signal ends it. The engine is closed, whatever happens.

    shared:   whether drafters may learn from one user's texts for another's
    announce: is told the address when it listens
    """
    with engine:
        metrics = Metrics()
        service = new_service(engine, metrics, limits, parallel=parallel, queue=queue, shared=shared)
        try:
            server = new_server(create_app(service, metrics, doors), limits.patience)
            address = Address(*listener.getsockname()[:2])
            address.listen(listener)
            host = f"[{address.host}]" if ":" in address.host else address.host
            announce(f"Serving {service.name} on http://{host}:{address.port} (Ctrl-C ends it)")
            with _orderly_end():
                server.run([listener])
        finally:
            service.worker.close()
