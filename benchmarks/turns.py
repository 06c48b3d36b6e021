"""What benchmarks share in which ways to decode answer the same prompts in turn: options, answers, and a report."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.records import Record, Recorder, machine, read_records
from slipstream import Engine
from slipstream.engine import GenerationOptions
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.runner import Results, run_bench

Verdict = TypeVar("Verdict")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Of a benchmark whose docstring this is."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_sizes(parser: argparse.ArgumentParser, *, per_kind: int, repeats: int, tokens: int) -> None:
    """Options for how much is answered, with these defaults."""
    parser.add_argument("--per-kind", type=int, default=per_kind)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--tokens", type=int, default=tokens)


def add_records(parser: argparse.ArgumentParser) -> None:
    """Options for what `reported` reads."""
    parser.add_argument("--out", type=Path, help="keep raw records in this file")
    parser.add_argument("--report", type=Path, help="print the tables of an earlier run")


def reported(
    arguments: argparse.Namespace, measure: Callable[[Recorder], None], report: Callable[[Sequence[Record]], Verdict]
) -> Verdict:
    """Measure and report, or report on an earlier run."""
    if arguments.report:
        return report(read_records(arguments.report))
    recorder = Recorder(arguments.out)
    recorder.add("machine", **machine())
    measure(recorder)
    return report(recorder.records)


def answers_in_turn(
    engines: Mapping[str, Engine],
    prompts: Sequence[BenchPrompt],
    arguments: argparse.Namespace,
    options: GenerationOptions,
    should_stop: Callable[[], bool] | None = None,
) -> Results:
    """As many as `add_sizes` asks for, with a line on standard error that says how far it is."""
    results = run_bench(
        engines,
        prompts,
        repeats=arguments.repeats,
        max_tokens=arguments.tokens,
        options=options,
        progress=lambda done, total, what: print(f"\r{done}/{total} {what:40}", end="", file=sys.stderr),
        should_stop=should_stop,
    )
    print(file=sys.stderr)
    return results
