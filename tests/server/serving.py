"""A server on loopback, with a model without weights behind it."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from slipstream.core.params import SamplingParams
from slipstream.draft import ModelDrafter, SuffixDrafter
from slipstream.engine import Engine
from slipstream.engine.worker import Job
from slipstream.models import ChatTemplate
from slipstream.policy import FixedLength
from slipstream.server.app import Doors, create_app
from slipstream.server.metrics import Metrics
from slipstream.server.service import Limits, Service
from slipstream.server.serving import Address, new_server, new_service
from tests.fakes import ByteVocabulary, FakeModel

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"


class LetterVocabulary(ByteVocabulary):
    """Every byte beyond ASCII's letters stands for a letter, so that texts are easy to read."""

    def token_bytes(self, token: int) -> bytes:
        return bytes([97 + token % 26]) if token < 256 else b""


class Served:
    """A running server. url: without a slash at its end; jobs: of all texts that were queued so far."""

    def __init__(self, address: tuple[str, int], service: Service, metrics: Metrics, server: uvicorn.Server) -> None:
        self.url = f"http://{address[0]}:{address[1]}"
        self.service, self.metrics = service, metrics
        self.jobs: list[Job] = []
        self._address, self._server = address, server
        submit = service.worker.submit

        def remembering(jobs: Sequence[Job]) -> None:
            submit(jobs)
            self.jobs += jobs

        service.worker.submit = remembering  # type: ignore[method-assign]

    def stop(self) -> None:
        """As a signal would."""
        self._server.should_exit = True

    def connect(self, sent: bytes = b"", *, window: int | None = None) -> socket.socket:
        """A connection that has sent something.

        window: most bytes that come without being read, about
        """
        client = socket.socket()
        client.settimeout(60)
        if window is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        client.connect(self._address)
        client.sendall(sent)
        return client

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._server.server_state.connections)

    @property
    def is_idle(self) -> bool:
        load = self.service.worker.load
        return load.active == load.waiting == 0

    @property
    def engine(self) -> Engine:
        return self.service.engine


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def fake_engine(parallel: int = 4, model: FakeModel | None = None, **more: Any) -> Engine:
    target = model or FakeModel(
        LetterVocabulary(), seed=1, order=1, context_length=512, max_rows=64, max_sessions=parallel, **more
    )
    drafters = [SuffixDrafter(), ModelDrafter(FakeModel(seed=1, order=1, max_sessions=parallel))]
    template = ChatTemplate(TEMPLATE)
    return Engine(target, drafters, FixedLength(3), template=template, defaults=SamplingParams(temperature=0.8))


@contextmanager
def serving(
    engine: Engine | None = None,
    *,
    parallel: int = 4,
    queue: int = 16,
    doors: Doors | None = None,
    limits: Limits | None = None,
    shared: bool = False,
) -> Iterator[Served]:
    """Serve until the end of the block; everything must be given back then."""
    engine = engine or fake_engine(parallel)
    limits = limits or Limits(patience=5.0)
    address = Address("127.0.0.1", 0)
    metrics, listener = Metrics(), address.bind()
    address.listen(listener)
    service = new_service(engine, metrics, limits, parallel=parallel, queue=queue, shared=shared)
    server = new_server(create_app(service, metrics, doors), limits.patience)
    thread = threading.Thread(target=server.run, args=([listener],), name="server")
    thread.start()
    try:
        yield Served(listener.getsockname(), service, metrics, server)
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()
        assert not service.worker.is_alive
