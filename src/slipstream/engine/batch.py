"""Generations that are decoded together: prompts come in by slices, and every round is one forward for all of them."""

from collections.abc import Iterator
from collections.abc import Sequence as Several
from contextlib import ExitStack
from time import perf_counter

from slipstream.core.pool import SessionPool
from slipstream.core.protocols import Drafter, Model, Policy, Segment
from slipstream.core.verify import Verdict
from slipstream.engine.completion import Completion, Token
from slipstream.engine.round import play_round
from slipstream.engine.sequence import Sequence


class Generation:
    """A sequence and its books."""

    def __init__(self, sequence: Sequence, completion: Completion) -> None:
        self.sequence = sequence
        self.completion = completion
        self._placed_at = 0.0

    def place(self, pool: SessionPool) -> int:
        """Take a session, the one with the longest prefix of the prompt; returns how much of it is there already."""
        sequence, timings = self.sequence, self.completion.timings
        sequence.slot = pool.acquire(sequence.tokens)
        timings.cache_n = reused = sequence.slot.session.length
        timings.prompt_n = len(sequence.tokens) - reused
        self._placed_at = perf_counter()
        return reused

    def has_read(self) -> None:
        """Book a slice of the prompt; what has been read may serve other prompts from now on."""
        self.completion.timings.prompt_seconds = perf_counter() - self._placed_at
        slot, tokens = self.sequence.placed, self.sequence.tokens
        slot.tokens += tokens[len(slot.tokens) : slot.session.length]

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
        timings.predicted_n = len(completion.tokens)
        timings.predicted_seconds += seconds
        timings.draft_n, timings.draft_n_accepted = statistics.drafted, statistics.accepted
        number = statistics.rounds
        return [
            Token(c.text, c.token, c.logprob, c.node is not None, c.drafter, number, c.top) for c in verdict.commits
        ]


class Batch:
    """Generations that are decoded together, and the parts that do it.

    forced: drafts what grammars force; it takes part in rounds of texts that have one, after the drafters, whose places
            the policy knows

    Everything a sequence takes (a session with the target, a place with the drafters) is given back by `remove` or
    `close`, however the generation ends.
    """

    def __init__(
        self,
        target: Model,
        pool: SessionPool,
        drafters: Several[Drafter],
        policy: Policy,
        forced: Drafter | None = None,
    ) -> None:
        self._target = target
        self._pool = pool
        self._drafters = drafters
        self._policy = policy
        self._forced = forced if target.capabilities.rollback else None
        self._begun: list[Generation] = []

    def add(self, generation: Generation) -> None:
        """Let a generation take part from the next round on. Raises RuntimeUnavailableError if no session is left."""
        reused = generation.place(self._pool)
        self._begun.append(generation)
        for drafter in self._drafters:
            drafter.begin(generation.sequence, reused)

    def play_round(self, slice_rows: int = 0) -> list[tuple[Generation, list[Token]]]:
        """One forward: a token or more for each generation whose prompt has been read, and a slice of other prompts.

        slice_rows: most prompt tokens that are read beside others' tokens, the oldest prompts' first; with 0 they are
                    read first, in forwards of their own

        Returns the tokens of those that were decoded.
        """
        active = [generation for generation in self._begun if not generation.sequence.finished]
        reading = [generation for generation in active if generation.sequence.lacking]
        decoding = [generation for generation in active if not generation.sequence.lacking]
        if reading and not slice_rows:
            decoding = []
        room = min(slice_rows, self._target.max_rows // 2) if decoding else self._target.max_rows
        slices = list(_slices(reading, room))
        started = perf_counter()
        sequences = [one.sequence for one in decoding]
        drafters = self._drafters_for(sequences)
        verdicts = play_round(self._target, sequences, drafters, self._policy, reading=slices)
        seconds = perf_counter() - started
        for generation in reading:
            generation.has_read()
        return [(one, one.take(verdict, seconds)) for one, verdict in zip(decoding, verdicts, strict=True)]

    def _drafters_for(self, sequences: Several[Sequence]) -> Several[Drafter]:
        if self._forced is None or not any(one.sampler.constraint is not None for one in sequences):
            return self._drafters
        return [*self._drafters, self._forced]

    @property
    def held(self) -> int:
        """Tokens in the target's KV caches, those kept for later prompts included."""
        return self._pool.held

    @property
    def size(self) -> int:
        """Generations that hold a session, finished ones included."""
        return len(self._begun)

    @property
    def finished(self) -> bool:
        return all(generation.sequence.finished for generation in self._begun)

    def remove(self, generation: Generation) -> None:
        """Give back what a generation holds, whatever fails; its KV cache stays for a prompt that begins alike."""
        if generation not in self._begun:
            return
        self._begun.remove(generation)
        sequence = generation.sequence
        with ExitStack() as stack:
            stack.callback(self._pool.release, sequence.placed, sequence.tokens)
            stack.callback(self._policy.end, sequence)
            for drafter in self._drafters:
                stack.callback(drafter.end, sequence)
            if not sequence.finished:
                generation.completion.text += sequence.text.flush()

    def close(self) -> None:
        """Remove all."""
        with ExitStack() as stack:
            for generation in list(self._begun):
                stack.callback(self.remove, generation)


def _slices(reading: Several[Generation], room: int) -> Iterator[Segment]:
    """What is read of prompts in one forward, at most `room` tokens of all of them."""
    for generation in reading:
        tokens = generation.sequence.lacking[:room]
        if tokens:
            yield Segment(generation.sequence.placed.session, tokens, outputs=0)
        room -= len(tokens)
