"""`/v1/responses`: OpenAI's newer shape, text in and text out."""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from time import monotonic
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from slipstream.engine import Token
from slipstream.errors import SlipstreamError
from slipstream.server.answers import Answers, while_connected
from slipstream.server.bodies import body_of
from slipstream.server.errors import error_body
from slipstream.server.identity import new_id, user_of
from slipstream.server.requests import ResponsesRequest
from slipstream.server.response_format import with_format
from slipstream.server.service import Service
from slipstream.server.streams import event_stream
from slipstream.server.whole import whole_answer

_FORMAT = ("type", "name", "description", "schema", "strict", "json_schema")
"""What of a format is told again."""


class Responses:
    """Answers as items of output."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """One request."""
        since = monotonic()
        asked = await body_of(request, ResponsesRequest, self._service.limits.body)
        self._service.worker.require_room(1)
        options = await run_in_threadpool(with_format, asked.options(), asked.response_format)
        answers = await self._service.begin([asked.messages], options, since=since, user=user_of(request))
        head = self._head(asked)
        if asked.stream:
            return event_stream(self._events(asked, answers, head), self._service.limits.patience, answers.cancel)
        completions = await while_connected(request, answers.all())
        if completions is None:
            return Response(status_code=499)
        return await whole_answer(lambda: self._finished(asked, answers, head, new_id("msg")))

    def _head(self, asked: ResponsesRequest) -> dict[str, Any]:
        return {
            "id": new_id("resp"),
            "object": "response",
            "created_at": self._service.now,
            "model": self._service.name,
            "status": "in_progress",
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": _format(asked)},
            "tool_choice": "none",
            "tools": [],
            "top_p": asked.top_p,
            "truncation": "disabled",
        }

    def _finished(
        self, asked: ResponsesRequest, answers: Answers, head: Mapping[str, Any], item: str
    ) -> dict[str, Any]:
        [completion], [tokens] = answers.completions, answers.tokens
        part = _part(completion.text) | self._details(asked, tokens)
        cut = completion.finish_reason == "length"
        counts = self._service.usage([completion])
        status = "incomplete" if cut else "completed"
        return {
            **head,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [_message(item, [part], status)],
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
            **self._service.figures([completion]),
        }

    async def _events(
        self, asked: ResponsesRequest, answers: Answers, head: Mapping[str, Any]
    ) -> AsyncIterator[Mapping[str, Any]]:
        number, item = count(), new_id("msg")
        place = {"item_id": item, "output_index": 0, "content_index": 0}

        def event(kind: str, **more: Any) -> dict[str, Any]:
            return {"type": f"response.{kind}", "sequence_number": next(number), **more}

        yield event("created", response=head)
        yield event("in_progress", response=head)
        yield event("output_item.added", output_index=0, item=_message(item, [], "in_progress"))
        yield event("content_part.added", **place, part=_part(""))
        try:
            async for _, tokens, _ in answers.pieces():
                text = "".join([token.text for token in tokens])
                if text or (tokens and asked.speculation.details):
                    details = self._details(asked, tokens)
                    yield event("output_text.delta", **place, delta=text, logprobs=[], **details)
        except SlipstreamError as error:
            body = error_body(error)[1]["error"]
            failed = {**head, "status": "failed", "error": {"code": "server_error", "message": body["message"]}}
            yield event("failed", response=failed)
            return
        response = self._finished(asked, answers, head, item)
        [part] = response["output"][0]["content"]
        told = {name: part[name] for name in ("text", "logprobs", "tokens") if name in part}
        yield event("output_text.done", **place, **told)
        yield event("content_part.done", **place, part=part)
        yield event("output_item.done", output_index=0, item=response["output"][0])
        yield event("incomplete" if response["status"] == "incomplete" else "completed", response=response)

    def _details(self, asked: ResponsesRequest, tokens: Sequence[Token]) -> dict[str, Any]:
        return {"tokens": self._service.details(tokens)} if asked.speculation.details else {}


def _format(asked: ResponsesRequest) -> dict[str, Any]:
    given = asked.response_format or {"type": "text"}
    return {name: given[name] for name in _FORMAT if name in given}


def _message(item: str, content: Sequence[Mapping[str, Any]], status: str) -> dict[str, Any]:
    return {"id": item, "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
