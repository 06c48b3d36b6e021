"""What the page needs of the API, with scripted answers: no model, no engine, and every moment under control."""

import asyncio
import contextlib
import json
import math
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic, sleep
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from slipstream.server.page import page_routes

DRAFTERS = ("", "suffix", "suffix", "model")
"""Of the tokens of a round in turn; the first is what the model chose itself."""

LOGPROB = math.log(0.731)


@dataclass
class FakeApi:
    """A server whose answers are chosen by the last message.

    answers: text for each message; what is not in it is answered with "You said: ..."
    plain_answers: other texts while speculation is off, as a broken engine would give
    held: messages whose answers stop after `held_after` tokens until `release` is set or the client goes away
    refuse: status, message and headers of an error for every request for an answer
    break_off: end every stream in the middle, "error" with an error event, "cut" without a word
    requests: bodies of the requests for answers
    abandoned: messages whose clients went away
    """

    answers: dict[str, str] = field(default_factory=dict)
    plain_answers: dict[str, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    held_after: int = 5
    key: str | None = None
    refuse: tuple[int, str, dict[str, str]] | None = None
    break_off: str | None = None
    pause: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    def app(self) -> Starlette:
        routes = [
            Route("/v1/models", self._models),
            Route("/props", self._props),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            *page_routes(),
        ]
        return Starlette(routes=routes)

    def _refusal(self, request: Request) -> Response | None:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return error(401, "Wrong API key.")
        return None

    async def _models(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse({"object": "list", "data": [{"id": "tiny-model-Q4_0"}]})

    async def _props(self, request: Request) -> Response:
        settings = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.0}
        body = {"model": "tiny-model-Q4_0", "context_length": 2048, "parallel": 1, "drafter": "suffix"}
        return self._refusal(request) or JSONResponse({**body, "default_generation_settings": settings})

    async def _chat(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if self.refuse is not None:
            return error(*self.refuse)
        body = await request.json()
        self.requests.append(body)
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        message = body["messages"][-1]["content"]
        speculative = body["speculation"]["mode"] == "auto"
        answer = self.answers.get(message, f"You said: {message}")
        if not speculative:
            answer = self.plain_answers.get(message, answer)
        tokens = tokens_of(answer, speculative=speculative)
        try:
            async for line in self._events(message, tokens, speculative=speculative):
                yield line
        except (asyncio.CancelledError, GeneratorExit):
            self.abandoned.append(message)
            raise

    async def _events(self, message: str, tokens: list[dict[str, Any]], *, speculative: bool) -> AsyncIterator[str]:
        yield ": ping\n\n"
        yield event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        done = 0
        for chunk in rounds_of(tokens):
            if message in self.held and done >= self.held_after:
                while not self.release.is_set():
                    await asyncio.sleep(0.01)
            if self.break_off is not None and done >= self.held_after:
                if self.break_off == "error":
                    yield f"data: {json.dumps({'error': {'message': 'The model ran out of memory.'}})}\n\n"
                return
            delta = {"content": "".join(token["text"] for token in chunk)}
            yield event(choices=[{"index": 0, "delta": delta, "finish_reason": None, "tokens": chunk}])
            done += len(chunk)
            await asyncio.sleep(self.pause)
        yield event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        yield event(choices=[], **end_of(tokens, speculative=speculative))
        yield "data: [DONE]\n\n"


def tokens_of(text: str, *, speculative: bool) -> list[dict[str, Any]]:
    """Words with the space before them. The same text has the same ids, whoever guessed it."""
    tokens = []
    for place, piece in enumerate(re.findall(r"\s?\w+|\s|[^\w\s]", text)):
        drafter = DRAFTERS[place % len(DRAFTERS)] if speculative else ""
        tokens.append(
            {
                "id": sum(map(ord, piece)) % 50000,
                "text": piece,
                "logprob": LOGPROB,
                "accepted": drafter != "",
                "drafter": drafter,
                "round": place // len(DRAFTERS) if speculative else place,
            }
        )
    return tokens


def rounds_of(tokens: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    starts = [place for place, token in enumerate(tokens) if place == 0 or token["round"] != tokens[place - 1]["round"]]
    for start, end in pairwise([*starts, len(tokens)]):
        yield tokens[start:end]


def end_of(tokens: list[dict[str, Any]], *, speculative: bool) -> dict[str, Any]:
    """Usage, timings and speculation as the last chunk has them."""
    count = len(tokens)
    rounds = len({token["round"] for token in tokens})
    return {
        "usage": {
            "prompt_tokens": 30,
            "completion_tokens": count,
            "total_tokens": 30 + count,
            "prompt_tokens_details": {"cached_tokens": 12},
        },
        "timings": {"predicted_n": count, "predicted_per_second": 120.0 if speculative else 50.0},
        "speculation": {
            "enabled": speculative,
            "drafter": "suffix+model" if speculative else "",
            "rounds": rounds,
            "mean_accepted_length": count / max(rounds, 1),
            "acceptance_rate": 0.75 if speculative else None,
            "estimated_speed_up": 2.4 if speculative else None,
            "explanation": "Drafts pay: 3 of 4 are right." if speculative else "Speculation is off.",
        },
    }


def event(**fields: Any) -> str:
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny-model-Q4_0"}
    return f"data: {json.dumps({**common, **fields})}\n\n"


def error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": body}, status, headers=headers)


@contextlib.contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """The address of a running server on a free port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline = monotonic() + 30
            while not server.started:
                assert thread.is_alive()
                assert monotonic() < deadline
                sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
