"""`/v1/responses`: OpenAI's newer shape, text in and text out."""

from collections.abc import AsyncIterator, Mapping
from itertools import count
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipstream.engine import Completion
from slipstream.errors import SlipstreamError
from slipstream.server.answers import Answers, while_connected
from slipstream.server.bodies import body_of
from slipstream.server.errors import error_body
from slipstream.server.identity import new_id
from slipstream.server.requests import ResponsesRequest
from slipstream.server.response_format import with_format
from slipstream.server.service import Service
from slipstream.server.streams import event_stream


class Responses:
    """Answers as items of output."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """One request."""
        asked = await body_of(request, ResponsesRequest, self._service.limits.body)
        options = await run_in_threadpool(with_format, asked.options(), asked.response_format)
        answers = await self._service.begin([asked.messages], options)
        head = self._head(asked)
        if asked.stream:
            return event_stream(self._events(asked, answers, head), self._service.limits.patience, answers.cancel)
        completions = await while_connected(request, answers.all())
        if completions is None:
            return Response(status_code=499)
        return JSONResponse(self._finished(head, new_id("msg"), completions[0]))

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
            "text": {"format": asked.response_format or {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": asked.top_p,
            "truncation": "disabled",
        }

    def _finished(self, head: Mapping[str, Any], item: str, completion: Completion) -> dict[str, Any]:
        cut = completion.finish_reason == "length"
        counts = self._service.usage([completion])
        status = "incomplete" if cut else "completed"
        return {
            **head,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [_message(item, completion.text, status)],
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
            **self._service.figures(completion),
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
        yield event("output_item.added", output_index=0, item=_message(item, None, "in_progress"))
        yield event("content_part.added", **place, part=_part(""))
        try:
            async for _, tokens, _ in answers.pieces():
                if text := "".join([token.text for token in tokens]):
                    yield event("output_text.delta", **place, delta=text, logprobs=[])
        except SlipstreamError as error:
            body = error_body(error)[1]["error"]
            failed = {**head, "status": "failed", "error": {"code": "server_error", "message": body["message"]}}
            yield event("failed", response=failed)
            return
        [completion] = answers.completions
        response = self._finished(head, item, completion)
        yield event("output_text.done", **place, text=completion.text, logprobs=[])
        yield event("content_part.done", **place, part=_part(completion.text))
        yield event("output_item.done", output_index=0, item=response["output"][0])
        yield event("incomplete" if response["status"] == "incomplete" else "completed", response=response)


def _message(item: str, text: str | None, status: str) -> dict[str, Any]:
    content = [] if text is None else [_part(text)]
    return {"id": item, "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
