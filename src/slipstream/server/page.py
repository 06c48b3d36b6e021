"""The web page: its files, and Markdown for it. It needs nothing else than the API beside it.

The files are read once and never change while the server runs. A browser keeps them and asks each time whether they
are still the same (an `ETag` and a 304 of no bytes), so that a new version is never mixed with an old one.
"""

import asyncio
import hashlib
import json
from importlib.resources import files
from typing import Any, NamedTuple

from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from slipstream.server.bodies import READ_TIMEOUT
from slipstream.server.markdown import render

MARKDOWN_BYTES = 1 << 17
"""Largest body of `POST /page/markdown`."""

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

SECURITY = {
    # Nothing from elsewhere and nothing inline. Only one place of the page, named here, may turn text into HTML.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types slipstream-markdown",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageFile(NamedTuple):
    """A file of the page as it is served; `tag` is its quoted ETag."""

    content: bytes
    kind: str
    tag: str


class _Refused(Exception):
    """A request for Markdown that cannot be met: HTTP status, then a sentence."""


def page_routes() -> list[BaseRoute]:
    """Routes of the page: `/`, `/static/NAME` and `/page/markdown`."""
    static = _package_files()
    # One text at a time: rendering must not take the threads, and with them the time, of generation.
    limiter = CapacityLimiter(1)

    async def index(request: Request) -> Response:
        return _file(request, static["index.html"])

    async def file(request: Request) -> Response:
        name = request.path_params["file"]
        if name not in static:
            return _error(404, f"The page has no file called {name[:60]!r}.")
        return _file(request, static[name])

    async def markdown(request: Request) -> Response:
        try:
            text = _text(await _body(request))
        except _Refused as refused:
            return _error(*refused.args)
        html = await to_thread.run_sync(render, text, limiter=limiter)
        return JSONResponse({"html": html}, headers={**SECURITY, "Cache-Control": "no-store"})

    return [
        Route("/", index),
        Route("/static/{file}", file),
        Route("/page/markdown", markdown, methods=["POST"]),
    ]


def _package_files() -> dict[str, PageFile]:
    """Every file of the page by name; no path of a request ever reaches the file system."""
    served = {}
    for entry in files("slipstream.server").joinpath("static").iterdir():
        kind = TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if kind is not None:
            content = entry.read_bytes()
            served[entry.name] = PageFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return served


def _file(request: Request, file: PageFile) -> Response:
    headers = {**SECURITY, "Cache-Control": "no-cache", "ETag": file.tag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "Content-Type": file.kind})


async def _body(request: Request) -> bytes:
    """The whole body, or a refusal as soon as it is known to be too large, whatever length was announced."""
    body = bytearray()
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            async for part in request.stream():
                body += part
                if len(body) > MARKDOWN_BYTES:
                    raise _Refused(413, f"The text is too long to show as Markdown: over {MARKDOWN_BYTES} bytes.")
    except TimeoutError:
        raise _Refused(408, "The text did not come in time.") from None
    except ClientDisconnect:
        raise _Refused(400, "The body ended too early.") from None
    return bytes(body)


def _text(body: bytes) -> str:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):  # no UTF-8, no JSON, or nested without end
        raise _Refused(400, 'The body is not JSON; send {"text": "..."}.') from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise _Refused(400, 'The body has no text; send {"text": "..."}.')
    return str(value["text"])


def _error(status: int, message: str) -> JSONResponse:
    """An error as OpenAI's API reports it."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return JSONResponse(body, status, headers=SECURITY)
