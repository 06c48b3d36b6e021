"""A bar for measurements: what is measured, how much is done, and the time left."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slipstream.cli import terminal

Report = Callable[[int, int, str], None]
"""Called with what is done, how much there is in all, and what is being done."""


@contextmanager
def progress_bar() -> Iterator[Report | None]:
    """Shown on terminals, taken away at the end; elsewhere nothing."""
    if not terminal.may_style(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), MofNCompleteColumn()]
    if console.width >= 60:
        columns.insert(1, BarColumn(bar_width=None))
    columns += [TextColumn("left:", style="dim"), TimeRemainingColumn()]
    # An answer can take minutes: the speed is that of the whole run, not of the last seconds.
    with Progress(*columns, console=console, transient=True, expand=True, speed_estimate_period=1e6) as bar:
        task = bar.add_task("", total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=terminal.printable(what))

        yield report


def is_one_of(place: Path, files: Iterable[Path]) -> bool:
    """Whether writing to `place` would destroy one of these files."""
    return any(place.exists() and file.exists() and place.samefile(file) for file in files)


class TimeBar:
    """How much of the time has gone, on a terminal's standard error; nothing elsewhere."""

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self._bar: Any = None

    def __enter__(self) -> "TimeBar":
        if terminal.may_style(sys.stderr) and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(self._what, total=1.0)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, share: float, what: str) -> None:
        """What a measurement calls with the share of the time that has gone, and what it is doing."""
        if self._bar is not None:
            left = max(round(self._seconds * (1 - share)), 0)
            [task] = self._bar.task_ids
            text = terminal.printable(f"{what} (about {left // 60}:{left % 60:02} left)")
            self._bar.update(task, completed=share, description=text)
