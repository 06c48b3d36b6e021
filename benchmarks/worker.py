"""Runtimes in processes of their own, commanded in turn over pipes: one computes, the others sleep.

In one process the thread pools of two runtimes would wait for each other's cores, and an instruction set could be
forced on one only before it is loaded.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from slipstream.core.feed import feed
from slipstream.core.protocols import Model, Segment, Session
from slipstream.errors import SlipstreamError
from slipstream.runtime import load_llamacpp

LONG_CONTEXT = 1024
"""Contexts from here on have a session of their own, so that short and long ones can be measured in turn."""
SETTLE_SECONDS = 0.02
"""Longer than an OpenMP thread spins for work after a forward."""
SPINNING = {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "300000")}
"""What libgomp does unasked. Slipstream loads llama.cpp with less, which costs it up to 14 % on a quiet machine
(docs/llamacpp.md); a comparison gives it what is best for it, or what the caller says."""


def load_model(runtime: str, path: Path, *, context_length: int, max_sequences: int, threads: int | None) -> Model:
    """Load a file with the runtime called `native` or `llamacpp`."""
    if runtime == "llamacpp":
        return load_llamacpp(path, context_length=context_length, max_sequences=max_sequences, threads=threads)
    from slipstream.runtime.native import load_native

    return load_native(path, context_length=context_length, max_sequences=max_sequences, threads=threads)


class Subject:
    """What a worker process holds: a loaded model, and what can be asked of it."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime
        self._model: Model | None = None
        self._sessions: dict[bool, Session] = {}

    def load(self, path: Path, context_length: int, max_sequences: int, threads: int | None) -> dict[str, Any]:
        """Load a file; says what loading took and gave."""
        started = perf_counter()
        self._model = load_model(
            self._runtime, path, context_length=context_length, max_sequences=max_sequences, threads=threads
        )
        facts = {"seconds": perf_counter() - started, "memory": self._model.memory(), "huge": huge_page_bytes()}
        return facts | self._instruction_sets()

    def time(self, rows: int, context: int, repeats: int) -> list[float]:
        """Seconds of each of `repeats` forwards of `rows` rows after `context` tokens; one more warms up."""
        model, session = self._at(context)
        return [self._forward(model, session, rows) for _ in range(repeats + 1)][1:]

    def profile(self, rows: int, context: int, repeats: int) -> list[dict[str, float]]:
        """Seconds by stage of `repeats` forwards, and `wall`; empty if the runtime does not say."""
        model, session = self._at(context)
        stages = getattr(model, "profile", None)
        if stages is None:
            return []
        self._forward(model, session, rows)
        return [{"wall": self._forward(model, session, rows)} | stages() for _ in range(repeats)]

    def roofline(self, threads: int, nbytes: int) -> dict[str, float]:
        """GB/s of a plain read of as many bytes as the weights have, and 1e9 multiply-adds a second by kind."""
        from slipstream.runtime import native

        return {
            "read": native.measure_read(threads, max(1, round(nbytes / 1e6))),
            "dot": native.measure_dot(threads),
            "fma": native.measure_fma(threads),
        }

    def _at(self, context: int) -> tuple[Model, Session]:
        """The model, and a session of it that holds `context` tokens."""
        assert self._model is not None, "load comes first"
        kind = context >= LONG_CONTEXT
        if kind not in self._sessions:
            self._sessions[kind] = self._model.open_session()
        session = self._sessions[kind]
        session.truncate(session.reachable(min(session.length, context)))
        for _ in feed(self._model, session, _tokens(context)[session.length :]):
            pass
        return self._model, session

    def _forward(self, model: Model, session: Session, rows: int) -> float:
        """Seconds until the last row can be read. A prompt's rows give no logits, as in `core/feed.py`."""
        outputs = 0 if rows > LARGEST_DRAFT else None
        started = perf_counter()
        [computed] = model.forward([Segment(session, _tokens(rows), outputs=outputs)])
        if outputs is None:
            computed.logits(rows - 1)
        return perf_counter() - started

    def _instruction_sets(self) -> dict[str, Any]:
        if self._runtime != "native":
            return {}
        from slipstream.runtime import native

        return {"instruction_set": os.environ.get("SLIPSTREAM_ISA") or native.default_instruction_set()}


LARGEST_DRAFT = 64
"""Forwards of more rows are prompts."""


def _tokens(count: int) -> list[int]:
    """Token ids that every vocabulary of a real model has; which ones does not matter to the time."""
    return [300 + (position * 7919) % 20_000 for position in range(count)]


def huge_page_bytes() -> int:
    """Bytes of this process in transparent huge pages; 0 where the system does not say."""
    path = Path("/proc/self/smaps_rollup")
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHugePages:"))


def _serve(connection: Connection, runtime: str, environment: Mapping[str, str]) -> None:
    """The worker process: answer requests until there are no more."""
    os.environ.update(environment)
    subject = Subject(runtime)
    while request := connection.recv():
        name, arguments = request
        try:
            connection.send(getattr(subject, name)(**arguments))
        except SlipstreamError as error:
            connection.send(error)


@dataclass
class Worker:
    """A process with one runtime.

    name:        what tables call it
    file:        what tables call the model file that it has loaded
    environment: what is set before the runtime is loaded
    """

    name: str
    runtime: str
    file: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the process."""
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.runtime, self.environment), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, request: str, **arguments: Any) -> Any:
        """The answer of `Subject`'s method of that name. Raises the SlipstreamError that it raised."""
        try:
            self._pipe.send((request, arguments))
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise SlipstreamError(f"The process of {self.name} ended; its message stands above.") from None
        if isinstance(answer, SlipstreamError):
            raise answer
        return answer

    def cpu_seconds(self) -> float:
        """Time that all its threads computed so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        with suppress(ConnectionError):  # the process is gone already
            self._pipe.send(None)
        self._process.join()


class Team:
    """Workers that take turns. `idle_share`: processor time of those that waited, per second that one computed."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self._waiting = self._computing = 0.0

    def ask(self, worker: Worker, request: str, **arguments: Any) -> Any:
        """As `Worker.ask`, once the others are at rest."""
        time.sleep(SETTLE_SECONDS)
        others = [other for other in self.workers if other is not worker]
        before, started = sum(other.cpu_seconds() for other in others), perf_counter()
        answer = worker.ask(request, **arguments)
        self._computing += perf_counter() - started
        self._waiting += sum(other.cpu_seconds() for other in others) - before
        return answer

    @property
    def idle_share(self) -> float:
        return self._waiting / self._computing if self._computing else 0.0

    def __enter__(self) -> "Team":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.close()
