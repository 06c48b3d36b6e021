"""An OpenAI-compatible server as a contestant: the same prompts, sampling and seed through /v1/chat/completions.

Answers are streamed. llama-server tells its own times and draft counters (`timings`); vLLM counts drafts in /metrics.
Where a server tells no times, decoding lasts from the first piece of text to the last, and the first piece is taken
for one token.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from slipstream.core.params import SamplingParams
from slipstream.engine import GenerationOptions
from slipstream.measure.looping import repeated_share
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.records import Answer, hash_text
from slipstream.measure.server_link import PATIENCE_SECONDS, Event, Link, RefusedError, ServerError, parse_address

PARTS = ("reasoning_content", "reasoning", "content")
"""Where a piece of text can be; thinking takes time like anything else."""
MOST = 1e12
"""No server counts or times as much."""
PIECES_A_TOKEN = 4
"""More pieces of text than this for each token that was asked for are no answer that will end."""
DRAFTED = re.compile(r"^vllm:spec_decode_num_draft_tokens(?:_total)?(?:\{[^}]*\})? (\S+)", re.MULTILINE)
ACCEPTED = re.compile(r"^vllm:spec_decode_num_accepted_tokens(?:_total)?(?:\{[^}]*\})? (\S+)", re.MULTILINE)


class Server:
    """A server. `model` is the one that it names first.

    key: sent as a bearer token if given. Raises UsageError for an address that is none, ServerError if nobody answers.
    """

    def __init__(
        self, url: str, params: SamplingParams, *, key: str | None = None, patience: float = PATIENCE_SECONDS
    ) -> None:
        self._link = Link(parse_address(url), key=key, patience=patience)
        self._params = params
        self.name = self._link.address.name
        self.model = self._first_model()
        self._counts = True

    def answer(self, prompt: BenchPrompt, options: GenerationOptions, should_stop: Callable[[], bool]) -> Answer | None:
        """One answer, timed; None if it was stopped. Raises ServerError, RefusedError."""
        before = self._draft_counters()
        reply = _Reply()
        for moment, event in self._link.events("/v1/chat/completions", self._request(prompt, options), should_stop):
            reply.take(moment, event)
            if reply.pieces > PIECES_A_TOKEN * (options.get("max_tokens") or MOST):
                raise self._link.broken("does not stop where it was asked to")
        if should_stop():
            return None
        if not reply.finish_reason:
            raise self._link.broken("went away in the middle of an answer")
        if not reply.has_text:
            raise RefusedError(f"The server {self.name} gave an empty answer.")
        after = self._draft_counters()
        return reply.answer(_difference(after[0], before[0]), _difference(after[1], before[1]))

    def _request(self, prompt: BenchPrompt, options: GenerationOptions) -> dict[str, Any]:
        """Everything that samples is said, also what is neutral: servers have defaults of their own."""
        params = self._params
        messages = [{"role": "user", "content": prompt.text}] if prompt.text is not None else list(prompt.messages)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "repetition_penalty": params.repetition_penalty,  # vLLM's name
            "repeat_penalty": params.repetition_penalty,  # llama-server's
            "seed": (options.get("seed") or 0) % 2**31,
        }
        body |= {name: options[name] for name in ("max_tokens", "stop") if options.get(name)}
        if params.logit_bias:
            body["logit_bias"] = {str(token): max(bias, -100.0) for token, bias in params.logit_bias.items()}
        if options.get("think") is not None:
            body["chat_template_kwargs"] = {"enable_thinking": options["think"]}
        return body

    def _first_model(self) -> str:
        try:
            return str(json.loads(self._link.get("/v1/models"))["data"][0]["id"])
        except (ValueError, RecursionError, KeyError, IndexError, TypeError):
            raise self._link.broken("answers /v1/models with something else than a list of models") from None

    def _draft_counters(self) -> tuple[float | None, float | None]:
        """vLLM's counters of drafted and accepted tokens; None where there are none, which is asked only once."""
        if not self._counts:
            return None, None
        try:
            text = self._link.get("/metrics").decode(errors="replace")
        except (ServerError, RefusedError):
            self._counts = False
            return None, None
        return _total(DRAFTED, text), _total(ACCEPTED, text)


def _difference(after: float | None, before: float | None) -> int | None:
    """What was added; None for counters that were set back or are no numbers."""
    added = math.nan if after is None or before is None else after - before
    return int(added) if 0 <= added < MOST else None


def _total(pattern: re.Pattern[str], text: str) -> float | None:
    """The sum of a counter over its labels; None if it is not there."""
    try:
        values = [float(value) for value in pattern.findall(text)]
    except ValueError:
        return None
    return sum(values) if values else None


class _Reply:
    """What came of one answer."""

    def __init__(self) -> None:
        self._text = ""
        self._moments: list[float] = []
        self._started = perf_counter()
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self.finish_reason = ""

    def take(self, moment: float, event: Event) -> None:
        """One event of the stream; parts that are missing or odd are passed over."""
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = choice.get("delta")
        pieces = [delta.get(key) for key in PARTS] if isinstance(delta, dict) else []
        for piece in pieces:
            if isinstance(piece, str) and piece:
                self._text += piece
                self._moments.append(moment)
        self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
        for name in ("usage", "timings"):
            if isinstance(event.get(name), dict):
                setattr(self, f"_{name}", event[name])

    @property
    def pieces(self) -> int:
        """Pieces of text so far."""
        return len(self._moments)

    @property
    def has_text(self) -> bool:
        tokens, seconds = self._decoded()
        return tokens >= 1 and seconds > 0

    def answer(self, drafted: int | None, accepted: int | None) -> Answer:
        """The server's own times and counts where it tells them, else ours and what its metrics say."""
        tokens, seconds = self._decoded()
        told = "draft_n" in self._timings
        return Answer(
            tokens=tokens,
            seconds=seconds,
            prompt_tokens=_count(self._usage, "prompt_tokens") or _count(self._timings, "prompt_n") or 0,
            prompt_seconds=_seconds(self._timings, "prompt_ms") or self._waited,
            finish_reason=self.finish_reason,
            text_hash=hash_text(self._text),
            looping=repeated_share(self._text.split()),
            drafted=_count(self._timings, "draft_n") if told else drafted,
            accepted=_count(self._timings, "draft_n_accepted") if told else accepted,
        )

    @property
    def _waited(self) -> float:
        """Until the first piece of text."""
        return self._moments[0] - self._started if self._moments else 0.0

    def _decoded(self) -> tuple[int, float]:
        """Tokens and the seconds that they took."""
        told = _count(self._timings, "predicted_n"), _seconds(self._timings, "predicted_ms")
        if told[0] and told[1]:
            return told[0], told[1]
        if not self._moments:
            return 0, 0.0
        count = _count(self._usage, "completion_tokens") or len(self._moments)
        spent = self._moments[-1] - self._moments[0]
        return (count - 1, spent) if count > 1 and spent > 0 else (count, self._moments[-1] - self._started)


def _count(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return int(value) if isinstance(value, int | float) and 0 <= value < MOST else None


def _seconds(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    return float(value) / 1e3 if isinstance(value, int | float) and 0 < value < MOST else None
