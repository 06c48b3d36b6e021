"""`slipstream verify`: a certificate that speculation leaves the text alone, with one's own models and settings."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from slipstream.cli import terminal
from slipstream.cli.interrupt import EXIT_CODE, interrupts
from slipstream.cli.measuring import progress_bar
from slipstream.cli.settings import AUTO, Settings, with_settings
from slipstream.cli.terminal import BOLD, Output
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engine import Engine, GenerationOptions
    from slipstream.measure.cases import Case
    from slipstream.measure.prompts import BenchPrompt
    from slipstream.measure.verification import Scope, Verification
    from slipstream.measure.watch import Watch

COUNT, MAX_TOKENS = 9, 64
"""Prompts, of those that come with Slipstream, and tokens of an answer, where no other number is given."""
NOT_HERE = ("corpus", "speculation", "max_slowdown", "explain", "show_accepted", "system", "think")
PANEL = "Certificate"


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=PANEL, show_default=False, **more)


@partial(with_settings, without=NOT_HERE)
def verify(
    settings: Settings,
    *,
    draft: Annotated[
        list[str] | None,
        _option(
            "A drafter to verify, as in `run --draft`. May be repeated; then all of them together are verified, too. "
            "Default: suffix, and head where one comes with Slipstream for the model.",
            "-d",
            "--draft",
            metavar="DRAFTER",
        ),
    ] = None,
    prompts: Annotated[
        Path | None, _option("Prompts of your own, in a file as for `slipstream bench`.", metavar="FILE")
    ] = None,
    count: Annotated[
        int | None,
        _option(f"Prompts that are answered. Default: {COUNT} of those that come with Slipstream, all of your own."),
    ] = None,
    seeds: Annotated[int, _option("Answers to each prompt, with seeds that count up from --seed. Default: 1.")] = 1,
    max_tokens: Annotated[int, _option(f"Most tokens of an answer. Default: {MAX_TOKENS}.")] = MAX_TOKENS,
    distribution: Annotated[
        bool, _option("Also test that tokens come as often as the model's distribution says.", "--distribution")
    ] = False,
    self_test: Annotated[
        bool, _option("Also try verifiers that are broken on purpose; each must be caught.", "--self-test")
    ] = False,
    json: Annotated[bool, _option("Print one JSON object with everything that was found.", "--json")] = False,
) -> None:
    """Certify that speculation does not change what a model says: same prompts, same seeds, with drafts and without.

    Where the runtime's rows are bit-exact, tokens and log-probabilities must be identical. Elsewhere each first
    difference is listed with the change of logits that it takes, beside the rounding that was measured. Exit code 1
    if there is a real difference. Ctrl-C ends it and shows what there is. Sampling, model and machine options are
    those of `run`.
    """
    from slipstream.cli.figures import to_json

    options = _generation_options(settings, max_tokens, count, seeds)
    scope = _scope(settings, draft, distribution=distribution, self_test=self_test)
    chosen = _prompts(prompts, count)
    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    with _load(settings, scope) as engine:
        verification = _verified(engine, _cases(engine, chosen, seed, seeds), options, scope)
        if json:
            Output().write(to_json(verification.as_dict()))
        else:
            _show(verification)
    if verification.partial:
        raise typer.Exit(EXIT_CODE)
    if verification.failed:
        raise typer.Exit(1)


def _generation_options(settings: Settings, max_tokens: int, count: int | None, seeds: int) -> "GenerationOptions":
    """How answers are sampled. Raises UsageError for impossible values."""
    from slipstream.core.params import check_whole

    check_whole("max_tokens", max_tokens, 1, 2**31)
    check_whole("--seeds", seeds, 1, 10_000)
    if count is not None:
        check_whole("--count", count, 1, 10**6)
    given = {**settings.generation_options(), "max_tokens": max_tokens}
    return cast("GenerationOptions", {name: value for name, value in given.items() if name != "seed"})


def _scope(settings: Settings, draft: list[str] | None, *, distribution: bool, self_test: bool) -> "Scope":
    """What is verified. Raises for drafters that cannot be, before anything is loaded."""
    from slipstream.engine.loading import default_draft, plan_draft
    from slipstream.measure.verification import Scope
    from slipstream.measure.ways import Drafting
    from slipstream.models import read_model_header, resolve

    settings.speculation_options()
    options = settings.model_options()
    given = list(dict.fromkeys(draft or [AUTO]))
    for spec in given:
        if replace(settings, draft=spec).drafter == "none":
            raise UsageError("--draft none drafts nothing, so there is nothing to verify; name a drafter.")
    header = read_model_header(resolve(settings.model))
    default = default_draft(header, options).split("+")
    drafters = list(dict.fromkeys(one for spec in given for one in (default if spec == AUTO else [spec])))
    for spec in drafters:
        plan_draft(spec, header, options)
    if settings.num_draft_tokens == 0:
        raise UsageError("--num-draft-tokens 0 drafts nothing, so there is nothing to verify; give 1 or more.")
    return Scope(drafters, Drafting(settings.num_draft_tokens, options), distribution, self_test)


def _prompts(path: Path | None, count: int | None) -> "Sequence[BenchPrompt]":
    """Prompts of all kinds in turn, so that any number of them is mixed."""
    from slipstream.measure.prompts import read_prompts, shipped_prompts
    from slipstream.measure.runner import in_turn

    if path is None:
        return in_turn(shipped_prompts())[: COUNT if count is None else count]
    return in_turn(read_prompts(path))[:count]


def _load(settings: Settings, scope: "Scope") -> "Engine":
    from slipstream.cli.loading import Loading
    from slipstream.engine import Engine

    options = scope.drafting.options
    with Loading(settings.model) as loading, interrupts.leaving():
        engine = Engine.load(settings.model, draft="none", speculation="off", options=options, progress=loading.report)
    for notice in engine.notices:
        terminal.say(notice)
    return engine


def _cases(engine: "Engine", prompts: "Sequence[BenchPrompt]", seed: int, seeds: int) -> "list[Case]":
    from slipstream.measure.cases import make_cases

    return make_cases(engine, prompts, seed, seeds)


def _verified(engine: "Engine", cases: "list[Case]", options: "GenerationOptions", scope: "Scope") -> "Verification":
    """Run it, with a bar on a terminal, until it is done or Ctrl-C is pressed."""
    from slipstream.measure.verification import Verification

    stop = Event()
    with progress_bar() as report, interrupts.cancelling(stop.set):
        verification = Verification(engine, cases, options, scope, _watch(stop, report))
        verification.run()
    return verification


def _watch(stop: Event, report: Any) -> "Watch":
    from slipstream.measure.watch import Stopped, Watch

    class Shown(Watch):
        """What is being done, as a bar; Ctrl-C ends it."""

        def begin(self, what: str, steps: int) -> None:
            self.what, self.done, self.steps = what, 0, steps
            self._show()

        def advance(self) -> None:
            self.done += 1
            self._show()

        def pulse(self) -> None:
            if stop.is_set():
                raise Stopped

        def _show(self) -> None:
            if report is not None:
                report(self.done, self.steps, self.what)

    return Shown()


def _show(verification: "Verification") -> None:
    """The report, its verdict in bold."""
    from slipstream.measure.verification_text import lines

    output = Output()
    *report, verdict = lines(verification)
    for line in report:
        output.write(f"{line}\n")
    output.write(verdict, BOLD)
    output.end_line()
