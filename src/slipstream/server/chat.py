"""`/v1/chat/completions`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipstream.engine import Token
from slipstream.server.answers import Answers, while_connected
from slipstream.server.bodies import body_of
from slipstream.server.identity import new_id
from slipstream.server.requests import ChatRequest
from slipstream.server.service import Service, finish_reason
from slipstream.server.streams import DONE, event_stream


class Chat:
    """Answers in chat messages."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """One request."""
        asked = await body_of(request, ChatRequest, self._service.limits.body)
        messages = [message.for_template() for message in asked.messages]
        answers = await self._service.begin([messages], asked.options(), asked.choices)
        head = {"id": new_id("chatcmpl"), "created": self._service.now, "model": self._service.name}
        if asked.stream:
            return event_stream(self._events(asked, answers, head), self._service.limits.patience)
        completions = await while_connected(request, answers.all())
        if completions is None:
            return Response(status_code=499)
        return JSONResponse({**head, "object": "chat.completion", **self._answer(asked, answers)})

    def _answer(self, asked: ChatRequest, answers: Answers) -> dict[str, Any]:
        completions = answers.completions
        choices = []
        for index, (completion, tokens) in enumerate(zip(completions, answers.tokens, strict=True)):
            choice = {
                "index": index,
                "message": {"role": "assistant", "content": completion.text, "refusal": None},
                "logprobs": self._logprobs(asked, tokens),
                "finish_reason": finish_reason(completion),
            }
            choices.append(choice | self._details(asked, tokens))
        usage = self._service.usage(completions, asked.choices)
        return {"choices": choices, "usage": usage, **self._service.figures(completions[0])}

    async def _events(
        self, asked: ChatRequest, answers: Answers, head: Mapping[str, Any]
    ) -> AsyncIterator[Mapping[str, Any] | str]:
        """Chunks: the role, the text of each round, the reason for the end, and the usage if it was asked for."""
        head = {**head, "object": "chat.completion.chunk"}
        usage = {"usage": None} if asked.includes_usage else {}
        for index in range(asked.choices):
            yield {**head, "choices": [_choice(index, {"role": "assistant", "content": ""})], **usage}
        async for index, tokens, completion in answers.pieces():
            text = "".join([token.text for token in tokens])
            if completion is None:
                if text or asked.logprobs or asked.speculation.details:
                    choice = _choice(index, {"content": text}, logprobs=self._logprobs(asked, tokens))
                    yield {**head, "choices": [choice | self._details(asked, tokens)], **usage}
                continue
            figures = {} if asked.includes_usage else self._service.figures(completion)
            yield {**head, "choices": [_choice(index, {}, finish_reason(completion))], **usage, **figures}
        if asked.includes_usage:
            counts = self._service.usage(answers.completions, asked.choices)
            yield {**head, "choices": [], "usage": counts, **self._service.figures(answers.completions[0])}
        yield DONE

    def _logprobs(self, asked: ChatRequest, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not asked.logprobs:
            return None
        spelled = self._service.spelled
        content = [
            {**spelled(one.id, one.logprob), "top_logprobs": [spelled(*other) for other in one.top]} for one in tokens
        ]
        return {"content": content, "refusal": None}

    def _details(self, asked: ChatRequest, tokens: Sequence[Token]) -> dict[str, Any]:
        return {"tokens": self._service.details(tokens)} if asked.speculation.details else {}


def _choice(
    index: int, delta: Mapping[str, Any], reason: str | None = None, *, logprobs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
