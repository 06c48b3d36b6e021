"""Answers in one piece. Some are large, so they are built on a thread, and written in pieces that hold nobody up."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

RUN = 256
"""Members of a list that are written at once: the library lets no other thread run meanwhile."""
LEVELS = 5
"""How deep an answer is taken apart: choices, one of them, its log-probabilities, their tokens."""


async def whole_answer(build: Callable[[], Mapping[str, Any]]) -> Response:
    """What `build` returns, as JSON."""
    return Response(await run_in_threadpool(lambda: rendered(build())), media_type="application/json")


def rendered(body: Mapping[str, Any], levels: int = LEVELS) -> bytes:
    """JSON in UTF-8.

    levels: objects within objects that are taken apart
    """
    return "".join(_pieces(body, levels)).encode()


dumped: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Compact JSON. `json.dumps` would make an encoder for every token that is streamed."""


def _pieces(value: Any, levels: int) -> Iterator[str]:
    if levels and isinstance(value, Mapping):
        members = ((f"{dumped(name)}:", inner) for name, inner in value.items())
        yield from _joined("{", members, "}", levels)
    elif levels and isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield from _joined("[", (("", inner) for inner in value), "]", levels)
    elif isinstance(value, list) and len(value) > RUN:
        runs = (value[start : start + RUN] for start in range(0, len(value), RUN))
        for number, run in enumerate(runs):
            yield f"{',' if number else '['}{dumped(run)[1:-1]}"
        yield "]"
    else:
        yield dumped(value)


def _joined(opening: str, members: Iterator[tuple[str, Any]], closing: str, levels: int) -> Iterator[str]:
    """Members of an object, each with its name, or of a list."""
    yield opening
    for number, (name, inner) in enumerate(members):
        yield f"{',' if number else ''}{name}"
        yield from _pieces(inner, levels - 1)
    yield closing
