"""What a terminal shows while models load: a line, and a bar where weights take a while to be made ready."""

import sys
from time import perf_counter
from typing import TYPE_CHECKING

from slipstream.cli import terminal
from slipstream.cli.terminal import DIM

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 0.3
"""Seconds of a model's loading without a bar: one that is gone at once is only a flicker."""


class Loading:
    """Shown inside `with`, and then taken away again; nothing on what is no terminal that can do that."""

    def __init__(self, name: str) -> None:
        self._shown = terminal.may_style(sys.stderr)
        self._text = terminal.printable(f"Loading {name} ...")[: terminal.width(sys.stderr) - 1]
        self._bar: Progress | None = None
        self._model, self._since = "", 0.0

    def __enter__(self) -> "Loading":
        if self._shown:
            sys.stderr.write(f"\x1b[{DIM}m{self._text}\x1b[0m")
            sys.stderr.flush()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._erase_line()

    def report(self, model: str, fraction: float) -> None:
        """What `Engine.load` calls while a model's weights are made ready: 0 to 1."""
        if model != self._model:
            self._model, self._since = model, perf_counter()
        text = terminal.printable(f"Loading {model}")
        if self._bar is None and self._deserves_bar(fraction):
            self._erase_line()
            self._bar = _bar(text)
            self._bar.start()
        if self._bar is not None:
            [task] = self._bar.task_ids
            self._bar.update(task, completed=fraction, description=text)

    def _deserves_bar(self, fraction: float) -> bool:
        waited = perf_counter() - self._since
        return self._shown and sys.stderr.isatty() and fraction < 1 and waited >= PATIENCE

    def _erase_line(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _bar(text: str) -> "Progress":
    """A bar with one task; narrow terminals get the percentage alone."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), TaskProgressColumn()]
    if console.width >= 60:
        columns.insert(1, BarColumn(bar_width=None))
    bar = Progress(*columns, console=console, transient=True, expand=True)
    bar.add_task(text, total=1.0)
    return bar
