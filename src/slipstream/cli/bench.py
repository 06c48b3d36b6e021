"""`slipstream bench`: how fast configurations are, side by side on the same prompts."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from slipstream.cli import terminal
from slipstream.cli.interrupt import EXIT_CODE, interrupts
from slipstream.cli.loading import Loading
from slipstream.cli.measuring import is_one_of, progress_bar
from slipstream.cli.pull import download_bar
from slipstream.cli.report import show_remarks, show_table
from slipstream.cli.settings import Settings, with_settings
from slipstream.cli.terminal import Output
from slipstream.errors import SlipstreamError, StorageError, UnknownModelError, UsageError

if TYPE_CHECKING:
    from slipstream.engine import Engine, GenerationOptions
    from slipstream.measure.configurations import Configuration
    from slipstream.measure.contestants import Contestant
    from slipstream.measure.prompts import BenchPrompt
    from slipstream.measure.records import Failure, Record, Writer

PER_KIND = 3
"""Shipped prompts of each kind that are asked where no other number is given."""
NOT_HERE = ("corpus", "draft", "speculation", "num_draft_tokens", "explain", "show_accepted", "system")

BENCH = "Benchmark"


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=BENCH, show_default=False, **more)


@partial(with_settings, without=NOT_HERE)
def bench(
    settings: Settings,
    *,
    config: Annotated[
        list[str] | None,
        _option(
            "What to compare with plain decoding: a drafter as in `run --draft`, then ,n=4 for a fixed length, "
            ",speculation=auto|on, ,name=LABEL. May be repeated. Default: auto, which is suffix, and head where one "
            "comes with Slipstream for the model.",
            "-c",
            "--config",
            metavar="CONFIG",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        _option(
            "Prompts of your own: JSON lines, Spec-Bench's format, or plain text with an empty line between them.",
            metavar="FILE",
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        _option("Prompts of this kind only; several with commas, or repeated. Default: all.", metavar="KIND"),
    ] = None,
    per_kind: Annotated[
        int | None,
        _option(f"Prompts of each kind. Default: {PER_KIND} of those that come with Slipstream, all of your own."),
    ] = None,
    repeats: Annotated[int, _option("Answers to each prompt. Default: 2.")] = 2,
    max_tokens: Annotated[int, _option("Most tokens of an answer. Default: 128.")] = 128,
    seed: Annotated[int, _option("Seed of the first repeat; the next ones count up. Default: 0.")] = 0,
    against: Annotated[
        list[str] | None,
        _option(
            "Also ask this OpenAI-compatible server (llama-server, vLLM), such as http://127.0.0.1:8080. May be "
            "repeated. SLIPSTREAM_API_KEY is sent as its key.",
            metavar="URL",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        _option(
            "Write every answer and its rounds to this file, for slipstream report.", "-o", "--out", metavar="FILE"
        ),
    ] = None,
    json: Annotated[bool, _option("Print the figures as one JSON object.", "--json")] = False,
) -> None:
    """Measure how fast drafters make a model on this machine, against plain decoding on the same prompts.

    All configurations answer each prompt in turn with the same seed. Speed-ups have 95 % intervals; answers that only
    repeat themselves are left out. Ctrl-C ends the run and shows what there is. Sampling, model and machine options
    are those of `run`. A model that is known and not here yet is fetched.
    """
    from slipstream.measure.configurations import parse_configurations
    from slipstream.measure.server_link import parse_address

    settings.speculation_options()  # impossible values are refused before anything is written or loaded
    settings.model_options()
    addresses = against or []
    servers = [parse_address(url).name for url in addresses]
    if again := next((name for name in servers if servers.count(name) > 1), None):
        raise UsageError(f"--against names {again} twice; give each server once.")
    if out is not None and prompts is not None and is_one_of(out, [prompts]):
        raise UsageError(f"--out would overwrite the prompts in {out}; choose another place.")
    options = _generation_options(settings, max_tokens, seed, repeats)
    configurations = None if config is None else parse_configurations(config)
    chosen = _prompts(prompts, kinds, per_kind)
    with ExitStack() as stack:
        run = _Run(settings, options, repeats, stack)
        run.open(out)
        run.load(configurations, addresses)
        run.measure(chosen)
        run.show(json=json)
    raise typer.Exit(run.code)


def _generation_options(settings: Settings, max_tokens: int, seed: int, repeats: int) -> "GenerationOptions":
    """How answers are sampled. Raises UsageError for impossible values."""
    from slipstream.core.params import check_whole

    check_whole("max_tokens", max_tokens, 1, 2**31)
    check_whole("--repeats", repeats, 1, 10_000)
    check_whole("seed", seed, 0, 2**63)
    given = {**settings.generation_options(), "max_tokens": max_tokens, "seed": seed}
    if settings.think is not None:
        given["think"] = settings.think
    return cast("GenerationOptions", given)


def _prompts(path: Path | None, kinds: list[str] | None, per_kind: int | None) -> "list[BenchPrompt]":
    from slipstream.core.params import check_whole
    from slipstream.measure.prompts import read_prompts, select, shipped_prompts

    if per_kind is not None:
        check_whole("--per-kind", per_kind, 1, 10**6)
    names = None if kinds is None else [kind.strip() for kind in ",".join(kinds).split(",")]
    if path is None:
        return shipped_prompts(names, PER_KIND if per_kind is None else per_kind)
    return select(read_prompts(path), names, per_kind)


class _Run:
    """One benchmark: who answers, what was seen, and what the command's exit code will be."""

    def __init__(self, settings: Settings, options: "GenerationOptions", repeats: int, stack: ExitStack) -> None:
        self.code = 0
        self._settings = settings
        self._options = options
        self._repeats = repeats
        self._stack = stack
        self._writer: Writer | None = None
        self._header: dict[str, Any] = {}
        self._contestants: dict[str, Engine | Contestant] = {}
        self._records: list[Record] = []
        self._stopped = False

    def open(self, out: Path | None) -> None:
        """The file comes first: that it cannot be written must not be found out after an hour."""
        from slipstream.measure.records import Writer

        if out is not None:
            self._writer = self._stack.enter_context(Writer(out))

    def load(self, configurations: "Sequence[Configuration] | None", against: Iterable[str]) -> None:
        """The target must load; of the others those that do take part. Without any the target's default does."""
        from slipstream.measure.configurations import parse_configurations
        from slipstream.measure.lineup import effective_params, header, join, measured_costs
        from slipstream.measure.server import Server
        from slipstream.policy import DEFAULT_MAX_SLOWDOWN

        plain = self._stack.enter_context(_load_plain(self._settings))
        if configurations is None:
            configurations = parse_configurations([f"auto,name={plain.default_draft}"])
        slowdown = self._settings.speculation_options().get("max_slowdown", DEFAULT_MAX_SLOWDOWN)
        engines = {configurations[0].name: plain}
        failures: list[Failure] = []
        for one in configurations[1:]:
            with _tolerating(failures, one.name):
                with Loading(one.name) as loading, interrupts.leaving():
                    engine = join(plain, one, max_slowdown=slowdown, progress=loading.report)
                engines[one.name] = self._stack.enter_context(engine)
        params = effective_params(plain, self._options)
        self._contestants = dict(engines)
        for url in against:
            with _tolerating(failures, url):
                server = Server(url, params, key=os.environ.get("SLIPSTREAM_API_KEY"))
                self._contestants[server.name] = server
        costs = measured_costs(list(engines.values()))
        self._header = header(plain, configurations, self._settings.model_options(), params, costs=costs)
        self._header |= {
            "seed": self._options["seed"],
            "max_tokens": self._options["max_tokens"],
            "repeats": self._repeats,
        }
        for notice in dict.fromkeys(notice for engine in engines.values() for notice in engine.notices):
            terminal.say(notice)
        self._records = [*failures]

    def measure(self, prompts: "Sequence[BenchPrompt]") -> None:
        """Everybody answers everything, until it is done or Ctrl-C is pressed."""
        from slipstream.measure.records import Writer
        from slipstream.measure.runner import run_bench

        self._header["kinds"] = list(dict.fromkeys(prompt.kind for prompt in prompts))
        self._write(lambda writer: writer.begin(self._header))
        for failure in self._records:
            self._write(partial(Writer.add, record=failure))
        stop = Event()
        with progress_bar() as progress, interrupts.cancelling(stop.set):
            results = run_bench(
                self._contestants,
                prompts,
                repeats=self._repeats,
                options=self._options,
                on_record=self._add,
                progress=progress,
                should_stop=stop.is_set,
            )
        self._stopped = results.stopped
        self._write(lambda writer: writer.end(stopped=results.stopped))

    def show(self, *, json: bool) -> None:
        """The table or the object on standard output, remarks beside it; sets the exit code."""
        from slipstream.measure.records import Answer, Bench, Failure
        from slipstream.measure.summary import summarise

        answers = [record for record in self._records if isinstance(record, Answer)]
        failures = [record for record in self._records if isinstance(record, Failure)]
        found = Bench(self._header, answers, failures, complete=not self._stopped)
        summary = summarise(found)
        output = Output()
        if json:
            from slipstream.cli.figures import to_json

            output.write(to_json({**self._header, **summary.as_dict()}))
        elif answers:
            show_table(summary, output)
        show_remarks(summary)
        if failures or any(remark.level == "error" for remark in summary.remarks):
            self.code = self.code or 1
        if self._stopped:
            self.code = EXIT_CODE

    def _add(self, record: "Record") -> None:
        self._records.append(record)
        self._write(lambda writer: writer.add(record))

    def _write(self, write: "Callable[[Writer], None]") -> None:
        """A disk that is full ends the file, not the run."""
        try:
            if self._writer is not None:
                write(self._writer)
        except StorageError as error:
            self._writer = None
            self.code = 1
            terminal.complain(str(error))


def _load_plain(settings: Settings) -> "Engine":
    """The target, fetched if it is known and not here."""
    from slipstream.engine import Engine
    from slipstream.models import resolve

    options = settings.model_options()
    try:
        resolve(settings.model)
    except UnknownModelError:
        with download_bar() as progress:
            resolve(settings.model, fetch=True, progress=progress)
    with Loading(settings.model) as loading, interrupts.leaving():
        return Engine.load(settings.model, draft="none", speculation="off", options=options, progress=loading.report)


@contextmanager
def _tolerating(failures: "list[Failure]", name: str) -> Iterator[None]:
    """What does not load becomes a failure."""
    from slipstream.measure.records import Failure

    try:
        yield
    except SlipstreamError as error:
        failures.append(Failure(str(error), name))
