"""`slipstream layers`: which of a model's layers should draft for it."""

from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import terminal
from slipstream.cli.interrupt import EXIT_CODE, interrupts
from slipstream.cli.measuring import TimeBar
from slipstream.cli.settings import DEFAULT_MODEL
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.measure.layers import LayerReport, LayerRequest
    from slipstream.measure.prompts import BenchPrompt
    from slipstream.models import GgufHeader

DEFAULT_SECONDS = 600.0
LEAST_SECONDS, MOST_SECONDS = 1.0, 7 * 24 * 3600.0
DEFAULT_MAX_TOKENS = 64


def layers(
    model: Annotated[
        str,
        typer.Argument(
            help="A .gguf file, a name that `slipstream models` lists, or hf:owner/repo/file.gguf.", show_default=True
        ),
    ] = DEFAULT_MODEL,
    *,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Your own prompts, in a file as for `slipstream bench`. Default: those of Slipstream.",
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            metavar="SECONDS",
            help="About how long it may search. Run it again to search on. Default: 600.",
            show_default=False,
        ),
    ] = DEFAULT_SECONDS,
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="LAYERS", help="Layers that always draft, such as 0-3,28-29.", show_default=False
        ),
    ] = "",
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            help=f"Most tokens of an answer that is looked at. Default: {DEFAULT_MAX_TOKENS}.",
            show_default=False,
        ),
    ] = DEFAULT_MAX_TOKENS,
    threads: Annotated[
        int | None, typer.Option(help="Threads that compute. Default: the physical cores this process may use.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an earlier search with the same prompts found.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with everything that was found.")] = False,
) -> None:
    """Search for the layers of a model that draft best for it, for `--draft layers`.

    The model answers some prompts; then subsets of its layers are held against these answers, and the one with the
    largest predicted speed-up is kept and used from then on. What was found is written down at once: a search that was
    ended goes on when the command is given again.
    """
    from slipstream.cli.figures import to_json
    from slipstream.cli.terminal import Output
    from slipstream.measure.layers_text import lines
    from slipstream.models import read_model_header, resolve

    request = _request(budget, max_tokens, fresh=fresh)
    header, asked = read_model_header(resolve(model)), _prompts(prompts)
    report = _searched(header, asked, _keeping(request, header, keep), threads)
    output = Output()
    if json:
        output.write(to_json(report.as_dict()))
    else:
        output.write("\n".join(lines(report)))
        output.end_line()
    if report.partial:
        raise typer.Exit(EXIT_CODE)


def _request(budget: float, max_tokens: int, *, fresh: bool) -> "LayerRequest":
    """Refuse what cannot be, before anything is read."""
    from slipstream.core.params import check_whole
    from slipstream.measure.layer_passages import CONTEXT
    from slipstream.measure.layers import LayerRequest

    check_whole("--max-tokens", max_tokens, 2, CONTEXT // 2)
    if not LEAST_SECONDS <= budget <= MOST_SECONDS:
        raise UsageError(f"--budget must be from {LEAST_SECONDS:g} to {MOST_SECONDS:g} seconds, not {budget:g}.")
    return LayerRequest(budget, max_tokens, fresh=fresh)


def _keeping(request: "LayerRequest", header: "GgufHeader", keep: str) -> "LayerRequest":
    from dataclasses import replace

    from slipstream.models.layer_sets import parse_layers
    from slipstream.models.pruned import layer_count

    if not keep:
        return request
    try:
        return replace(request, keep=parse_layers(keep, layer_count(header), header.path.name))
    except UsageError as error:
        raise UsageError(str(error).replace("layers:", "--keep ", 1)) from None


def _prompts(path: Path | None) -> "list[BenchPrompt]":
    """Those of all kinds in turn, so that the first ones are of different kinds."""
    from itertools import zip_longest

    from slipstream.measure.prompts import read_prompts, shipped_prompts

    if path is not None:
        return read_prompts(path)
    kinds: dict[str, list[BenchPrompt]] = {}
    for prompt in shipped_prompts():
        kinds.setdefault(prompt.kind, []).append(prompt)
    return [prompt for row in zip_longest(*kinds.values()) for prompt in row if prompt is not None]


def _searched(
    header: "GgufHeader", prompts: "list[BenchPrompt]", request: "LayerRequest", threads: int | None
) -> "LayerReport":
    """Load the model and search. Ctrl-C while it loads ends the program, later on the search."""
    from slipstream.cli.loading import Loading
    from slipstream.engine import Engine, ModelOptions
    from slipstream.measure.layer_passages import CONTEXT, sessions_needed
    from slipstream.measure.layers import find_layers

    options = ModelOptions(context_length=CONTEXT, max_sequences=sessions_needed(), threads=threads)
    with ExitStack() as stack:
        with Loading(header.path.name) as loading, interrupts.leaving():
            engine = stack.enter_context(
                Engine.load(header.path, speculation="off", options=options, progress=loading.report)
            )
        for notice in engine.notices:
            terminal.say(notice)
        stop = Event()
        progress = stack.enter_context(TimeBar(request.seconds, "answering prompts"))
        stack.enter_context(interrupts.cancelling(stop.set))
        return find_layers(engine, header, prompts, request, progress=progress.report, should_stop=stop.is_set)
