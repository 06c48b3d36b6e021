"""`slipstream pull`: fetch a model."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import terminal
from slipstream.cli.terminal import Output

if TYPE_CHECKING:
    from slipstream.models import Progress


def pull(
    name: Annotated[
        str, typer.Argument(help="A short name that `slipstream models` lists, or hf:owner/repo/file.gguf.")
    ],
) -> None:
    """Fetch a model, check it and show its licence. What is here already is not fetched again."""
    from slipstream import models

    known = _known(name)
    with download_bar() as progress:
        path = known or models.pull(name, progress)
    output = Output()
    licence, note = _licence(name, path)
    here = "is here already" if known else "is ready"
    megabytes = f"{path.stat().st_size / 1e6:.0f} MB"
    output.write(f"{name} {here}: {path} ({megabytes}, licence: {licence})", "")
    output.end_line()
    if note and not known:
        terminal.say(note)


def _known(name: str) -> Path | None:
    """Where a model that could be fetched lies already."""
    from slipstream.errors import SlipstreamError
    from slipstream.models import CATALOG, resolve

    if name.lower() not in CATALOG and not name.startswith("hf:"):
        return None
    try:
        return resolve(name)
    except SlipstreamError:
        return None


def _licence(name: str, path: Path) -> tuple[str, str]:
    """The licence, and what there is to know about it."""
    from slipstream.models import CATALOG, read_model_header

    if entry := CATALOG.get(name.lower()):
        return entry.licence, entry.licence_note
    return read_model_header(path).licence or "not stated in the file", ""


@contextmanager
def download_bar() -> Iterator["Progress | None"]:
    """A bar on terminals; elsewhere nothing."""
    if not terminal.may_style(sys.stderr) and not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    text = TextColumn("{task.description}", markup=False)
    columns = [text, BarColumn(bar_width=None), DownloadColumn(), TransferSpeedColumn()]
    if console.width < 60:  # the bar is what matters least
        columns = [text, DownloadColumn()]
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("", total=None)

        def report(done: int, total: int | None, what: str) -> None:
            bar.update(task, completed=done, total=total, description=terminal.printable(what))

        yield report
