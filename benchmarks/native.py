#!/usr/bin/env python3
"""The native runtime against llama.cpp (llama-cpp-python of the same environment), in turn on the same files.

    scripts/bench native [PART ...] [--turns 7] [--out records.jsonl]
    scripts/bench native --report records.jsonl

Parts, all unless some are named:
  rows      forwards of 1 to 32 rows after 128 tokens, and a prompt of 512: ratios, and time over the roofline
  context   1 and 8 rows after 128 and after 4,096 tokens
  avx2      the rows again with SLIPSTREAM_ISA=avx2, against llama.cpp built for this CPU
  avx2vnni  the same with avx2vnni, on processors that have it
  busy      1 row with another process at work
  random    the wide shapes with random weights: nothing may profit from the zeros of the wide model
  overhead  what a forward takes beyond its matrix products and attention: the time of models of as many layers and
            the same widths with next to nothing in them, without the output's product and the time that a plain read
            of those layers takes

Every runtime has a process of its own; one computes while the others sleep, and how well they slept is printed. Each
turn asks each runtime for a few forwards of each kind, so that a change of the machine's speed meets all alike;
figures are medians over all turns. llama.cpp is what scripts/setup builds (native instructions, but for AMX where the
compiler breaks it), and gets the spinning threads that are best for it on a quiet machine.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.native_report import (
    DECODING,
    FILES,
    FORCED,
    LONG,
    PROMPT,
    RANDOM,
    THIN_FILES,
    WHOLE_PROMPT,
    WIDE,
    Work,
    report,
)
from benchmarks.records import Recorder, end_on_request, machine, read_records
from benchmarks.rig import SMALL, layer_bytes, matrix_size, rig_file
from benchmarks.worker import SPINNING, Team, Worker
from slipstream.errors import SlipstreamError
from slipstream.runtime.native import instruction_sets
from slipstream.runtime.threads import default_threads

PARTS = ("rows", "context", *FORCED, "busy", "random", "overhead")
ROOM = 64
"""Context beyond the tokens that are there, for the rows of a forward."""
ANSWER = {SMALL: 120, WIDE: 12}
"""How many times a few forwards of one row are asked for, to last a second or two."""
EVERYTHING = [WHOLE_PROMPT, *DECODING]


class Run(NamedTuple):
    """What all parts share."""

    recorder: Recorder
    turns: int
    threads: int

    @contextmanager
    def team(self, part: str, workers: Sequence[Worker], longest: int = PROMPT) -> Iterator[Team]:
        """Workers with their files loaded; their facts, and how well they slept, become records."""
        print(f"{part}: {', '.join(f'{worker.name} on {worker.file}' for worker in workers)}", flush=True)
        with Team(workers) as team:
            for worker in workers:
                options = {"context_length": longest + ROOM, "max_sequences": 2, "threads": self.threads}
                facts = team.ask(worker, "load", path=rig_file(worker.file), **options)
                self.recorder.add("load", part=part, file=worker.file, worker=worker.name, **facts)
            yield team
            if len(workers) > 1:
                self.recorder.add("idle", part=part, file=workers[0].file, share=team.idle_share)

    def turn(self, part: str, team: Team, works: Iterable[Work], *, busy: bool = False) -> None:
        """Each kind of forward on each worker, one after the other."""
        for work in works:
            for worker in team.workers:
                seconds = team.ask(worker, "time", **work._asdict(), repeats=work.repeats)
                label = {"part": part, "file": worker.file, "worker": worker.name, "busy": busy}
                self.recorder.add("forward", **label, **work._asdict(), seconds=seconds)

    def roofline(self, part: str, team: Team) -> None:
        """What memory and multipliers reach now, in each native worker."""
        for worker in team.workers:
            if worker.runtime == "native":
                nbytes, operations = matrix_size(rig_file(worker.file))
                limits = team.ask(worker, "roofline", threads=self.threads, nbytes=nbytes)
                label = {"part": part, "file": worker.file, "worker": worker.name}
                self.recorder.add("roofline", **label, bytes=nbytes, operations=operations, **limits)


def llamacpp(file: str) -> Worker:
    """A worker of llama.cpp."""
    return Worker("llama.cpp", "llamacpp", file, SPINNING)


def native(file: str, instruction_set: str = "") -> Worker:
    """A worker of ours; naming an instruction set forces it."""
    environment = {"SLIPSTREAM_ISA": instruction_set} if instruction_set else {}
    return Worker(f"native {instruction_set}".strip(), "native", file, environment)


def measure_rows(run: Run, files: Iterable[str]) -> None:
    """Row counts and the prompt."""
    for file in files:
        with run.team("rows", [llamacpp(file), native(file)]) as team:
            for _ in range(run.turns):
                run.roofline("rows", team)
                run.turn("rows", team, EVERYTHING)


def measure_context(run: Run, files: Iterable[str]) -> None:
    """Ours after few and many tokens in turn. llama.cpp after many only: its cache makes short sessions wait for
    long ones that are open beside them, so its time after few is that of `rows`.
    """
    for file in files:
        with run.team("context", [llamacpp(file), native(file)], LONG) as team:
            ours = Team([worker for worker in team.workers if worker.runtime == "native"])
            for _ in range(run.turns):
                run.turn("context", team, [Work(1, LONG), Work(8, LONG)])
                run.turn("context", ours, [Work(1), Work(8)])


def measure_forced(run: Run, file: str, instruction_set: str) -> None:
    """Every row count with an instruction set that is not this machine's best."""
    with run.team(instruction_set, [llamacpp(file), native(file, instruction_set)]) as team:
        for _ in range(run.turns):
            run.roofline(instruction_set, team)
            run.turn(instruction_set, team, DECODING)


@contextmanager
def busy_process() -> Iterator[None]:
    """A process that computes all the time."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def measure_busy(run: Run, files: Iterable[str]) -> None:
    """One row, quiet and beside a busy process in turn, for as long as an answer takes: a second or two."""
    for file in files:
        works = [Work(1)] * ANSWER[file]
        with run.team("busy", [native(file)]) as team:
            for _ in range(run.turns):
                run.turn("busy", team, works)
                with busy_process():
                    run.turn("busy", team, works, busy=True)


def measure_random(run: Run) -> None:
    """The wide model and random weights of its shapes in turn, both ours."""
    with run.team("random", [native(WIDE), native(RANDOM)]) as team:
        for _ in range(run.turns):
            run.turn("random", team, [WHOLE_PROMPT, Work(1), Work(4), Work(8), Work(16)])


def measure_overhead(run: Run) -> None:
    """The stages of one-row forwards, of real models and of those with empty layers."""
    for file in (SMALL, WIDE, *THIN_FILES):
        with run.team("overhead", [native(file)]) as team:
            worker = team.workers[0]
            nbytes = layer_bytes(rig_file(file))
            limits = team.ask(worker, "roofline", threads=run.threads, nbytes=nbytes)
            profiles = team.ask(worker, "profile", **Work(1)._asdict(), repeats=20 * run.turns)
            run.recorder.add("profile", file=file, forwards=profiles, layer_bytes=nbytes, read=limits["read"])


def measure(run: Run, parts: Sequence[str], files: Sequence[str]) -> None:
    """The parts that were asked for, on those of their files that were."""
    run.recorder.add("machine", **machine(run.threads))
    both = [file for file in (SMALL, WIDE) if file in files]
    if "rows" in parts:
        measure_rows(run, files)
    if "context" in parts:
        measure_context(run, both)
    for name in FORCED:
        if name in parts and name in instruction_sets() and WIDE in files:
            measure_forced(run, WIDE, name)
    if "busy" in parts:
        measure_busy(run, both)
    if "random" in parts and WIDE in files:
        measure_random(run)
    if "overhead" in parts:
        measure_overhead(run)


def main() -> None:
    """Measure and report, or report what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all without any")
    parser.add_argument("--files", nargs="*", default=FILES, choices=FILES, help="all by default")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--out", type=Path, help="write the raw records here")
    parser.add_argument("--report", type=Path, metavar="RECORDS", help="print the tables of an earlier run instead")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    end_on_request()
    if options.report:
        records = read_records(options.report)
    else:
        recorder = Recorder(options.out)
        try:
            measure(Run(recorder, options.turns, options.threads), options.parts or PARTS, options.files)
        except SlipstreamError as error:
            sys.exit(f"native.py: {error}")
        records = recorder.records
    print("\n".join(report(records)))


if __name__ == "__main__":
    main()
