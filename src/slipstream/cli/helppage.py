"""Writes docs/cli.md from the commands themselves: `python -m slipstream.cli.helppage > docs/cli.md`."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from slipstream.cli.app import app, top
from slipstream.cli.chat import COMMANDS
from slipstream.cli.settings import Settings

HEAD = """# The command line

<!-- Made by `python -m slipstream.cli.helppage > docs/cli.md`; a test checks that it is current. -->

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. The first Ctrl-C ends an answer in good order and shows
what there is of it, the second ends the program. Text goes to standard output, everything else to standard error.
Colours appear on terminals only, and not where `NO_COLOR` is set.
"""


def page() -> str:
    """The whole page, Markdown."""
    sections = [HEAD, _section("slipstream", top)]
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.callback.__name__.replace("_", "-")  # as typer spells it
        sections.append(_section(f"slipstream {name}", command.callback))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            name = f"{group.typer_instance.info.name} {command.callback.__name__}"
            sections.append(_section(f"slipstream {name}", command.callback))
    sections.append("## Options of `run` and `chat`\n\n" + _tables(_rows(Settings)))
    rows = [f"| `{name} {command.argument}".rstrip() + f"` | {command.help} |" for name, command in COMMANDS.items()]
    sections.append("\n".join(["## In a chat", "", "| Line | What it does |", "|---|---|", *rows]) + "\n")
    return "\n".join(sections)


def _section(title: str, function: Callable[..., Any]) -> str:
    """One command: its description, and the options that are its own."""
    own = [(group, row) for group, row in _rows(function) if (group, row) not in list(_rows(Settings))]
    return f"## `{title}`\n\n{inspect.cleandoc(function.__doc__ or '')}\n\n{_tables(own)}"


def _tables(rows: Iterable[tuple[str, str]]) -> str:
    """One table for each group."""
    groups: dict[str, list[str]] = {}
    for group, row in rows:
        groups.setdefault(group, []).append(row)
    tables = ["\n".join([f"| {group} | |", "|---|---|", *rows]) + "\n" for group, rows in groups.items()]
    return "\n".join(tables)


def _rows(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """(group, table row) of each argument and option."""
    hints = get_type_hints(function, include_extras=True)
    for name in inspect.signature(function).parameters:
        kind, *extras = get_args(hints[name]) or (hints[name],)
        info = next((extra for extra in extras if isinstance(extra, ArgumentInfo | OptionInfo)), None)
        if info is None:
            continue  # typer's own context
        help_text = (info.help or "").replace("|", "\\|")
        if isinstance(info, ArgumentInfo):
            yield "Argument", f"| `{name.upper()}` | {help_text} |"
        else:
            # typer takes the first spelling for a default until it has seen the signature
            spellings = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
            spelling = ", ".join(spellings or [f"--{name.replace('_', '-')}"]).replace("/", ", ")
            value = info.metavar or _value(kind)
            yield info.rich_help_panel or "Option", f"| `{f'{spelling} {value}'.strip()}` | {help_text} |"


def _value(kind: Any) -> str:
    """What an option's value is called; nothing for a switch."""
    if isinstance(kind, UnionType):  # `int | None`
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "\\|".join(get_args(kind))
    return {bool: "", int: "N", float: "X"}.get(kind, "TEXT")


if __name__ == "__main__":
    sys.stdout.write(page())
