"""Generations that are decoded together: prompts come in by slices, and every round is one forward for all of them."""

from collections.abc import Sequence as Several
from contextlib import ExitStack
from time import perf_counter

from slipstream.core.pool import SessionPool
from slipstream.core.protocols import Drafter, Model, Policy, Segment
from slipstream.core.verify import Verdict
from slipstream.draft import TextDrafter
from slipstream.engine.completion import Completion, Token
from slipstream.engine.round import Reading, play_round
from slipstream.engine.sequence import Sequence

MOST_READ_TOGETHER = 256
"""Rows of prompts in one forward where there are several texts and none has tokens yet: whoever leaves waits for it."""


class Generation:
    """A sequence and its books."""

    def __init__(self, sequence: Sequence, completion: Completion) -> None:
        self.sequence = sequence
        self.completion = completion

    def place(self, pool: SessionPool, *, seen: bool = False) -> int:
        """Take a session, the one with the longest prefix of the prompt; returns how much of it is there already.

        seen: whether the last token of that is to be read again: somebody wants to see its hidden states beside the
              token that follows, which is another one than before
        """
        sequence, timings = self.sequence, self.completion.timings
        sequence.slot = slot = pool.acquire(sequence.tokens)
        if seen and slot.session.length and slot.session.reachable(slot.session.length - 1):
            slot.keep(slot.session.length - 1)
        timings.cache_n = reused = sequence.slot.session.length
        timings.prompt_n = len(sequence.tokens) - reused
        timings.begun_at = timings.ended_at = perf_counter()
        return reused

    def has_read(self, decoding: float = 0.0) -> None:
        """Book a slice of the prompt; what has been read may serve other prompts from now on.

        decoding: seconds of the same round that went into the first token
        """
        timings = self.completion.timings
        timings.prompt_seconds = perf_counter() - timings.begun_at - decoding
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
        timings.ended_at = perf_counter()
        timings.draft_n, timings.draft_n_accepted = statistics.drafted, statistics.accepted
        number = statistics.rounds
        return [
            Token(c.text, c.token, c.logprob, c.node is not None, c.drafter, number, c.top) for c in verdict.commits
        ]


class Batch:
    """Generations that are decoded together, and the parts that do it.

    own: drafters for texts that have something of their own to draft from; they take part in rounds of such texts,
         after the drafters, whose places the policy knows

    Everything a sequence takes (a session with the target, a place with the drafters) is given back by `remove` or
    `close`, however the generation ends.
    """

    def __init__(
        self,
        target: Model,
        pool: SessionPool,
        drafters: Several[Drafter],
        policy: Policy,
        own: Several[TextDrafter] = (),
    ) -> None:
        self._target = target
        self._pool = pool
        self._drafters = drafters
        self._policy = policy
        self._own = own if target.capabilities.rollback else ()
        self._begun: list[Generation] = []

    def add(self, generation: Generation) -> None:
        """Let a generation take part from the next round on. Raises RuntimeUnavailableError if no session is left."""
        seen = any(drafter.requires.hidden_layers for drafter in self._drafters)
        reused = generation.place(self._pool, seen=seen)
        self._begun.append(generation)
        for drafter in (*self._drafters, *self._own):
            drafter.begin(generation.sequence, reused)

    def play_round(self, slice_rows: int = 0) -> list[tuple[Generation, list[Token]]]:
        """One forward: a token or more for each generation whose prompt is read by then, and a slice of other prompts.

        On a runtime whose rows depend on their company, the first token waits for a forward of its own: then it is the
        same whether the prompt was read just now or is there from an earlier text.

        slice_rows: most rows of prompts beside others' tokens, the oldest prompts' first; where nobody has tokens yet a
                    text that is alone gets the longest forwards there are, and several get shorter ones, so that
                    whoever goes is soon noticed. With 0 prompts are read first, in the longest forwards

        Returns the tokens of those that were decoded.
        """
        active = [generation for generation in self._begun if not generation.sequence.finished]
        reading = [generation for generation in active if generation.sequence.lacking]
        decoding = [generation for generation in active if not generation.sequence.lacking]
        if reading and not slice_rows:
            decoding = []
        rows = self._rows_to_read(len(active), slice_rows, decoding=bool(decoding))
        ending, slices = _shared_out(reading, rows, joined=self._target.capabilities.bit_exact_rows)
        started = perf_counter()
        sequences = [one.sequence for one in (*decoding, *ending)]
        drafters = self._drafters_for(sequences)
        verdicts, read = play_round(self._target, sequences, drafters, self._policy, reading=slices)
        seconds = perf_counter() - started
        for generation in reading:
            generation.has_read(seconds - read if generation in ending else 0.0)
        times = [seconds] * len(decoding) + [seconds - read] * len(ending)
        decoded = zip((*decoding, *ending), verdicts, times, strict=True)
        return [(one, one.take(verdict, spent)) for one, verdict, spent in decoded]

    def _rows_to_read(self, active: int, slice_rows: int, *, decoding: bool) -> int:
        """Most rows of prompts in the next forward, for which whoever comes or goes meanwhile has to wait."""
        most = self._target.max_rows
        if decoding:
            return min(slice_rows, most // 2)
        return min(MOST_READ_TOGETHER, most) if slice_rows and active > 1 else most

    def _drafters_for(self, sequences: Several[Sequence]) -> Several[Drafter]:
        """The drafters, and their own ones up to the last that is of use: each has the same place in every round."""
        needed = max(
            [n for n, drafter in enumerate(self._own, 1) if any(drafter.serves(one) for one in sequences)], default=0
        )
        return [*self._drafters, *self._own[:needed]] if needed else self._drafters

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
            for drafter in (*self._drafters, *self._own):
                stack.callback(drafter.end, sequence)
            if not sequence.finished:
                generation.completion.text += sequence.text.flush()

    def close(self) -> None:
        """Remove all."""
        with ExitStack() as stack:
            for generation in list(self._begun):
                stack.callback(self.remove, generation)


def _shared_out(reading: Several[Generation], rows: int, *, joined: bool) -> tuple[list[Generation], list[Reading]]:
    """(those whose prompts end in this forward, which gives their first tokens, and what it reads of others' prompts).

    rows:   of the forward, for all of these
    joined: whether a forward may read the end of a prompt and make its first token
    """
    ending, slices = [], []
    for generation in reading:
        lacking = generation.sequence.lacking
        if joined and len(lacking) < rows:
            ending.append(generation)
            rows -= len(lacking) + 1
        elif rows:
            segment = Segment(generation.sequence.placed.session, lacking[:rows], outputs=0)
            slices.append(Reading(generation.sequence, segment))
            rows -= min(rows, len(lacking))
    return ending, slices
