"""Which runtime runs a file: the native one where it can, llama.cpp for everything else.

Nothing is loaded to decide but, where layers could go to a GPU, the library that knows whether there is one.
"""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

from slipstream.core.protocols import Model
from slipstream.errors import RuntimeUnavailableError, SlipstreamError, UnsupportedModelError, UsageError
from slipstream.models.gguf import GgufHeader
from slipstream.runtime.llamacpp import binding, load_llamacpp

RuntimeName = Literal["auto", "native", "llamacpp"]
Progress = Callable[[float], None]
"""Called while a model loads with the fraction of its weights, 0 to 1, that is ready to compute with."""

OTHERWISE = "or choose the runtime auto or llamacpp for it"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How one file is loaded; the fields mean what they mean to `load_native` and `load_llamacpp`."""

    runtime: RuntimeName = "auto"
    context_length: int | None = None
    max_sequences: int = 1
    threads: int | None = None
    gpu_layers: int | str = "auto"
    flash_attention: str = "auto"
    kv_type: str = "f16"

    def __post_init__(self) -> None:
        """Raise UsageError for a runtime that does not exist."""
        runtime_named("runtime", self.runtime)


class Choice(NamedTuple):
    """The runtime that a file gets. notice: why llama.cpp, for people, where they might expect the native one."""

    runtime: Literal["native", "llamacpp"]
    notice: str | None = None


class _Obstacle(NamedTuple):
    """What keeps a file from the native runtime.

    notice:  where llama.cpp takes it
    refusal: where it may not
    """

    notice: str
    refusal: SlipstreamError


def runtime_named(option: str, value: str) -> RuntimeName:
    """`value`, if it is "auto" or a runtime. Raises UsageError, which calls it `option`, for anything else."""
    names = get_args(RuntimeName)
    if value in names:
        return cast(RuntimeName, value)
    near = difflib.get_close_matches(str(value).lower(), names, 1, 0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise UsageError(f"{option} must be auto, native or llamacpp, not {value!r}{hint}")


def choose(header: GgufHeader, options: LoadOptions) -> Choice:
    """The runtime for a file. "auto" is native unless the file, an option or a GPU asks for llama.cpp.

    Raises, where native was asked for and cannot be, UnsupportedModelError (the file), UsageError (an option) or
    RuntimeUnavailableError (not built for this Python).
    """
    if options.runtime == "llamacpp" or (options.runtime == "auto" and _goes_to_gpu(options.gpu_layers)):
        return Choice("llamacpp")
    obstacle = _obstacle(header, options)
    if obstacle is None:
        return Choice("native")
    if options.runtime == "native":
        raise obstacle.refusal
    return Choice("llamacpp", obstacle.notice)


def load(
    path: str | os.PathLike[str], choice: Choice, options: LoadOptions, *, progress: Progress | None = None
) -> Model:
    """Load a file with the runtime that `choose` gave for it and these options.

    progress: called by the native runtime only, from this thread
    Raises what the runtime raises: `load_native`, `load_llamacpp`.
    """
    if choice.runtime == "llamacpp":
        return load_llamacpp(
            path,
            context_length=options.context_length,
            max_sequences=options.max_sequences,
            threads=options.threads,
            gpu_layers=options.gpu_layers,
            flash_attention=options.flash_attention,
            kv_type_k=options.kv_type,
            kv_type_v=options.kv_type,
        )
    from slipstream.runtime.native import load_native

    return load_native(
        path,
        context_length=options.context_length,
        max_sequences=options.max_sequences,
        threads=options.threads,
        progress=progress,
    )


def _goes_to_gpu(layers: int | str) -> bool:
    """Whether layers go to a GPU, or were to: llama.cpp then says that there is none."""
    return binding.installed() and binding.supports_gpu() if layers == "auto" else layers != 0


def _obstacle(header: GgufHeader, options: LoadOptions) -> _Obstacle | None:
    """What keeps this file, with these options, from the native runtime."""
    name = header.path.name
    if options.gpu_layers not in ("auto", 0):
        fact = f" computes on the CPU and {options.gpu_layers} layers were asked for on a GPU"
        return _lacking(name, fact, f"leave them at auto or 0, {OTHERWISE}", UsageError)
    if options.kv_type != "f16":
        fact = f"'s KV cache is always f16 and {options.kv_type} was asked for"
        return _lacking(name, fact, f"leave the KV cache at f16, {OTHERWISE}", UsageError)
    if options.flash_attention not in ("auto", "on"):
        fact = f"'s attention is always fused and flash attention was asked to be {options.flash_attention}"
        return _lacking(name, fact, f"leave it at auto, {OTHERWISE}", UsageError)
    return _unsupported(header)


def _unsupported(header: GgufHeader) -> _Obstacle | None:
    """What the native runtime itself says of this file, if it is there to say anything."""
    name = header.path.name
    try:
        from slipstream.runtime.native import default_instruction_set, unsupported

        if reason := unsupported(header):
            return _Obstacle(
                f"{name} runs on llama.cpp; the native runtime cannot run it: {reason}.",
                UnsupportedModelError(
                    f"The native runtime cannot run {name}: {reason}; {OTHERWISE.removeprefix('or ')}."
                ),
            )
        default_instruction_set()  # the extension itself
    except ImportError as error:
        fact = f" is not built for this Python ({error})"
        return _lacking(name, fact, f"reinstall slipstream-decoding, {OTHERWISE}", RuntimeUnavailableError)
    return None


def _lacking(name: str, fact: str, remedy: str, error: type[SlipstreamError]) -> _Obstacle:
    """An obstacle that is not the file's; `fact` follows "the native runtime"."""
    return _Obstacle(
        f"{name} runs on llama.cpp, because the native runtime{fact}.",
        error(f"The native runtime{fact}; {remedy}."),
    )
