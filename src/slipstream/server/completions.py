"""`/v1/completions`: text that is continued as it is."""

from collections.abc import AsyncIterator, Mapping, Sequence
from time import monotonic
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from slipstream.engine import Token
from slipstream.server.answers import Answers, while_connected
from slipstream.server.bodies import body_of
from slipstream.server.identity import new_id, user_of
from slipstream.server.requests import CompletionRequest
from slipstream.server.response_format import with_format
from slipstream.server.service import Service, finish_reason
from slipstream.server.streams import DONE, event_stream
from slipstream.server.whole import whole_answer


class Completions:
    """Continues texts."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """One request."""
        since = monotonic()
        asked = await body_of(request, CompletionRequest, self._service.limits.body)
        self._service.worker.require_room(len(asked.prompts) * asked.choices)
        options = await run_in_threadpool(with_format, asked.options(), asked.response_format)
        answers = await self._service.begin(asked.prompts, options, asked.choices, since=since, user=user_of(request))
        head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": self._service.now,
            "model": self._service.name,
        }
        if asked.stream:
            return event_stream(self._events(asked, answers, head), self._service.limits.patience, answers.cancel)
        completions = await while_connected(request, answers.all())
        if completions is None:
            return Response(status_code=499)
        return await whole_answer(lambda: {**head, **self._answer(asked, answers)})

    def _answer(self, asked: CompletionRequest, answers: Answers) -> dict[str, Any]:
        completions = answers.completions
        choices = []
        for index, (completion, tokens) in enumerate(zip(completions, answers.tokens, strict=True)):
            echoed = self._prompt_text(asked, index)
            choices.append(
                self._choice(asked, index, echoed + completion.text, tokens, finish_reason(completion), len(echoed))
            )
        usage = self._service.usage(completions, asked.choices)
        return {"choices": choices, "usage": usage, **self._service.figures(completions)}

    async def _events(
        self, asked: CompletionRequest, answers: Answers, head: Mapping[str, Any]
    ) -> AsyncIterator[Mapping[str, Any] | str]:
        shown = [0] * len(answers.completions)
        usage = {"usage": None} if asked.includes_usage else {}
        async for index, tokens, completion in answers.pieces():
            text = "".join([token.text for token in tokens])
            if completion is not None:
                last = answers.left == 0 and not asked.includes_usage
                figures = self._service.figures(answers.completions) if last else {}
                ended = self._choice(asked, index, "", (), finish_reason(completion), shown[index])
                yield {**head, "choices": [ended], **usage, **figures}
                continue
            echoed = "" if shown[index] else self._prompt_text(asked, index)
            if echoed:
                yield {**head, "choices": [self._choice(asked, index, echoed, (), None, 0)], **usage}
            shown[index] += len(echoed)
            if text or asked.logprobs is not None or asked.speculation.details:
                yield {**head, "choices": [self._choice(asked, index, text, tokens, None, shown[index])], **usage}
            shown[index] += len(text)
        if asked.includes_usage:
            counts = self._service.usage(answers.completions, asked.choices)
            yield {**head, "choices": [], "usage": counts, **self._service.figures(answers.completions)}
        yield DONE

    def _prompt_text(self, asked: CompletionRequest, index: int) -> str:
        """What is put before an answer."""
        prompt = asked.prompts[index // asked.choices] if asked.echo else ""
        if isinstance(prompt, str):
            return prompt
        return b"".join([self._service.vocabulary.token_bytes(token) for token in prompt]).decode("utf-8", "replace")

    def _choice(
        self, asked: CompletionRequest, index: int, text: str, tokens: Sequence[Token], reason: str | None, offset: int
    ) -> dict[str, Any]:
        """offset: characters of the text before the first of these tokens."""
        logprobs = None if asked.logprobs is None else self._logprobs(tokens, offset)
        details = {"tokens": self._service.details(tokens)} if asked.speculation.details else {}
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, **details}

    def _logprobs(self, tokens: Sequence[Token], offset: int) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        spelling = self._service.spelling
        return {
            "tokens": [spelling(one.id).name for one in tokens],
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [self._named(one.top) for one in tokens],
            "text_offset": offsets,
        }

    def _named(self, top: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Log-probabilities by the tokens' names; where two have one name, the less likely has the vocabulary's."""
        named: dict[str, float] = {}
        for token, logprob in top:
            name = self._service.spelling(token).name
            named[self._service.vocabulary.token_name(token) if name in named else name] = logprob
        return named
