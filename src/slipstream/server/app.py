"""The server as an ASGI application."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from slipstream.errors import SlipstreamError
from slipstream.server import description
from slipstream.server.chat import Chat
from slipstream.server.completions import Completions
from slipstream.server.doors import AccessLog, Doorkeeper
from slipstream.server.errors import ApiError, on_error, on_http_error
from slipstream.server.metrics import Metrics
from slipstream.server.page import page_routes
from slipstream.server.responses import Responses
from slipstream.server.service import Service
from slipstream.server.utilities import Utilities

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Doors:
    """Who may come in.

    api_key:      None for everybody; of several, each is a user of its own
    cors_origins: sites whose pages may ask; none by default
    hosts:        names by which the server may be called, empty for any: on a loopback address a page of somebody
                  else's that points its name there must not get in
    """

    api_key: str | Sequence[str] | None = None
    cors_origins: Sequence[str] = ()
    hosts: Sequence[str] = ()


def create_app(service: Service, metrics: Metrics, doors: Doors | None = None) -> Starlette:
    """All endpoints. When the application is shut down, so is the service's worker."""
    doors = doors or Doors()
    metrics.watch(service.worker)
    routes = _routes(service, metrics)
    paths = [route.path for route in routes if isinstance(route, Route)]
    middleware = [
        Middleware(AccessLog, metrics, paths),
        *([_cors(doors.cors_origins)] if doors.cors_origins else []),
        Middleware(Doorkeeper, doors.api_key, doors.cors_origins, doors.hosts),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.worker.close)

    return Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            ApiError: on_error,
            SlipstreamError: on_error,
            HTTPException: on_http_error,
        },
        lifespan=lifespan,
    )


def _routes(service: Service, metrics: Metrics) -> list[BaseRoute]:
    utilities = Utilities(service)
    get: dict[str, Endpoint] = {
        "/health": utilities.health,
        "/v1/health": utilities.health,
        "/metrics": metrics.answer,
        "/openapi.json": description.answer,
        "/props": utilities.props,
        "/v1/models": utilities.models,
        "/v1/models/{name:path}": utilities.model,
    }
    post: dict[str, Endpoint] = {
        "/v1/chat/completions": Chat(service).answer,
        "/v1/completions": Completions(service).answer,
        "/v1/responses": Responses(service).answer,
        "/tokenize": utilities.tokenize,
        "/detokenize": utilities.detokenize,
    }
    return [
        *page_routes(),
        *(Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()),
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()),
    ]


def _cors(origins: Sequence[str]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # clients in browsers send some of their own
        expose_headers=["X-Request-Id", "Retry-After"],
    )
