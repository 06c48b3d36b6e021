"""Server-sent events."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from slipstream.errors import SlipstreamError
from slipstream.server.errors import error_body
from slipstream.server.whole import dumped

DONE = "[DONE]"


class _Stream(EventSourceResponse):
    """Says when it is over, also where it never began."""

    on_close: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.on_close()


def event_stream(
    events: AsyncIterator[Mapping[str, Any] | str], patience: float, on_close: Callable[[], None]
) -> EventSourceResponse:
    """An answer of events: objects as JSON, text as it is.

    patience: seconds it may go on in a shutdown
    on_close: called when it is over, however it ended

    What goes wrong on the way is the last event. An object with "event" names its kind by that, as responses do. A
    reader who does not read is hung up on by the connection (`serving.Protocol`).
    """
    stream = _Stream(
        _framed(events),
        sep="\n",
        ping=15,
        shutdown_event=anyio.Event(),
        shutdown_grace_period=patience,
        headers={"X-Accel-Buffering": "no"},
    )
    stream.on_close = on_close
    return stream


async def _framed(events: AsyncIterator[Mapping[str, Any] | str]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield written(event)
    except SlipstreamError as error:
        yield last_event(error)


def last_event(error: SlipstreamError) -> bytes:
    """An error as it is written at the end of a stream."""
    return written(error_body(error)[1])


def written(event: Mapping[str, Any] | str) -> bytes:
    """An event as it is sent. JSON has no line breaks, so it is one line of data, which the library would look for."""
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    kind = f"event: {event['type']}\n" if "type" in event else ""
    return f"{kind}data: {dumped(event)}\n\n".encode()
