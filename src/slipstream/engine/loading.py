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

DraftSpec = str | Path | None
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


def load_drafter(spec: DraftSpec, target: Model, target_header: GgufHeader, options: ModelOptions) -> Drafter:
    """The drafter that `spec` names: none, suffix, a model, or suffix+model."""
    kind, _, model = str(spec or "none").partition("+")
    if kind == "none" and not model:
        return NoDrafter()
    if kind != "suffix":
        if model:
            raise UsageError(f"--draft {spec}: only suffix can be combined; write suffix+PATH.")
        return _load_model_drafter(str(spec), target, target_header, options)
    if not model:
        return SuffixDrafter()
    return CombinedDrafter(SuffixDrafter(), _load_model_drafter(model, target, target_header, options))


def _load_model_drafter(name: str, target: Model, target_header: GgufHeader, options: ModelOptions) -> ModelDrafter:
    """Compare the vocabularies before any weights are read, then load."""
    path = resolve(name)
    usable = compare(Vocabulary.from_header(target_header), Vocabulary.from_header(read_model_header(path)))
    # the draft must follow wherever the target goes
    options = replace(options, context_length=target.context_length)
    return ModelDrafter(load_model(path, options, options.draft_gpu_layers), usable_size=usable)


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
