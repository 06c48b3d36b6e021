"""Server-sent events."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
from sse_starlette import EventSourceResponse

from slipstream.errors import SlipstreamError
from slipstream.server.errors import error_body

SEND_TIMEOUT = 60.0
"""Seconds that a reader may be behind before it counts as gone."""
DONE = "[DONE]"


def event_stream(events: AsyncIterator[Mapping[str, Any] | str], patience: float) -> EventSourceResponse:
    """An answer of events: objects as JSON, text as it is. patience: seconds it may go on in a shutdown.

    What goes wrong on the way is the last event. An object with "event" names its kind by that, as responses do.
    """
    return EventSourceResponse(
        _framed(events),
        sep="\n",
        ping=15,
        send_timeout=SEND_TIMEOUT,
        shutdown_event=anyio.Event(),
        shutdown_grace_period=patience,
        headers={"X-Accel-Buffering": "no"},
    )


async def _framed(events: AsyncIterator[Mapping[str, Any] | str]) -> AsyncIterator[dict[str, str]]:
    try:
        async for event in events:
            yield {"data": event if isinstance(event, str) else dumped(event), **_kind(event)}
    except SlipstreamError as error:
        yield {"data": dumped(error_body(error)[1])}


def _kind(event: Mapping[str, Any] | str) -> dict[str, str]:
    return {} if isinstance(event, str) or "type" not in event else {"event": event["type"]}


def dumped(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
