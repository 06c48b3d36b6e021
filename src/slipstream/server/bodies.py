"""Request bodies: of a bounded size, in a bounded time, of a known shape."""

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from slipstream.server.errors import ApiError, first_problem, parsed

READ_TIMEOUT = 30.0
"""Seconds within which a body must have come."""

MOST_IGNORED = 1 << 26
"""Bytes beyond the limit that are read where the connection ends with the answer: closed with something unread it is
reset, and the client, which is still sending, never sees what was wrong."""

Model = TypeVar("Model", bound=BaseModel)


async def body_of(request: Request, model: type[Model], most: int) -> Model:
    """The request's body. Raises ApiError for one that is too large, too slow, no JSON or of the wrong shape.

    most: bytes
    """
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            body = await _read(request, most)
    except TimeoutError:
        raise ApiError(408, f"The request's body did not come within {READ_TIMEOUT:.0f} seconds.") from None
    except ClientDisconnect:
        raise ApiError(400, "The connection was closed before the request was complete.") from None
    content = parsed(body)
    if not isinstance(content, dict):
        raise ApiError(400, "The request must be a JSON object.")
    try:
        return await run_in_threadpool(model.model_validate, content)
    except ValidationError as error:
        raise first_problem(error) from None


async def _read(request: Request, most: int) -> bytes:
    closes = request.scope["http_version"] == "1.0" or "close" in request.headers.get("connection", "").lower()
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= most:
            parts.append(part)
        elif not closes or size > most + MOST_IGNORED:
            break
    if size > most:
        raise ApiError(413, f"The request is larger than {most:,} bytes; send a shorter one.")
    return b"".join(parts)
