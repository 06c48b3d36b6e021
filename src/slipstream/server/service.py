"""What the handlers share: the model, the worker that runs it, and the limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import time
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from slipstream.core.protocols import Vocabulary
from slipstream.draft import PredictionDrafter
from slipstream.engine import Completion, Engine, GenerationOptions, Token
from slipstream.engine.batch import Generation
from slipstream.engine.completion import figures_of
from slipstream.engine.options import Prompt
from slipstream.engine.worker import Worker
from slipstream.server.answers import Answers

REMEMBERED = 1 << 15
"""Tokens whose spelling is kept; more than that few texts have."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server takes.

    body:     bytes of a request
    timeout:  seconds of an answer, waiting included; None for no end
    patience: seconds that answers have to end when the server shuts down
    """

    body: int = 4 * 2**20
    timeout: float | None = 600.0
    patience: float = 30.0


class Spelling(NamedTuple):
    """A token as people read it.

    text: what it stands for, with U+FFFD for parts of characters; a control token's is its name
    name: the same, but parts of characters as bytes in OpenAI's spelling, so that they can be told apart
    raw:  its bytes, none for a control token
    """

    text: str
    name: str
    raw: bytes


class Service:
    """One model behind the API.

    name:  what the model is called in answers
    shared: whether drafters may learn from one user's texts for another's
    clock: seconds since 1970, for "created"
    """

    def __init__(
        self,
        worker: Worker,
        limits: Limits = Limits(),
        *,
        shared: bool = False,
        clock: Callable[[], float] = time,
    ) -> None:
        self.worker = worker
        self.limits = limits
        self.name = worker.engine.target.name.removesuffix(".gguf")
        self._shared = shared
        self._clock = clock
        self.started = self.now
        self.spelling = lru_cache(REMEMBERED)(self._spelling)

    @property
    def engine(self) -> Engine:
        return self.worker.engine

    @property
    def vocabulary(self) -> Vocabulary:
        return self.engine.target.vocabulary

    @property
    def now(self) -> int:
        return int(self._clock())

    async def begin(
        self, prompts: Sequence[Prompt], options: GenerationOptions, choices: int = 1, *, since: float, user: str
    ) -> Answers:
        """Check and queue a request: `choices` answers to each prompt. Raises SlipstreamError, BusyError among it.

        since: when it came, on the clock of `time.monotonic`
        user:  who asks
        """
        options = {**options, "scope": "" if self._shared else user}
        self.worker.require_room(len(prompts) * choices)
        generations = await run_in_threadpool(self._prepare, prompts, options, choices)
        return Answers(self.worker, generations, since, self.limits.timeout)

    def _prepare(self, prompts: Sequence[Prompt], options: GenerationOptions, choices: int) -> list[Generation]:
        generations: list[Generation] = []
        for prompt in prompts:
            first = self.engine.prepare(prompt, **options)
            again: GenerationOptions = {**options, "seed": first.completion.seed}
            ids = first.completion.prompt_tokens
            generations += [first, *(self.engine.prepare(ids, choice=n, **again) for n in range(1, choices))]
        return generations

    # --- parts of answers

    def usage(self, completions: Sequence[Completion], choices: int = 1) -> dict[str, Any]:
        """OpenAI's count of tokens; a prompt with several answers counts once."""
        prompts = completions[::choices]
        prompt = sum([len(one.prompt_tokens) for one in prompts])
        generated = sum([len(one.tokens) for one in completions])
        predicted = [one.drafted_by(PredictionDrafter.name) for one in completions]
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum([one.timings.cache_n for one in prompts])},
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum([accepted for accepted, _ in predicted]),
                "rejected_prediction_tokens": sum([refused for _, refused in predicted]),
            },
        }

    def figures(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """llama-server's `timings`, and what speculation did, for all texts of a request."""
        completion = figures_of(completions)
        off = "Speculation is off for this text."
        explanation = off if completion.drafter == "none" else self.worker.policy["explanation"]
        return {
            "timings": completion.timings.as_dict(),
            "speculation": {**completion.speculation(), "explanation": explanation},
        }

    def details(self, tokens: Sequence[Token]) -> list[dict[str, Any]]:
        """Where each token came from."""
        return [
            {
                "id": one.id,
                "text": one.text,
                "logprob": one.logprob,
                "accepted": one.accepted,
                "drafter": one.drafter,
                "round": one.round,
            }
            for one in tokens
        ]

    def spelled(self, token: int, logprob: float | None) -> dict[str, Any]:
        """A token as OpenAI's log-probabilities have it."""
        spelling = self.spelling(token)
        return {"token": spelling.text, "logprob": logprob, "bytes": list(spelling.raw)}

    def _spelling(self, token: int) -> Spelling:
        raw = self.vocabulary.token_bytes(token)
        try:
            text = raw.decode() or self.vocabulary.token_name(token)
        except UnicodeDecodeError:
            return Spelling(raw.decode(errors="replace"), "bytes:" + "".join([f"\\x{byte:02x}" for byte in raw]), raw)
        return Spelling(text, text, raw)


def finish_reason(completion: Completion) -> str | None:
    """OpenAI's word for why a text ended; None for one that was ended from outside."""
    return None if completion.finish_reason == "cancelled" else completion.finish_reason
