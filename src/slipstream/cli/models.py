"""`slipstream models`: what can be run here."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slipstream.cli import terminal
from slipstream.cli.terminal import BOLD, DIM, Output
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.models import CatalogEntry, FoundModel

COLUMNS = ("name", "size", "quantisation", "architecture", "licence", "source", "runtime")
# Below this width a table would break every word.
NARROW = 76


@dataclass(frozen=True, slots=True)
class Row:
    """One model, here or to be had. `size` in bytes; `path` is None where it is not here.

    runtime: what computes it where nothing else is asked for and no GPU is used
    """

    name: str
    size: int
    quantisation: str
    architecture: str
    licence: str
    source: str
    runtime: str = "-"
    path: str | None = None
    problem: str | None = None

    @property
    def cells(self) -> list[str]:
        """One text for each column, on one line each."""
        known = (self.quantisation, self.architecture, self.licence, self.source, self.runtime)
        texts = (self.name, _size(self.size), *known)
        return [" ".join(terminal.printable(text).split()) for text in texts]


def models(
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list with every model's path and properties.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Say of one model, a file or a name, what runs it here and why, what memory it takes and how fast "
            "it can be.",
        ),
    ] = None,
    ctx: Annotated[
        int | None, typer.Option(help="With --explain: tokens of context. Default: the model's, at most 4096.")
    ] = None,
    runtime: Annotated[
        Literal["auto", "native", "llamacpp"], typer.Option(help="With --explain: what is to run it.")
    ] = "auto",
) -> None:
    """List the models on this machine, those of Hugging Face, Ollama and LM Studio included, and what can be fetched.

    The runtime is the one that computes the model on the CPU where --runtime does not say otherwise. Where the output
    is no terminal: one line for each model, separated by tabs: name, size, quantisation, architecture, licence,
    source, runtime.
    """
    if explain is None and (ctx is not None or runtime != "auto"):
        raise UsageError("--ctx and --runtime belong to --explain MODEL; add it, or leave them out.")
    if explain is not None:
        from slipstream.cli.explanation import explain_model

        explain_model(explain, ctx, runtime, json=json)
        return
    rows = _rows()
    output = Output()
    if json:
        from slipstream.cli.figures import to_json

        output.write(to_json([_as_object(row) for row in rows]))
    elif not sys.stdout.isatty():
        output.write("".join("\t".join(row.cells) + "\n" for row in rows))
    elif (columns := terminal.width(sys.stdout)) < NARROW:
        _print_list(rows, output, columns)
    else:
        _print_table(rows, output)
    if not json:
        _explain(rows)


def _rows() -> list[Row]:
    from slipstream.models import CATALOG, list_models

    here = [_found(model) for model in list_models()]
    names = {row.name for row in here if row.source == "slipstream"}
    return here + [_available(entry) for entry in CATALOG.values() if entry.name not in names]


def _found(model: "FoundModel") -> Row:
    licence = model.licence or "not stated"
    return Row(
        name=model.name,
        size=model.size,
        quantisation=model.quantisation or "-",
        architecture=model.architecture or "-",
        licence=licence,
        source=model.source,
        runtime="-" if model.problem else _runtime(model.path),
        path=str(model.path),
        problem=model.problem,
    )


def _runtime(path: Path) -> str:
    from slipstream.models import read_model_header
    from slipstream.runtime import LoadOptions, choose

    return choose(read_model_header(path), LoadOptions(gpu_layers=0)).runtime


def _available(entry: "CatalogEntry") -> Row:
    quantisation = entry.title.rpartition(", ")[2]
    return Row(entry.name, entry.size, quantisation, "-", entry.licence, "not fetched")


def _as_object(row: Row) -> dict[str, Any]:
    found = row.path is not None
    return {
        "name": row.name,
        "size": row.size,
        "quantisation": row.quantisation,
        "architecture": row.architecture if row.architecture != "-" else None,
        "licence": row.licence,
        "source": row.source if found else None,
        "runtime": row.runtime if row.runtime != "-" else None,
        "path": row.path,
        "problem": row.problem,
    }


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"


def _print_table(rows: list[Row], output: Output) -> None:
    """Long names are cut at the right width by rich, not by the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold" if output.styles else "")
    for column in COLUMNS:
        table.add_column(column, overflow="fold", justify="right" if column == "size" else "left")
    for row in rows:
        style = "dim" if output.styles and (row.path is None or row.problem) else ""
        table.add_row(*(Text(cell, style=style) for cell in row.cells))
    Console(highlight=False).print(table)


def _print_list(rows: list[Row], output: Output, columns: int) -> None:
    from slipstream.cli.figures import fit

    for row in rows:
        name, *properties = row.cells
        output.write(name, BOLD)
        lines = fit([cell for cell in properties if cell != "-"], columns - 2).splitlines()
        output.write("".join(f"\n  {line}" for line in lines), DIM)
        output.end_line()


def _explain(rows: list[Row]) -> None:
    """What cannot be seen from the table, on stderr."""
    for row in rows:
        if row.problem:
            terminal.say(f"{row.name} cannot be used: {row.problem}")
    if sys.stdout.isatty() and any(row.path is None for row in rows):
        terminal.say("Fetch one with `slipstream pull NAME`.")
