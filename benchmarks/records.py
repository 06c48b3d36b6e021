"""Raw records of a benchmark, where it ran, and the targets it is held to.

A benchmark writes records, one JSON object a line; its report reads nothing else, so `--report FILE` prints the
tables of an earlier run again.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from slipstream.runtime.threads import default_threads

Record = dict[str, Any]
Results = TypeVar("Results")

ROOT = Path(__file__).parent.parent


class Recorder:
    """Keeps the records of a run and writes each to `path` at once, so that nothing is lost if the run breaks."""

    def __init__(self, path: Path | None) -> None:
        self.records: list[Record] = []
        self._path = path
        if path is not None:
            path.write_text("", encoding="utf-8")

    def add(self, kind: str, **values: Any) -> None:
        record = {"kind": kind, **values}
        self.records.append(record)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                print(json.dumps(record), file=file)


def read_records(path: Path) -> list[Record]:
    """The records of an earlier run."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def end_on_request() -> None:
    """Let SIGTERM end the script as an exception does, so that the processes it started end with it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def machine(threads: int | None = None) -> Record:
    """Where and with what a benchmark runs."""
    return {
        "cpu": _cpu_name(),
        "threads": threads or default_threads(),
        "huge_pages": _selected(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "load": os.getloadavg()[0],
        "commit": _commit(),
        "slipstream": version("slipstream-decoding"),
        "llama_cpp_python": version("llama-cpp-python"),
    }


def describe(record: Record) -> str:
    """The machine in one paragraph."""
    text = (
        f"{record['cpu']}, {record['threads']} threads, transparent huge pages: {record['huge_pages']}, "
        f"commit {record['commit']}, llama-cpp-python {record['llama_cpp_python']}."
    )
    busy = f" The machine was not idle at the start: load {record['load']:.1f}." if record["load"] > 0.5 else ""
    return text + busy


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown CPU")


def _selected(path: Path) -> str:
    """The choice in brackets: "always [madvise] never"."""
    text = path.read_text() if path.exists() else "[unknown]"
    return text.partition("[")[2].partition("]")[0]


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@dataclass(frozen=True)
class Target(Generic[Results]):
    """A number that must be reached. `value` gives None where it was not measured."""

    text: str
    sense: Literal["<=", ">="]
    limit: float
    value: Callable[[Results], float | None]

    def cells(self, results: Results) -> tuple[str, ...]:
        """What, limit, measured, verdict."""
        value = self.value(results)
        limit = f"{self.sense} {self.limit:g}"
        if value is None:
            return self.text, limit, "", "not measured"
        met = value <= self.limit if self.sense == "<=" else value >= self.limit
        return self.text, limit, f"{value:.3g}", "met" if met else "**not met**"


def target_table(targets: Iterable[Target[Results]], results: Results) -> list[str]:
    """Markdown lines."""
    return markdown(("target", "limit", "measured", ""), [target.cells(results) for target in targets])


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    cells = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(row)} |" for row in cells]
