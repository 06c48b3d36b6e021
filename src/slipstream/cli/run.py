"""`slipstream run`: one prompt, one answer."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.interrupt import EXIT_CODE, interrupts
from slipstream.cli.settings import Settings, with_settings
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engine import Engine


@with_settings
def run(
    settings: Settings,
    prompt: Annotated[
        str | None,
        typer.Argument(help="What to say to the model. Text from a pipe is put after it, or taken instead of it."),
    ] = None,
    *,
    prediction: Annotated[
        Path | None,
        typer.Option(
            "--prediction",
            help="A file with the text that is expected to come out, with changes: guesses come from it.",
            metavar="FILE",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as plain text, without the model's chat template.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with text, token ids and figures when done.")
    ] = False,
) -> None:
    """Answer one prompt, or text from a pipe, and show what speculation brought.

    Sampling takes the values that the model's file recommends; if it carries none, temperature 0.7, top-p 0.95
    and min-p 0.05.
    """
    from slipstream.cli import answer

    if raw and (settings.system is not None or settings.think is not None):
        raise UsageError(
            "--system and --think belong to the chat template, which --raw leaves out; use one or the other."
        )
    text = _read_prompt(prompt)
    predicted = None if prediction is None else _read_file("--prediction", prediction)
    with answer.load(settings) as engine:
        answer.check_thinking(engine, settings.think)
        _answer(engine, text, settings, predicted, raw=raw, json=json)
    if interrupts.caught:
        raise typer.Exit(EXIT_CODE)


def _answer(engine: "Engine", text: str, settings: Settings, predicted: str | None, *, raw: bool, json: bool) -> None:
    from slipstream.cli import answer, figures
    from slipstream.cli.terminal import Output
    from slipstream.engine import Conversation

    output = Output()
    options = settings.generation_options()
    if predicted is not None:
        options["prediction"] = predicted
    conversation = Conversation(engine, system=settings.system, think=settings.think)
    stream = engine.stream(text, **options) if raw else conversation.ask(text, **options)
    if json:
        with stream, interrupts.cancelling(stream.cancel):
            for _ in stream:
                pass
        output.write(figures.to_json(figures.as_object(stream.completion, engine)))
        return
    if raw:
        no_thinking = answer.Thinking(None, False, engine.target.vocabulary)
        answer.show(stream, output, no_thinking, colour_accepted=settings.show_accepted is not False)
    else:
        answer.show_turn(conversation, stream, output, settings)
    answer.show_figures(stream.completion, engine, explain=settings.explain)


def _read_prompt(prompt: str | None) -> str:
    """The argument, then what is piped in."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else _read_stdin()
    parts = [part for part in (prompt, piped) if part]
    if not parts:
        raise UsageError(
            'There is no prompt; write slipstream run "your prompt", pipe a text in, or start slipstream chat.'
        )
    return "\n\n".join(parts)


def _read_file(option: str, path: Path) -> str:
    """A file's text. Raises UsageError."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {path} is not UTF-8 text (byte {error.start + 1}).") from None
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error.strerror}.") from error


def _read_stdin() -> str:
    """All of standard input but line feeds at its end."""
    try:
        return sys.stdin.buffer.read().decode().rstrip("\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"Standard input is not UTF-8 text (byte {error.start + 1}); convert it, for example with iconv."
        ) from None
    except OSError as error:
        raise UsageError(f"Standard input cannot be read: {error.strerror}.") from error
