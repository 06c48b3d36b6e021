"""Generations that are running: one as a stream of tokens, several as a batch."""

from collections.abc import Generator, Iterator
from collections.abc import Sequence as Several
from contextlib import ExitStack
from threading import Event
from time import perf_counter
from types import TracebackType

from slipstream.core.feed import feed
from slipstream.core.pool import SessionPool
from slipstream.core.protocols import Drafter, Model, Policy
from slipstream.core.verify import Verdict
from slipstream.engine.completion import Completion, Token
from slipstream.engine.round import play_round
from slipstream.engine.sequence import Sequence


class Generation:
    """A sequence and its books."""

    def __init__(self, sequence: Sequence, completion: Completion) -> None:
        self.sequence = sequence
        self.completion = completion

    def take(self, verdict: Verdict, seconds: float) -> list[Token]:
        """Book what a round decided; returns its tokens."""
        completion, statistics = self.completion, self.sequence.statistics
        for commit in verdict.commits:
            completion.tokens.append(commit.token)
            completion.text += commit.text
            if completion.logprobs is not None and commit.logprob is not None:
                completion.logprobs.append(commit.logprob)
        completion.finish_reason = verdict.finish_reason or completion.finish_reason
        timings = completion.timings
        timings.predicted_n, timings.predicted_seconds = (
            len(completion.tokens),
            timings.predicted_seconds + seconds,
        )
        timings.draft_n, timings.draft_n_accepted = statistics.drafted, statistics.accepted
        return [Token(c.text, c.token, c.logprob, c.node is not None, c.drafter) for c in verdict.commits]


class Batch:
    """Generations that are decoded together, and the parts that do it.

    Everything a sequence takes (a session with the target, a place with the drafter) is given back by `close`,
    however the generation ends.
    """

    def __init__(self, target: Model, pool: SessionPool, drafters: Several[Drafter], policy: Policy) -> None:
        self._target = target
        self._pool = pool
        self._drafters = drafters
        self._policy = policy
        self._begun: list[Generation] = []

    def prefill(self, generation: Generation) -> Iterator[int]:
        """Place a generation and bring its KV cache up to all but the last prompt token.

        Yields after each chunk, so that the caller may stop in between.
        """
        sequence, timings = generation.sequence, generation.completion.timings
        sequence.slot = self._pool.acquire(sequence.tokens)
        self._begun.append(generation)
        timings.cache_n = reused = sequence.slot.session.length
        timings.prompt_n = len(sequence.tokens) - reused
        for drafter in self._drafters:
            drafter.begin(sequence, reused)
        started = perf_counter()
        for done in feed(self._target, sequence.slot.session, sequence.tokens[reused:-1]):
            timings.prompt_seconds = perf_counter() - started
            yield done

    def play_round(self) -> list[list[Token]]:
        """One round of every unfinished generation; returns the tokens of each."""
        active = [generation for generation in self._begun if not generation.sequence.finished]
        started = perf_counter()
        sequences = [generation.sequence for generation in active]
        verdicts = play_round(self._target, sequences, self._drafters, self._policy)
        seconds = perf_counter() - started
        return [generation.take(verdict, seconds) for generation, verdict in zip(active, verdicts, strict=True)]

    @property
    def finished(self) -> bool:
        return all(generation.sequence.finished for generation in self._begun)

    def close(self) -> None:
        """Give everything back, whatever fails; each KV cache stays for the next prompt that begins alike."""
        with ExitStack() as stack:
            while self._begun:
                generation = self._begun.pop()
                sequence = generation.sequence
                stack.callback(self._pool.release, sequence.placed, sequence.tokens)
                stack.callback(self._policy.end, sequence)
                for drafter in self._drafters:
                    stack.callback(drafter.end, sequence)
                if not sequence.finished:
                    generation.completion.text += sequence.text.flush()


class Stream:
    """Iterate over it to generate; a context manager, so that leaving early gives the KV cache back.

    `completion` is what there is so far, at any time. A round's tokens are in it before the first of them is
    handed out.
    """

    def __init__(self, batch: Batch, generation: Generation) -> None:
        self.completion = generation.completion
        self._cancelled = Event()
        # The generator does not know the stream, so a caller who walks away drops both and all is given back.
        self._tokens = _generate(batch, generation, self._cancelled)

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        return next(self._tokens)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def cancel(self) -> None:
        """End the generation before its next round; may be called from a signal handler or another thread."""
        self._cancelled.set()

    def close(self) -> None:
        """End the generation now. What was generated stays in `completion`."""
        self._tokens.close()


def _generate(batch: Batch, generation: Generation, cancelled: Event) -> Generator[Token, None, None]:
    try:
        for _ in batch.prefill(generation):
            if cancelled.is_set():
                return
        while not (batch.finished or cancelled.is_set()):
            for tokens in batch.play_round():
                yield from tokens
    finally:
        batch.close()
