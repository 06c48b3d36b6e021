"""The commands together, and the one place where an error becomes a sentence and an exit code."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from slipstream.cli import terminal
from slipstream.cli.advise import advise
from slipstream.cli.bench import bench
from slipstream.cli.chat import chat
from slipstream.cli.corpus import corpus
from slipstream.cli.interrupt import EXIT_CODE, interrupts
from slipstream.cli.layers import layers
from slipstream.cli.models import models
from slipstream.cli.pull import pull
from slipstream.cli.report import report
from slipstream.cli.run import run
from slipstream.cli.serve import serve
from slipstream.cli.settings import Settings
from slipstream.cli.train_drafter import train_drafter
from slipstream.cli.verify import verify
from slipstream.errors import SlipstreamError, StorageError

app = typer.Typer(
    name="slipstream",
    help="Faster answers from language models on your own machine, with the same text.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (run, chat, serve, pull, models, bench, report, advise, layers, verify, train_drafter):
    app.command()(command)
app.add_typer(corpus)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import version

    typer.echo(f"slipstream {version('slipstream-decoding')}")
    typer.echo(_native_version())
    typer.echo(_llamacpp_version())
    raise typer.Exit


def _native_version() -> str:
    """The instruction set that the native runtime computes with, and the others that it could."""
    try:
        from slipstream.runtime.native import chosen_instruction_set, instruction_sets

        used, usable = chosen_instruction_set(), instruction_sets()
    except (ImportError, SlipstreamError) as error:
        return f"native runtime: {terminal.printable(str(error))}"
    others = ", ".join(name for name in usable if name != used)
    return f"native runtime: {used}" + (f" (here also {others})" if others else "")


def _llamacpp_version() -> str:
    """The library's version and the GPUs that it sees."""
    from importlib.metadata import version

    from slipstream.runtime import devices

    try:
        found = devices()
    except SlipstreamError as error:
        return f"llama.cpp: {terminal.printable(str(error))}"
    return f"llama-cpp-python {version('llama-cpp-python')}, GPU devices: {', '.join(found) or 'none'}"


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the versions, the instruction set and the GPU devices.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Faster answers from language models on your own machine, with the same text."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    terminal.prepare()
    interrupts.install()
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code: 0, 1 (failure), 2 (usage) or 130 (interrupted).

    What a user can cause is one sentence on stderr. Any other exception is a bug of ours and keeps its traceback.
    """
    try:
        if sys.stdout is None:
            raise StorageError("Standard output is closed; send it to a file, a pipe or /dev/null.")
        code = typer.main.get_command(app).main(list(arguments), prog_name="slipstream", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SlipstreamError as error:
        terminal.complain(_with_option_name(str(error)))
        return error.exit_code
    except typer.TyperException as error:
        sentence = error.format_message().replace("Value error, ", "").rstrip(".")
        terminal.complain(f"{sentence}. See slipstream --help.")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_CODE
    except BrokenPipeError:
        return _reader_has_gone()
    except OSError as error:
        if error.filename is not None:  # about that file, not about a text that typer or rich wrote for us
            raise
        terminal.complain(str(terminal.unwritable(error)))
        return 1


def _with_option_name(sentence: str) -> str:
    """`top_p must be ...` is what the Python API says; here the option has another spelling."""
    name, _, rest = sentence.partition(" ")
    return f"--{name.replace('_', '-')} {rest}" if name in Settings.__dataclass_fields__ else sentence


def _reader_has_gone() -> int:
    """`| head` had enough. Standard output must lead somewhere, or Python complains about it while it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
