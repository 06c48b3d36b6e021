"""`slipstream advise`: whether to draft for a model here, and with what."""

from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import terminal
from slipstream.cli.interrupt import EXIT_CODE, interrupts
from slipstream.cli.measuring import TimeBar
from slipstream.cli.settings import Settings, with_settings
from slipstream.errors import StorageError, UsageError

if TYPE_CHECKING:
    from slipstream.engine import Engine
    from slipstream.measure.advise import Advice
    from slipstream.measure.candidates import Candidate, Candidates
    from slipstream.measure.prompts import BenchPrompt
    from slipstream.models import GgufHeader

DEFAULT_MINUTES = 3.0
LEAST_MINUTES, MOST_MINUTES = 0.05, 24 * 60.0
DEFAULT_MAX_TOKENS = 96
"""Of an answer: enough for a drafter to show what it can do."""

WITHOUT = ("draft", "corpus", "speculation", "explain", "show_accepted", "system", "think", "stop")
"""Options of `run` that mean nothing here."""


def _advise(
    settings: Settings,
    *,
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            "--candidates",
            "-c",
            metavar="DRAFTER",
            help="A drafter to measure: suffix, a model like --model, or several joined by plus signs. May be "
            "repeated. Default: suffix, suffix+head where a head comes with Slipstream for the model, and the models "
            "of the same vocabulary that are found on this machine.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Your own prompts, in a file as for `slipstream bench`. Default: those of Slipstream.",
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kinds", metavar="KIND", help="Prompts of this kind only; several with commas, or repeated. Default: all."
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes",
            help="About how long it may take; more makes intervals narrower. Default: 3.",
            show_default=False,
        ),
    ] = DEFAULT_MINUTES,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens", help=f"Most tokens of an answer. Default: {DEFAULT_MAX_TOKENS}.", show_default=False
        ),
    ] = DEFAULT_MAX_TOKENS,
    save: Annotated[
        bool,
        typer.Option("--save", help="Keep the verdict, so that run and chat use it for this model from now on."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with everything that was found.")] = False,
) -> None:
    """Measure which drafter makes a model faster on this machine, and whether any does.

    Plain decoding and each candidate answer the same prompts in turn. Prints for each kind of prompt the speed-up with
    its 95 % interval beside what costs and acceptance predict, what the drafter takes of memory, and a verdict, which
    can be that plain decoding is as fast.
    """
    from slipstream.cli.figures import to_json
    from slipstream.cli.terminal import Output
    from slipstream.measure.advise_text import lines

    _check(settings, minutes, max_tokens)
    target, asked = _header(settings), _prompts(prompts, kinds)
    drafters = _candidates(candidates, target, settings)
    advice = _measured(settings, target, drafters, asked, minutes, max_tokens)
    profile, trouble = None, None
    try:
        profile = _save(advice, target, settings) if save else None
    except StorageError as error:  # minutes were spent on what there is to show
        trouble = error
    output = Output()
    if json:
        output.write(to_json(advice.as_dict() | {"profile": None if profile is None else str(profile)}))
    else:
        output.write("\n".join(lines(advice)))
        output.end_line()
    if profile is not None:
        terminal.say(f"Saved to {profile}; run and chat use it for {advice.target} from now on.")
    if trouble is not None:
        raise trouble
    if advice.partial:
        raise typer.Exit(EXIT_CODE)
    if advice.verdict.answer == "unknown":
        raise typer.Exit(1)


_advise.__name__ = "advise"
advise = with_settings(_advise, without=WITHOUT)


def _check(settings: Settings, minutes: float, max_tokens: int) -> None:
    """Refuse what cannot be, before anything is read."""
    from slipstream.core.params import check_whole

    check_whole("--max-tokens", max_tokens, 1, 2**31)
    settings.model_options(), settings.generation_options(), settings.speculation_options()
    if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise UsageError(f"--minutes must be from {LEAST_MINUTES:g} to {MOST_MINUTES:g}, not {minutes:g}.")


def _header(settings: Settings) -> "GgufHeader":
    from slipstream.models import read_model_header, resolve

    return read_model_header(resolve(settings.model))


def _prompts(path: Path | None, kinds: list[str] | None) -> "list[BenchPrompt]":
    from slipstream.measure.prompts import read_prompts, select, shipped_prompts

    wanted = [kind.strip() for one in kinds or () for kind in one.split(",")] or None
    return shipped_prompts(wanted) if path is None else select(read_prompts(path), wanted)


def _candidates(specs: list[str] | None, target: "GgufHeader", settings: Settings) -> "Candidates":
    from slipstream.measure.candidates import found_candidates, named_candidates

    if not specs:
        return found_candidates(target, options=settings.model_options())
    candidates = named_candidates(specs, target, settings.model_options())
    if not candidates.chosen:
        reasons = " ".join(f"{one.name}: {one.reason}" for one in candidates.left_out)
        raise UsageError(f"None of the candidates can be measured. {reasons}")
    return candidates


def _measured(
    settings: Settings,
    target: "GgufHeader",
    candidates: "Candidates",
    prompts: "list[BenchPrompt]",
    minutes: float,
    max_tokens: int,
) -> "Advice":
    """Load the target and measure. Ctrl-C while it loads ends the program, later on the measurement."""
    from slipstream.cli.loading import Loading
    from slipstream.engine import Engine
    from slipstream.measure.advise import advise as measure
    from slipstream.measure.memory_bill import kv_bytes_of
    from slipstream.measure.study import PolicyOptions

    speculation = settings.speculation_options()
    policy: PolicyOptions = {"most": settings.num_draft_tokens}
    if settings.max_slowdown is not None:
        policy["max_slowdown"] = settings.max_slowdown
    with ExitStack() as stack:
        with Loading(settings.model) as loading, interrupts.leaving():
            options = settings.model_options()
            plain = stack.enter_context(
                Engine.load(target.path, speculation="off", options=options, progress=loading.report)
            )
        for notice in plain.notices:
            terminal.say(notice)

        def load(candidate: "Candidate") -> "Engine":
            return plain.sharing(draft=candidate.draft, options=options, **speculation)

        stop = Event()
        progress = stack.enter_context(TimeBar(minutes * 60, "loading candidates"))
        stack.enter_context(interrupts.cancelling(stop.set))
        return measure(
            plain,
            candidates,
            load,
            prompts,
            seconds=minutes * 60,
            kv_bytes=kv_bytes_of(plain.target, target),
            max_tokens=max_tokens,
            options=settings.generation_options(),
            policy=policy,
            progress=progress.report,
            should_stop=stop.is_set,
        )


def _save(advice: "Advice", target: "GgufHeader", settings: Settings) -> Path | None:
    """Write the profile; None, with a sentence, where there is nothing sure enough to be kept."""
    from importlib.metadata import version

    from slipstream.measure.lineup import cpu_name
    from slipstream.models import profiles
    from slipstream.models.fingerprint import fingerprint

    if advice.partial or advice.verdict.answer == "unknown":
        terminal.say("Nothing is saved, because the measurement is not finished; run it again.")
        return None
    winner = advice.winner
    found: dict[str, Any] = {"draft": "none"}
    if winner is not None and winner.overall.ratio is not None:
        ratio = winner.overall.ratio
        found = {
            "draft": winner.candidate.draft,
            "draft_runtime": winner.runtime if winner.runtime in ("native", "llamacpp") else "auto",
            "num_draft_tokens": settings.num_draft_tokens,
            "ratio": _rounded(ratio.value),
            "low": _rounded(ratio.low),
            "high": _rounded(ratio.high),
            "kinds": {kind: _rounded(one.ratio.value) for kind, one in winner.kinds.items() if one.ratio is not None},
        }
    profile = profiles.Profile(
        target=advice.target,
        fingerprint=fingerprint(target.path),
        runtime=advice.runtime,
        date=profiles.today(),
        machine=cpu_name(),
        version=version("slipstream-decoding"),
        **found,
    )
    return profiles.save(profile)


def _rounded(ratio: float) -> float:
    """For a profile, which takes no ratio of nothing."""
    return max(round(ratio, 3), 0.001)
