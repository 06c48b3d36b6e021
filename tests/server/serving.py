"""A server on loopback, with a model without weights behind it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from slipstream.core.params import SamplingParams
from slipstream.draft import ModelDrafter, SuffixDrafter
from slipstream.engine import Engine
from slipstream.engine.worker import Worker
from slipstream.models import ChatTemplate
from slipstream.policy import FixedLength
from slipstream.server.app import Doors, create_app
from slipstream.server.metrics import Metrics
from slipstream.server.service import Limits, Service
from slipstream.server.serving import Address, Protocol
from tests.fakes import ByteVocabulary, FakeModel

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"


class LetterVocabulary(ByteVocabulary):
    """Every byte beyond ASCII's letters stands for a letter, so that texts are easy to read."""

    def token_bytes(self, token: int) -> bytes:
        return bytes([97 + token % 26]) if token < 256 else b""


class Served:
    """A running server. url: without a slash at its end."""

    def __init__(self, url: str, service: Service, metrics: Metrics, server: uvicorn.Server) -> None:
        self.url, self.service, self.metrics = url, service, metrics
        self._server = server

    def stop(self) -> None:
        """As a signal would."""
        self._server.should_exit = True

    @property
    def engine(self) -> Engine:
        return self.service.engine


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
) -> Iterator[Served]:
    """Serve until the end of the block; everything must be given back then."""
    engine = engine or fake_engine(parallel)
    address = Address("127.0.0.1", 0)
    metrics, listener = Metrics(), address.bind()
    address.listen(listener)
    worker = Worker(engine, parallel, queue, on_round=metrics.on_round)
    service = Service(worker, limits or Limits(patience=5.0), on_end=metrics.on_end)
    app = create_app(service, metrics, doors)
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=Protocol, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=5
        )
    )
    thread = threading.Thread(target=server.run, args=([listener],), name="server")
    thread.start()
    try:
        yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", service, metrics, server)
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()
        assert not worker.is_alive
