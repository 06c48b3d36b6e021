"""The options that `run` and `chat` share, and what they mean to the engine."""

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_type_hints

import typer

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engine import GenerationOptions, ModelOptions, SpeculationOptions

DEFAULT_MODEL = "smollm2-135m"
AUTO, HEAD = "auto", "head"
NAMED = ("suffix", "recycling", "lowbit", "layers", HEAD)
"""Drafters with a name of their own (`engine.loading.NAMED`, which is not imported for a help page)."""

CORPUS_VARIABLE = "SLIPSTREAM_CORPUS"
MODELS, SPECULATION, SAMPLING, TEXT, MACHINE = "Model", "Speculation", "Sampling", "Text", "Machine"
DRAFT_LENGTH = (
    "Tokens that are guessed at a time, 0 to 64: the most for --speculation auto (default 16, and 32 for a text with a "
    "prediction), always so many for on (default 4)."
)
FILE_OR = "Default: the value that the model's file recommends; if it recommends none at all"


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


@dataclass(frozen=True)
class Settings:
    """One field for each option; None is "not given", which leaves the choice to the engine."""

    model: Annotated[
        str,
        _option(
            MODELS,
            f"A .gguf file, a name that `slipstream models` lists, or hf:owner/repo/file.gguf. "
            f"Default: {DEFAULT_MODEL}.",
            "-m",
            "--model",
        ),
    ] = DEFAULT_MODEL
    ctx: Annotated[
        int | None,
        _option(MODELS, "Tokens the context holds. Default: what the model was trained for, at most 4096.", "--ctx"),
    ] = None
    draft: Annotated[
        str | None,
        _option(
            SPECULATION,
            "Who guesses the next tokens: none, suffix (looks for repetitions; needs no second model), recycling (what "
            "the model thought of the last time after the same token), lowbit (a copy of the model in four bits, made "
            "once), layers (the model with a part of its layers), head (the one that comes with Slipstream for the "
            "model, as for smollm2-135m), a model like --model, best with the same vocabulary, the path of a head that "
            "was trained for it, or several joined by plus signs, such as suffix+MODEL. Default: what `slipstream "
            "advise --save` found best for the model, else auto: suffix, and head where there is one.",
            "-d",
            "--draft",
            metavar="DRAFTER",
        ),
    ] = None
    corpus: Annotated[
        str | None,
        _option(
            SPECULATION,
            "Texts that suffix looks for repetitions in, besides the conversation, and that answers are added to: a "
            f"folder, on for the one in Slipstream's cache, or off. Default: for chat {CORPUS_VARIABLE}, else on; off "
            "elsewhere.",
            metavar="PATH|off",
        ),
    ] = None
    speculation: Annotated[
        Literal["auto", "on", "off"],
        _option(
            SPECULATION,
            "auto guesses as much as pays, by what costs were measured and how often guesses were right; on always "
            "guesses --num-draft-tokens; off guesses nothing. The text is the same. Default: auto.",
        ),
    ] = "auto"
    num_draft_tokens: Annotated[
        int | None,
        _option(
            SPECULATION,
            DRAFT_LENGTH,
        ),
    ] = None
    max_slowdown: Annotated[
        float | None,
        _option(
            SPECULATION,
            "Share of plain decoding's time that --speculation auto may lose in the worst case. Default: 0.03.",
        ),
    ] = None
    explain: Annotated[
        bool,
        _option(SPECULATION, "Say what speculation chose, why, and what it gained.", "--explain"),
    ] = False
    show_accepted: Annotated[
        bool | None,
        _option(
            SPECULATION,
            "Colour the tokens that were guessed right. Default: on a terminal with colours; elsewhere FORCE_COLOR=1 "
            "is needed, too.",
            "--show-accepted/--no-show-accepted",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        _option(
            SAMPLING,
            f"0 always takes the likeliest token; larger is more varied. {FILE_OR}, 0.7.",
            "--temperature",
            "--temp",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        _option(SAMPLING, "Choose among the K likeliest tokens; 0 is off. Default: the file's value, else 0."),
    ] = None
    top_p: Annotated[
        float | None,
        _option(SAMPLING, f"Choose among the likeliest tokens that have this probability together. {FILE_OR}, 0.95."),
    ] = None
    min_p: Annotated[
        float | None,
        _option(
            SAMPLING,
            f"Leave out tokens less likely than this share of the likeliest one's probability. {FILE_OR}, 0.05.",
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _option(SAMPLING, "Above 1: tokens that occurred become less likely. Default: the file's value, else 1 (off)."),
    ] = None
    presence_penalty: Annotated[
        float | None, _option(SAMPLING, "Taken once from the logit of every token that occurred. Default: 0 (off).")
    ] = None
    frequency_penalty: Annotated[
        float | None,
        _option(SAMPLING, "Taken from a token's logit for each time it occurred. Default: 0 (off)."),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        _option(SAMPLING, "Add VALUE to the logit of token ID; -inf bans it. May be repeated.", metavar="ID=VALUE"),
    ] = None
    seed: Annotated[
        int | None,
        _option(SAMPLING, "The same seed gives the same text, with speculation on or off. Default: random, and shown."),
    ] = None
    max_tokens: Annotated[
        int | None,
        _option(TEXT, "Most tokens of an answer. Default: until the model ends or the context is full."),
    ] = None
    stop: Annotated[list[str] | None, _option(TEXT, "End before this text. May be repeated.", metavar="TEXT")] = None
    system: Annotated[str | None, _option(TEXT, "Instructions for the model, ahead of the conversation.")] = None
    think: Annotated[
        bool | None,
        _option(
            TEXT,
            "Switch thinking on or off, for models that have a switch. Default: the model's own.",
            "--think/--no-think",
        ),
    ] = None
    runtime: Annotated[
        str,
        _option(
            MACHINE,
            "What computes: native (on the CPU, built for checking drafts), llamacpp (more kinds of models, and GPUs), "
            "or auto, which is native where it can run the model and no GPU would be used. Default: auto.",
            metavar="RUNTIME",
        ),
    ] = "auto"
    draft_runtime: Annotated[str, _option(MACHINE, "The same for a draft model. Default: auto.", metavar="RUNTIME")] = (
        "auto"
    )
    threads: Annotated[
        int | None, _option(MACHINE, "Threads that compute. Default: the physical cores this process may use.")
    ] = None
    gpu_layers: Annotated[
        str,
        _option(
            MACHINE,
            "Layers of the model on the GPU: a number, all, or auto, which is all if there is a GPU. "
            "`slipstream --version` lists the devices. Default: auto.",
            metavar="N",
        ),
    ] = "auto"
    draft_gpu_layers: Annotated[str, _option(MACHINE, "The same for a draft model. Default: auto.", metavar="N")] = (
        "auto"
    )
    flash_attention: Annotated[
        Literal["auto", "on", "off"], _option(MACHINE, "Fused attention. Default: auto, where it works.")
    ] = "auto"
    kv_type: Annotated[
        Literal["f16", "bf16", "f32", "q8_0", "q4_0"],
        _option(
            MACHINE,
            "Number format of the KV cache; q8_0 and q4_0 save memory. All but f16 need llamacpp. Default: f16.",
        ),
    ] = "f16"

    @property
    def drafter(self) -> str:
        """What `--draft` and `--speculation` come to. Raises UsageError for what can be no drafter."""
        draft = AUTO if self.draft is None else self.draft
        if not (draft and Path(draft).exists()):
            _check_drafter(draft)
        return "none" if self.speculation == "off" else draft

    def speculation_options(self) -> "SpeculationOptions":
        """How much is drafted. Raises UsageError for impossible values."""
        from slipstream.core.params import check_number

        options: SpeculationOptions = {"speculation": self.speculation, "num_draft_tokens": self.num_draft_tokens}
        if self.max_slowdown is not None:
            check_number("max_slowdown", self.max_slowdown, 0, 1)
            options["max_slowdown"] = self.max_slowdown
        return options

    def model_options(self) -> "ModelOptions":
        """How models are loaded. Raises UsageError for impossible values."""
        from slipstream.engine import ModelOptions
        from slipstream.runtime import runtime_named

        return ModelOptions(
            runtime=runtime_named("runtime", self.runtime),
            draft_runtime=runtime_named("draft_runtime", self.draft_runtime),
            context_length=self.ctx,
            threads=self.threads,
            gpu_layers=_layers("--gpu-layers", self.gpu_layers),
            draft_gpu_layers=_layers("--draft-gpu-layers", self.draft_gpu_layers),
            flash_attention=self.flash_attention,
            kv_type=self.kv_type,
            corpus=corpus_folder(self.corpus or "off"),
        )

    def generation_options(self) -> "GenerationOptions":
        """How tokens are chosen, only what was given. Raises UsageError for impossible values, before any loading."""
        from slipstream.core.params import SamplingParams

        names = {field.name for field in fields(SamplingParams)}
        sampling = {name: value for name, value in asdict(self).items() if name in names and value is not None}
        if self.logit_bias:
            sampling["logit_bias"] = dict(map(_bias, self.logit_bias))
        SamplingParams(**sampling)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens must be 1 or more, not {self.max_tokens}.")
        if "" in (self.stop or ()):
            raise UsageError("A stop string must not be empty.")
        given = {"max_tokens": self.max_tokens, "stop": self.stop, "logprobs": False, **sampling}
        return cast("GenerationOptions", given)


def corpus_folder(value: str) -> Path | None:
    """What `--corpus` comes to: None for off. Raises UsageError for an empty one."""
    from slipstream.corpus import corpus_directory

    if not value:
        raise UsageError("--corpus must be a folder, on or off, not empty.")
    if value in ("on", "off"):
        return corpus_directory() if value == "on" else None
    return Path(value).expanduser()


def usual_corpus() -> str:
    """Where a corpus is kept that nobody names: what the environment says, else in our cache."""
    return os.environ.get(CORPUS_VARIABLE) or "on"


def with_settings(function: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Give a command whose first parameter is a `Settings` all of its options.

    without: fields that mean nothing to this command and keep their defaults. A parameter of the command's own takes
             the place of a field with the same name.
    """
    own = list(inspect.signature(function).parameters.values())[1:]
    hints = get_type_hints(function, include_extras=True)
    mine = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    taken = {*without, *(parameter.name for parameter in mine)}
    shared = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(Settings)
        if field.name not in taken
    ]
    positional = [parameter for parameter in mine if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    keywords = [parameter for parameter in mine if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    parameters = [*positional, *shared, *keywords]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        settings = Settings(**{parameter.name: values.pop(parameter.name) for parameter in shared})
        function(settings, **values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del command.__wrapped__  # or its signature would be taken for this one's
    return command


def _check_drafter(spec: str) -> None:
    """Refuse slips of the pen and impossible combinations; whether there is such a model is seen later."""
    alone = (AUTO, "none")
    names = ", ".join((*alone, *NAMED))
    forms = f"--draft must be {names}, a model, a head's file, or several joined by plus signs, such as suffix+MODEL"
    if not spec.strip():
        raise UsageError(f"{forms}, not empty.")
    parts = spec.split("+")
    if len(parts) == 1 and spec in alone:
        return
    for part in parts:
        if part in alone:
            raise UsageError(f"{forms}; leave {part} out of {spec}.")
        if part.partition(":")[0] not in NAMED and (meant := difflib.get_close_matches(part, (*alone, *NAMED), 1, 0.7)):
            raise UsageError(f"{forms}; did you mean {meant[0]}?")
    if "" in parts and parts[0] == "suffix":  # paths and the hub's names may have plus signs in them
        raise UsageError(f"{forms}; {spec} names no model after the plus sign.")
    if parts.count("suffix") > 1:
        raise UsageError(f"{forms}; {spec} has suffix twice.")


def _layers(option: str, value: str) -> int | Literal["auto", "all"]:
    if value == "auto":
        return "auto"
    if value == "all":
        return "all"
    if not value.isdecimal():
        raise UsageError(f"{option} must be auto, all or a whole number from 0, not {value!r}.")
    return int(value)


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise UsageError(f"--logit-bias must be ID=VALUE, such as 42=-1.5 or 42=-inf, not {text!r}.") from None
