"""`slipstream report`: what `slipstream bench --out` wrote, as tables and as a page with plots."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import terminal
from slipstream.cli.measuring import is_one_of
from slipstream.cli.terminal import BOLD, DIM, GREEN, Output
from slipstream.errors import StorageError, UsageError

if TYPE_CHECKING:
    from slipstream.measure.summary import Summary


def report(
    files: Annotated[list[Path], typer.Argument(help="Files that slipstream bench --out wrote.", metavar="FILE...")],
    *,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", help="Write Markdown to this file; - is standard output.", metavar="FILE"),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            help="Write one HTML file with plots, which needs no network; - is standard output.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Show benchmarks again: a table here, or Markdown, or a page with plots."""
    from slipstream.measure.records import read_bench
    from slipstream.measure.report_html import page
    from slipstream.measure.report_text import describe
    from slipstream.measure.report_text import markdown as as_markdown
    from slipstream.measure.summary import summarise

    if markdown is not None and markdown == html:
        raise UsageError("--markdown and --html must be two places.")
    for option, target in (("--markdown", markdown), ("--html", html)):
        if target is not None and is_one_of(target, files):
            raise UsageError(f"{option} would overwrite {target}, which holds the benchmark; choose another place.")
    benches = [read_bench(path) for path in files]
    output = Output()
    if markdown is not None:
        _write(markdown, lambda: as_markdown(benches), output)
    if html is not None:
        _write(html, lambda: page(benches), output)
    if markdown is not None or html is not None:
        return
    for place, bench in enumerate(benches):
        output.write("\n" if place else "")
        for line in describe(bench.header):
            terminal.say(line)
        summary = summarise(bench)
        show_table(summary, output)
        show_remarks(summary)


def show_table(summary: "Summary", output: Output) -> None:
    """The figures, with the heads in bold and what is certainly faster in green where there are colours."""
    from slipstream.measure.report_text import listing, table

    columns = terminal.width(sys.stdout) if sys.stdout.isatty() else None
    head, *lines = table(summary, columns)
    if columns is not None and len(head) > columns:
        output.write("\n".join(listing(summary, columns)))
        output.end_line()
        return
    cells = [row.cells[name] for row in summary.rows for name in summary.configurations]
    output.write(head, BOLD)
    output.end_line()
    for line, cell in zip(lines, cells, strict=True):
        certain = cell.ratio is not None and cell.ratio.is_certain
        style = "" if not certain or cell.ratio is None else GREEN if cell.ratio.value > 1 else DIM
        output.write(line, style)
        output.end_line()


def show_remarks(summary: "Summary") -> None:
    """Errors as such, the others as notes, on stderr."""
    for level, sentence in summary.remarks:
        terminal.complain(sentence) if level == "error" else terminal.say(sentence)


def _write(path: Path, text: Callable[[], str], output: Output) -> None:
    if str(path) == "-":
        output.write(text())
        return
    content = text().encode(errors="replace")  # names of files need not be UTF-8
    is_new = not path.exists()
    try:
        path.write_bytes(content)
    except OSError as error:
        if is_new:
            path.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else error.strerror or str(error)
        raise StorageError(f"{path} cannot be written: {reason}; choose another place.") from error
    terminal.say(f"Written: {path}")
