"""Who answers in a benchmark: an engine, or (in `server.py`) a server."""

from collections.abc import Callable
from typing import Protocol

from slipstream.engine import Completion, Engine, GenerationOptions
from slipstream.errors import ChatTemplateError, ContextLimitError, UsageError
from slipstream.measure.looping import repeated_share
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.records import Answer, Round, hash_ids, hash_text

PROMPT_ERRORS = (ChatTemplateError, ContextLimitError, UsageError)
"""What `answer` raises when this prompt cannot be answered; the next one may be."""


class Contestant(Protocol):
    """Answers one prompt at a time."""

    def answer(self, prompt: BenchPrompt, options: GenerationOptions, should_stop: Callable[[], bool]) -> Answer | None:
        """One answer, timed; None if it was stopped. Raises SlipstreamError."""


class EngineContestant:
    """An engine, which stays its owner's to close."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def answer(self, prompt: BenchPrompt, options: GenerationOptions, should_stop: Callable[[], bool]) -> Answer | None:
        given = prompt.for_model(has_template=self.engine.template is not None)
        with self.engine.stream(given, **options) as stream:
            for _ in stream:
                if should_stop():
                    return None
        return measured(stream.completion)


def measured(completion: Completion) -> Answer:
    """A completion's figures, without who answered what."""
    timings = completion.timings
    return Answer(
        tokens=timings.predicted_n,
        seconds=timings.predicted_seconds,
        prompt_tokens=len(completion.prompt_tokens),
        cached_tokens=timings.cache_n,
        prompt_seconds=timings.prompt_seconds,
        finish_reason=completion.finish_reason,
        ids_hash=hash_ids(completion.tokens),
        text_hash=hash_text(completion.text),
        looping=repeated_share(completion.tokens),
        drafted=timings.draft_n,
        accepted=timings.draft_n_accepted,
        rounds=[Round.of(record) for record in completion.rounds],
    )
