"""`/v1/chat/completions`."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from slipstream.engine import Completion, GenerationOptions, Token
from slipstream.engine.options import Prompt
from slipstream.server.answers import Answers, while_connected
from slipstream.server.bodies import body_of
from slipstream.server.identity import new_id, user_of
from slipstream.server.requests import ChatRequest
from slipstream.server.response_format import with_format
from slipstream.server.service import Service, finish_reason
from slipstream.server.streams import DONE, event_stream
from slipstream.server.tool_formats import DESCRIBED
from slipstream.server.tool_parser import ToolCallParser
from slipstream.server.tools import Tools
from slipstream.server.whole import whole_answer


class Plan(NamedTuple):
    """What the engine is asked for, and what reads an answer."""

    prompt: Prompt
    options: GenerationOptions
    parser: Callable[[], ToolCallParser]


class Chat:
    """Answers in chat messages."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """One request."""
        since = monotonic()
        asked = await body_of(request, ChatRequest, self._service.limits.body)
        self._service.worker.require_room(asked.choices)
        plan = await run_in_threadpool(self._plan, asked)
        answers = await self._service.begin(
            [plan.prompt], plan.options, asked.choices, since=since, user=user_of(request)
        )
        head = {"id": new_id("chatcmpl"), "created": self._service.now, "model": self._service.name}
        if asked.stream:
            return event_stream(self._events(asked, answers, head, plan), self._service.limits.patience, answers.cancel)
        completions = await while_connected(request, answers.all())
        if completions is None:
            return Response(status_code=499)
        return await whole_answer(lambda: {**head, "object": "chat.completion", **self._answer(asked, answers, plan)})

    def _plan(self, asked: ChatRequest) -> Plan:
        """Tools and formats, which may take a while. Raises SlipstreamError for what is wrong with them."""
        engine, options = self._service.engine, asked.options()
        messages = [message.for_template() for message in asked.messages]
        if engine.template is None:
            return Plan(messages, options, lambda: ToolCallParser(DESCRIBED, ()))
        parallel = asked.parallel_tool_calls is not False
        tools = Tools(engine.template, self._service.vocabulary, asked.tools, asked.tool_choice, parallel=parallel)
        prompt = engine.tokenize_rendered(tools.render(messages, think=options.get("think")), fitting=True)
        options["spelled"] = tools.spelled
        calls = tools.grammar()
        if calls is None:
            return Plan(prompt, with_format(options, asked.response_format), tools.parser)
        return Plan(prompt, {**options, "grammar": calls}, tools.parser)

    def _answer(self, asked: ChatRequest, answers: Answers, plan: Plan) -> dict[str, Any]:
        completions = answers.completions
        choices = []
        for index, (completion, tokens) in enumerate(zip(completions, answers.tokens, strict=True)):
            parser = plan.parser()
            content = parser.push(completion.text).content + parser.finish().content
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if parser.calls:
                message |= {"content": content or None, "tool_calls": [call.as_message() for call in parser.calls]}
            choice = {
                "index": index,
                "message": message,
                "logprobs": self._logprobs(asked, tokens),
                "finish_reason": _reason(completion, parser),
            }
            choices.append(choice | self._details(asked, tokens))
        usage = self._service.usage(completions, asked.choices)
        return {"choices": choices, "usage": usage, **self._service.figures(completions)}

    async def _events(
        self, asked: ChatRequest, answers: Answers, head: Mapping[str, Any], plan: Plan
    ) -> AsyncIterator[Mapping[str, Any] | str]:
        """Chunks: the role, the text of each round, calls, the reason for the end, and the usage if asked for."""
        head = {**head, "object": "chat.completion.chunk"}
        usage = {"usage": None} if asked.includes_usage else {}
        for index in range(asked.choices):
            yield {**head, "choices": [_choice(index, {"role": "assistant", "content": ""})], **usage}
        parsers = [plan.parser() for _ in range(asked.choices)]
        async for index, tokens, completion in answers.pieces():
            parser = parsers[index]
            parsed = parser.push("".join([token.text for token in tokens])) if completion is None else parser.finish()
            deltas = parsed.deltas()
            if tokens and (asked.logprobs or asked.speculation.details):
                deltas = deltas or [{"content": ""}]
            for number, delta in enumerate(deltas):
                told = tokens if number == 0 else ()
                choice = _choice(index, delta, logprobs=self._logprobs(asked, told)) | self._details(asked, told)
                yield {**head, "choices": [choice], **usage}
            if completion is not None:
                last = answers.left == 0 and not asked.includes_usage
                figures = self._service.figures(answers.completions) if last else {}
                yield {**head, "choices": [_choice(index, {}, _reason(completion, parser))], **usage, **figures}
        if asked.includes_usage:
            counts = self._service.usage(answers.completions, asked.choices)
            yield {**head, "choices": [], "usage": counts, **self._service.figures(answers.completions)}
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


def _reason(completion: Completion, parser: ToolCallParser) -> str | None:
    """Why the text ended; calls are a reason of their own."""
    reason = finish_reason(completion)
    return "tool_calls" if parser.calls and reason == "stop" else reason


def _choice(
    index: int, delta: Mapping[str, Any], reason: str | None = None, *, logprobs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
