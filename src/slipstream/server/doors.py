"""What every request passes: an id, the log, the counters, the key, and a look at where it comes from."""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Collection, Sequence
from time import perf_counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.errors import BusyError
from slipstream.server.errors import ApiError, failure, response
from slipstream.server.identity import USER, user_named
from slipstream.server.log import FIELDS
from slipstream.server.metrics import Metrics
from slipstream.server.streams import last_event

OPEN_PATHS = ("/", "/health", "/v1/health")
OPEN_FOLDERS = ("/static/",)
"""Need no key: the page, which asks for one, and the question whether the server is well."""
REQUEST_ID = "x-request-id"
_logger = logging.getLogger("slipstream.server")


class AccessLog:
    """Gives every request an id, logs and counts it. Neither prompts nor answers are ever logged."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, _to_the_end(receive), send)
            return
        started, status, streams = perf_counter(), 0, False
        name = f"req-{secrets.token_hex(8)}"

        async def sending(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status, headers = message["status"], MutableHeaders(scope=message)
                headers[REQUEST_ID] = name
                streams = headers.get("content-type", "").startswith("text/event-stream")
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:  # the server stops and does not wait any longer
            ended = BusyError("The server was shut down before this text was complete.")
            if not status:
                await response(ended)(scope, receive, sending)
            elif streams:  # whole events have been sent, and one more fits
                await send({"type": "http.response.body", "body": last_event(ended)})
        except Exception:
            _logger.exception("%s failed.", name)
            if not status:
                await failure()(scope, receive, sending)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"  # anybody may ask for anything
            self._metrics.requests.labels(path, str(status)).inc()
            self._write(name, scope, status, perf_counter() - started)

    def _write(self, name: str, scope: Scope, status: int, seconds: float) -> None:
        client = scope["client"][0] if scope.get("client") else ""
        path = scope["path"].encode("unicode_escape", "backslashreplace").decode("ascii")[:200]
        method, ms = scope["method"], round(seconds * 1e3, 1)
        fields = {"id": name, "client": client, "method": method, "path": path, "status": status, "ms": ms}
        line = "%s %s %s %d %.0f ms %s"
        _logger.info(line, client, method, path, status, ms, name, extra={FIELDS: fields})


def _to_the_end(receive: Receive) -> Receive:
    """What a lifespan receives: a server that is told twice to stop cancels it, which is an end like any other."""

    async def receiving() -> Message:
        try:
            return await receive()
        except asyncio.CancelledError:
            return {"type": "lifespan.shutdown"}

    return receiving


class Doorkeeper:
    """Lets in who has the key, if there is one, and keeps out pages of other sites, which a browser would let ask.

    key:     what "Authorization: Bearer" must carry, None for no key; of several, any. Who has which is the request's
             user (`identity.user_of`)
    origins: whose pages may ask besides the server's own
    hosts:   names by which it may be called, empty for any; "*.example.org" is any name below that one
    """

    def __init__(
        self, app: ASGIApp, key: str | Sequence[str] | None, origins: Collection[str] = (), hosts: Collection[str] = ()
    ) -> None:
        self._app, self._origins = app, frozenset(origins)
        given = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        self._keys = [(one.encode(), user_named(one)) for one in given]
        self._hosts = tuple(host.lower().strip("[]") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            answer = response(refusal)
            if refusal.status == 401:
                answer.headers["WWW-Authenticate"] = "Bearer"
            await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers, path = Headers(scope=scope), scope["path"]
        if self._hosts and not self._is_own(headers.get("host", "")):
            return ApiError(400, "This is not a name of this server; allow it with --allowed-host.")
        origin = headers.get("origin")
        if origin is not None and not self._is_welcome(origin, headers.get("host", "")):
            return ApiError(403, "Pages of other sites may not ask this server; allow theirs with --cors-origin.")
        if not self._keys or path in OPEN_PATHS or path.startswith(OPEN_FOLDERS):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        sent = given.strip(" \t").encode("latin-1")
        # all of them, so that the time does not tell which it is
        users = [user for key, user in self._keys if hmac.compare_digest(sent, key)]
        if scheme.lower() == "bearer" and users:
            scope[USER] = users[0]
            return None
        problem = "is wrong" if given else "is missing"
        return ApiError(401, f"The API key {problem}; send it as Authorization: Bearer KEY.", code="invalid_api_key")

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return any(name == one or (one[:2] == "*." and name.endswith(one[1:])) or one == "*" for one in self._hosts)

    def _is_welcome(self, origin: str, host: str) -> bool:
        try:
            own = urlsplit(origin).netloc == host
        except ValueError:  # no address at all
            own = False
        return own or "*" in self._origins or origin in self._origins
