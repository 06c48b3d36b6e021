"""An engine on a thread of its own, which serves whoever asks: a bounded queue, a batch, round after round."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from time import monotonic

from slipstream.core.feed import common_prefix
from slipstream.core.stats import RoundRecord
from slipstream.engine.batch import Batch, Generation
from slipstream.engine.completion import Completion, Token
from slipstream.engine.engine import Engine
from slipstream.errors import BusyError, RuntimeUnavailableError, SlipstreamError, TooSlowError, UsageError

SLICE_ROWS = 64
"""Prompt tokens that one round reads beside others' tokens: new requests must not make the others stutter."""
SHARED_PROMPT = 64
"""Tokens of a prompt that waits for another one that begins like it to be read."""
MOST_PASSED_OVER = 64
"""Rounds that a prompt waits for that at most."""
POLICY_AGE = 0.5
"""Seconds after which what the policy says of itself is asked for again."""
_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """One text that somebody waits for.

    on_tokens: called on the worker's thread with the tokens of a round
    on_end:    called there once, with None when the text has come to its end, or with what went wrong
    deadline:  on the clock of `time.monotonic`, None for none
    asked_at:  on the same clock
    """

    generation: Generation
    on_tokens: Callable[[Sequence[Token]], None]
    on_end: Callable[[SlipstreamError | None], None]
    deadline: float | None = None
    asked_at: float = field(default_factory=monotonic)
    cancelled: bool = False
    waited: float | None = None
    """Seconds from `asked_at` to its first token, None before it is there."""
    seen: int = 0
    """Records of its rounds that `on_round` was told of."""
    passed_over: int = 0
    """Times that it waited for another prompt to be read."""

    @property
    def completion(self) -> Completion:
        return self.generation.completion


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a worker is. parallel: most texts at once; waiting: in the queue; queue: most there."""

    active: int
    parallel: int
    waiting: int
    queue: int


class Worker:
    """Runs an engine on a thread of its own; every method may be called from any thread.

    Requests wait in the order in which they came until one of `parallel` places in the batch is free. One that ends,
    fails or is cancelled gives its place back before the next round. What goes wrong with a text ends that one alone.

    engine:   with sessions for `parallel` texts (`ModelOptions.max_sequences`); the worker closes it
    queue:    most requests that wait; more are refused with BusyError
    on_round: called after every round, on the worker's thread, with the records of the texts in it
    on_first: called there when a text's prompt has been read and its first token is there
    on_end:   called there when a text is over, however it ended
    """

    def __init__(
        self,
        engine: Engine,
        parallel: int,
        queue: int = 64,
        *,
        slice_rows: int = SLICE_ROWS,
        on_round: Callable[[Sequence[RoundRecord]], None] = lambda records: None,
        on_first: Callable[[Job], None] = lambda job: None,
        on_end: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self.engine = engine
        self._parallel, self._queue, self._slice_rows = parallel, queue, slice_rows
        self._on_round, self._on_first, self._on_end = on_round, on_first, on_end
        engine.keep_sessions(parallel)
        self._batch: Batch = engine.batch()
        self._waiting: deque[Job] = deque()
        self._active: dict[Generation, Job] = {}
        self._changed = Condition()
        self._stop_at: float | None = None
        self.policy = engine.policy.describe()
        """What the policy says of itself: as of the last text that ended, or of a round `POLICY_AGE` ago at most."""
        self._policy_at = monotonic()
        self.kv_usage = 0.0
        """Tokens in the KV cache over what it holds, as of the last round."""
        self._thread = Thread(target=self._run, name="slipstream engine", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the texts of one request, all of them or none.

        Raises BusyError when the queue is full or closed, UsageError for more texts than it could ever hold.
        """
        with self._changed:
            self.require_room(len(jobs))
            self._waiting.extend(jobs)
            self._changed.notify()

    def require_room(self, count: int) -> None:
        """Raise what `submit` would raise for so many texts: to be asked before anything is prepared for them."""
        with self._changed:
            if self._stop_at is not None or not self._thread.is_alive():
                raise BusyError("The server is shutting down; ask again when it is back.")
            most = self._queue + self._parallel
            if count > most:
                raise UsageError(f"The request asks for {count} answers; this server takes at most {most} at once.")
            free = self._parallel - len(self._active)
            if len(self._waiting) + count > self._queue + free:
                raise BusyError(
                    f"The server is busy: {len(self._waiting)} requests are waiting and the queue holds {self._queue}; "
                    "try again in a moment."
                )

    def cancel(self, job: Job) -> None:
        """End a text before its next round, or take it out of the queue; harmless for one that has ended."""
        with self._changed:
            job.cancelled = True
            self._changed.notify()

    @property
    def load(self) -> Load:
        with self._changed:
            return Load(len(self._active), self._parallel, len(self._waiting), self._queue)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self, patience: float = 0.0) -> None:
        """Take no more requests, let those that are here end for `patience` seconds, and close the engine."""
        with self._changed:
            self._stop_at = min(monotonic() + patience, self._stop_at or float("inf"))
            self._changed.notify()
        self._thread.join()
        self.engine.close()

    # --- on the worker's thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._end_overdue()
                self._admit()
                if self._active:
                    self._play_round()
        except BaseException:  # the log has it, and nobody is there who could do more
            _logger.exception("The engine's thread failed; the server takes no more requests.")
        finally:
            with self._changed:
                self._stop_at = self._stop_at or 0.0
                jobs = [*self._active.values(), *self._waiting]
            for job in jobs:
                self._end(job, BusyError("The server was shut down before this text was complete."))
            self._batch.close()

    def _wait(self) -> bool:
        """Sleep until there is something to do; whether to go on."""
        with self._changed:
            while not (self._active or self._waiting or self._stop_at is not None):
                self._changed.wait()
            if self._stop_at is None:
                return True
            return bool(self._active or self._waiting) and monotonic() < self._stop_at

    def _end_overdue(self) -> None:
        """Give up what was cancelled, and what has taken too long."""
        now = monotonic()
        with self._changed:
            jobs = [*self._active.values(), *self._waiting]
        for job in jobs:
            if job.cancelled:
                self._end(job, None)
            elif job.deadline is not None and now > job.deadline:
                self._end(job, TooSlowError("The answer took longer than the server allows; ask for fewer tokens."))

    def _admit(self) -> None:
        """Give free places to those who wait, the oldest first."""
        while self._batch.size < self._parallel:
            with self._changed:
                job = next((one for one in self._waiting if not self._is_being_read(one)), None)
                if job is None:
                    return
                self._waiting.remove(job)
                self._active[job.generation] = job
            try:
                self._batch.add(job.generation)
            except SlipstreamError as error:
                self._end(job, error)
            except Exception:
                _logger.exception("A text could not be begun.")
                self._end(job, _failed())

    def _is_being_read(self, job: Job) -> bool:
        """Whether most of a prompt is being read for another text: a moment later it is there for both."""
        prompt = job.generation.sequence.tokens
        if len(prompt) < SHARED_PROMPT or job.passed_over >= MOST_PASSED_OVER:
            return False
        for generation in self._active:
            if generation.sequence.lacking:
                shared = min(common_prefix(prompt, generation.sequence.tokens), len(prompt) - 1)
                if 2 * shared > len(prompt) and generation.sequence.placed.session.length < shared:
                    job.passed_over += 1
                    return True
        return False

    def _play_round(self) -> None:
        try:
            decoded = self._batch.play_round(self._slice_rows)
            if monotonic() - self._policy_at >= POLICY_AGE:
                self._ask_policy()
        except SlipstreamError as error:
            self._fail_all(error)
            return
        except Exception:  # a bug of ours must not take the server with it
            _logger.exception("A round failed.")
            self._fail_all(_failed())
            return
        self.kv_usage = self._batch.held / (self._parallel * self.engine.target.context_length)
        records: list[RoundRecord] = []
        for generation, tokens in decoded:
            job = self._active[generation]
            found = generation.sequence.statistics.records
            records += found[job.seen :]
            job.seen = len(found)
            if tokens:
                if job.waited is None:
                    job.waited = monotonic() - job.asked_at
                    self._on_first(job)
                job.on_tokens(tokens)
            if generation.sequence.finished:
                self._end(job, generation.sequence.failure)
        if records:
            self._on_round(records)

    def _ask_policy(self) -> None:
        """On this thread, because a policy changes while it plays."""
        self.policy = self.engine.policy.describe()
        self._policy_at = monotonic()

    def _fail_all(self, error: SlipstreamError) -> None:
        for job in list(self._active.values()):
            self._end(job, error)

    def _end(self, job: Job, error: SlipstreamError | None) -> None:
        """Give back what a text holds, and say so; nobody is told twice."""
        with self._changed:
            if self._active.pop(job.generation, None) is None:
                if job not in self._waiting:
                    return
                self._waiting.remove(job)
        try:
            self._batch.remove(job.generation)
            self._ask_policy()
            self._on_end(job)
        except Exception:
            _logger.exception("A text could not be ended in good order.")
            error = error or _failed()
        finally:
            job.on_end(error)


def _failed() -> RuntimeUnavailableError:
    return RuntimeUnavailableError("The engine failed; its log says why.")
