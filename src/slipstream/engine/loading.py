"""From names to loaded parts: the target, and the drafter that `--draft` asks for."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Drafter, Model
from slipstream.draft import CombinedDrafter, ModelDrafter, NoDrafter, SuffixDrafter
from slipstream.errors import UsageError
from slipstream.models import GgufHeader, Vocabulary, compare, read_model_header, resolve
from slipstream.runtime import load_llamacpp

DraftSpec = str | Path | Drafter | None
GpuLayers = int | Literal["auto", "all"]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How models are loaded.

    context_length:   tokens per sequence; None takes the model's own, up to a limit that fits most machines
    max_sequences:    sequences that can be decoded at once
    threads:          None takes the physical cores this process may use
    gpu_layers:       "auto" (all if there is a GPU), "all" or a number, for target and draft model separately
    flash_attention:  "auto", "on" or "off"
    kv_type:          "f16", "bf16", "f32", "q8_0" or "q4_0": type of the KV cache
    """

    context_length: int | None = None
    max_sequences: int = 1
    threads: int | None = None
    gpu_layers: GpuLayers = "auto"
    draft_gpu_layers: GpuLayers = "auto"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    kv_type: str = "f16"


def load_model(path: Path, options: ModelOptions, gpu_layers: GpuLayers) -> Model:
    """Load one GGUF with the llama.cpp runtime."""
    return load_llamacpp(
        path,
        context_length=options.context_length,
        max_sequences=options.max_sequences,
        threads=options.threads,
        gpu_layers=gpu_layers,
        flash_attention=options.flash_attention,
        kv_type_k=options.kv_type,
        kv_type_v=options.kv_type,
    )


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What `--draft` asks for, checked as far as headers tell.

    suffix: whether the suffix drafter takes part
    model:  the draft model's header, None without one
    shared: ids below this mean the same to both models
    """

    suffix: bool = False
    model: GgufHeader | None = None
    shared: int = 0


def plan_draft(spec: str, target: GgufHeader) -> DraftPlan:
    """Read a draft specification and compare the vocabularies, before any weights are loaded."""
    if spec in ("none", "suffix"):
        return DraftPlan(suffix=spec == "suffix")
    suffix = spec.startswith("suffix+")
    name = spec.removeprefix("suffix+")
    if name.partition("+")[0] in ("", "none", "suffix"):
        raise UsageError(f"The draft {spec!r} must be none, suffix, a model, or suffix+MODEL.")
    model = read_model_header(resolve(name))
    shared = compare(Vocabulary.from_header(target), Vocabulary.from_header(model))
    return DraftPlan(suffix, model, shared)


def load_drafter(plan: DraftPlan, target: Model, options: ModelOptions) -> Drafter:
    """Load what was planned."""
    if plan.model is None:
        return SuffixDrafter() if plan.suffix else NoDrafter()
    # the draft should follow wherever the target goes, as far as it was trained to
    length = min(target.context_length, plan.model.context_length or target.context_length)
    model = load_model(plan.model.path, replace(options, context_length=length), options.draft_gpu_layers)
    try:
        drafter = ModelDrafter(model, usable_size=plan.shared)
    except BaseException:
        model.close()
        raise
    return CombinedDrafter(SuffixDrafter(), drafter) if plan.suffix else drafter


def sampling_defaults(header: GgufHeader) -> SamplingParams:
    """The values the file recommends where it carries any, else ours."""
    recommended = header.sampling_defaults
    given: dict[str, Any] = {
        "temperature": recommended.temperature,
        "top_k": recommended.top_k,
        "top_p": recommended.top_p,
        "min_p": recommended.min_p,
        "repetition_penalty": recommended.repetition_penalty,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return SamplingParams()
    neutral = SamplingParams(top_k=0, top_p=1.0, min_p=0.0)
    return replace(neutral, **given)
