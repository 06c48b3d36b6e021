"""`slipstream train-drafter`: a drafter for a model, trained on its own answers."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slipstream.cli import terminal
from slipstream.cli.interrupt import EXIT_CODE, interrupts
from slipstream.cli.measuring import progress_bar
from slipstream.errors import RuntimeUnavailableError, UsageError

if TYPE_CHECKING:
    from slipstream.train.pipeline import Asked
    from slipstream.train.prompts import Source

DATA, RESULT, WORK = "What is learned from", "What comes out", "Time and place"
LINE_SECONDS = 60.0
"""Between two lines of progress where there is no terminal."""
MEGABYTE, GIGABYTE = 10**6, 10**9


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


def train_drafter(
    target: Annotated[
        str,
        typer.Argument(help="The model to draft for: a .gguf file, a name that `slipstream models` lists, or hf:..."),
    ],
    kind: Annotated[
        Literal["head", "model"],
        _option(
            RESULT,
            "head reads the target's hidden states (EAGLE-3), for Slipstream and llama.cpp; model is a small draft "
            "model for any engine that reads GGUF files. Default: head.",
        ),
    ] = "head",
    out: Annotated[
        Path | None,
        _option(
            RESULT,
            "The drafter's file. Default: TARGET-head.gguf or TARGET-draft.gguf here.",
            "-o",
            "--out",
            metavar="FILE",
        ),
    ] = None,
    size: Annotated[
        float | None, _option(RESULT, "Megabytes that the file may have; decides how many tokens can be drafted.")
    ] = None,
    no_tokenizer: Annotated[
        bool,
        _option(
            RESULT,
            "Leave the target's vocabulary out of a head's file: it becomes smaller, and llama.cpp cannot read it.",
            "--no-tokenizer",
        ),
    ] = False,
    beginning: Annotated[
        str | None,
        _option(
            DATA,
            "A head of the same target to begin with. Default: the one that comes with Slipstream, where there is one "
            "for the target; --set start=random begins anew.",
            "--from",
            metavar="HEAD",
        ),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        _option(
            DATA,
            "Your own prompts (.jsonl, as for `slipstream bench`), documents, code, or a folder of them. May be "
            "repeated. One in ten is held back to measure with. Default: the shipped set.",
            "--prompts",
            metavar="PATH",
        ),
    ] = None,
    tokens: Annotated[int | None, _option(DATA, "Tokens of answers to learn from, at most. Default: 1500000.")] = None,
    epochs: Annotated[float | None, _option(DATA, "How often every answer is seen, at most. Default: 3.")] = None,
    seed: Annotated[int, _option(DATA, "Of prompts, answers and first weights. Default: 0.")] = 0,
    change: Annotated[
        list[str] | None,
        _option(
            DATA,
            "Another value of the recipe (docs/train.md), such as learning_rate=5e-4. May be repeated.",
            "--set",
            metavar="NAME=VALUE",
        ),
    ] = None,
    hours: Annotated[
        float | None,
        _option(WORK, "Hours that all of it may take, over all runs. Default: until every epoch is done."),
    ] = None,
    work: Annotated[
        Path | None,
        _option(WORK, "Folder for answers, states and checkpoints. Default: one in Slipstream's cache.", metavar="DIR"),
    ] = None,
    disk: Annotated[
        float, _option(WORK, "Gigabytes for the target's states; what does not fit is computed again. Default: 8.")
    ] = 8.0,
    device: Annotated[str, _option(WORK, "Where torch trains: cpu, cuda, cuda:1, ... Default: cpu.")] = "cpu",
    threads: Annotated[int | None, _option(WORK, "Threads. Default: the physical cores.", "-t", "--threads")] = None,
    json: Annotated[bool, _option(RESULT, "Print one JSON object with what was reached.", "--json")] = False,
) -> None:
    """Train a drafter for a model on the model's own answers. Nothing but drafts changes: the text stays the same.

    Interrupted or killed, it goes on where it was when the same command is given again. Needs torch: the extra
    `[train]`.
    """
    from slipstream.models import resolve

    given = {"tokens": tokens, "epochs": epochs}
    changes = (
        {name: value for name, value in given.items() if value is not None} | _changes(change or ()) | {"seed": seed}
    )
    _check(changes, size, disk, hours, threads)
    if kind == "model":
        _check_model(beginning, no_tokenizer)
    _require_torch(device)
    path = resolve(target)
    ending = "head" if kind == "head" else "draft"
    asked = _asked(
        kind=kind,
        work=work,
        out=out or Path(f"{path.stem}-{ending}.gguf"),
        size=None if size is None else int(size * MEGABYTE),
        disk=int(disk * GIGABYTE),
        seconds=None if hours is None else hours * 3600,
        device=device,
        threads=threads,
        tokenizer=not no_tokenizer,
        start=beginning,
        changes=changes,
    )
    _train(path, _source(prompts, seed), asked, json)


def _asked(**values: Any) -> "Asked":
    from slipstream.train.pipeline import Asked, check_out

    check_out(values["out"])
    return Asked(**values)


def _require_torch(device: str) -> None:
    """Raise RuntimeUnavailableError, with the line that installs it, where there is no torch, or no such device."""
    try:
        import torch
    except ImportError:
        raise RuntimeUnavailableError(
            "Training needs torch, which is not here; install it with: pip install 'slipstream-decoding[train]'"
        ) from None
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise UsageError(f"torch cannot use the device {device!r} here; give --device cpu.") from None


def _check(changes: dict[str, Any], size: float | None, disk: float, hours: float | None, threads: int | None) -> None:
    """Refuse what cannot be, before anything is loaded."""
    from slipstream.core.params import check_number, check_whole

    check_whole("--tokens", changes.get("tokens", 1), 1, 10**12)
    check_number("--epochs", changes.get("epochs", 1.0), 0.001, 1000)
    check_whole("--seed", changes["seed"], 0, 2**31)
    check_number("--disk", disk, 0, 10**6)
    if size is not None:
        check_number("--size", size, 0.01, 10**5)
    if hours is not None:
        check_number("--hours", hours, 0.001, 10**4)
    if threads is not None:
        check_whole("--threads", threads, 1, 1024)


def _check_model(beginning: str | None, no_tokenizer: bool) -> None:
    """Refuse what means something to heads only."""
    if beginning is not None:
        raise UsageError("--from names a head to begin with, and --kind model trains none; leave one of them out.")
    if no_tokenizer:
        raise UsageError("--no-tokenizer is for heads: a draft model's file needs its vocabulary; leave it out.")


FIXED = ("kind", "target", "fingerprint", "prompts", "seed")
"""Fields of a recipe that have an option of their own, or none."""


def _changes(given: "list[str] | tuple[()]") -> dict[str, Any]:
    """What `--set` says, as the recipe's types. Raises UsageError, which names the nearest name."""
    import difflib

    from slipstream.train.recipe import Recipe

    known = {field.name: field.type for field in fields(Recipe) if field.name not in FIXED}
    changes: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
            raise UsageError(f"--set has no {name!r}; {hint}")
        changes[name] = _value(name, value, getattr(Recipe("head", "", ""), name))
    return changes


def _value(name: str, text: str, like: Any) -> Any:
    try:
        match like:
            case bool():
                return {"true": True, "false": False}[text.lower()]
            case int():
                return int(text)
            case float():
                return float(text)
            case tuple():
                return tuple(int(part) for part in text.split(","))
            case _:
                return text
    except (ValueError, KeyError):
        raise UsageError(f"--set {name}={text} must have a value like {like!r}.") from None


def _source(paths: list[Path] | None, seed: int) -> "Source":
    from slipstream.train.prompts import own_source, shipped_source

    return own_source(paths, seed) if paths else shipped_source(seed)


def _train(path: Path, source: "Source", asked: "Asked", json: bool) -> None:
    from slipstream.cli.figures import to_json
    from slipstream.cli.terminal import Output
    from slipstream.train.loop import Report
    from slipstream.train.pipeline import train_drafter as train

    stop = Event()
    with _progress() as progress, interrupts.cancelling(stop.set):
        finished = train(path, source, asked, Report(terminal.say, progress, stop.is_set))
    if finished.path is None:
        terminal.say(f"Stopped; the same command goes on from {finished.work}.")
        raise typer.Exit(EXIT_CODE)
    output = Output()
    if json:
        found = {"path": str(finished.path), "bytes": finished.path.stat().st_size, "held_out": finished.figures}
        output.write(to_json(found))
    else:
        megabytes = finished.path.stat().st_size / MEGABYTE
        output.write(f"{finished.path} ({megabytes:.1f} MB); use it with: slipstream run -m {path} -d {finished.path}")
    output.end_line()


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on terminals; elsewhere a line with the time left now and then."""
    with progress_bar() as bar:
        yield bar or _Lines().report


class _Lines:
    """Progress as lines on stderr."""

    def __init__(self) -> None:
        self._stage = ""
        self._since = self._told = 0.0
        self._begun = 0

    def report(self, done: int, total: int, what: str) -> None:
        """What is done of a stage, whose name is what stands before a colon."""
        now, stage = monotonic(), what.partition(":")[0]
        if stage != self._stage:
            self._stage, self._since, self._begun, self._told = stage, now, done, now
        elif now - self._told >= LINE_SECONDS and done > self._begun:
            left = (now - self._since) / (done - self._begun) * max(total - done, 0)
            terminal.say(f"{what}, {done} of {total}, {_time(left)} left")
            sys.stderr.flush()
            self._told = now


def _time(seconds: float) -> str:
    """For people."""
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
