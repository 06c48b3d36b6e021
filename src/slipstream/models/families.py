"""Families of models whose small members draft well for the large ones: by name only, nothing is fetched.

A member is listed where both hold: its tokenizer is the target's, so that token ids mean the same, and it was trained
on the same data or made from its larger relatives, so that it tends to say the same. A model of the same tokenizer
and another origin (a TinyLlama for Llama 2, say) is left out.
"""

import re
from dataclasses import dataclass
from math import prod

from slipstream.models.gguf import GgufHeader

LARGEST_SHARE = 0.5
"""A sibling with more than this share of the target's parameters costs too much to draft with."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A small model worth fetching. `parameters` in billions."""

    name: str
    parameters: float


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share a tokenizer and an origin.

    architectures: values of `general.architecture`
    pattern:       of the names that a member's header gives, in small letters without blanks, dashes and underscores
    tokenizers:    values of `tokenizer.ggml.pre`; empty where that does not tell families apart
    why:           what target and siblings have in common, for people
    """

    name: str
    architectures: tuple[str, ...]
    pattern: str
    tokenizers: tuple[str, ...]
    siblings: tuple[Sibling, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A sibling for one target, and why."""

    name: str
    parameters: float
    why: str


_QWEN = ("qwen2", "deepseek-r1-qwen")

# The first whose pattern fits is the one: special members come before the general ones.
FAMILIES = (
    Family(
        "SmolLM2",
        ("llama",),
        r"smollm2",
        ("smollm",),
        (Sibling("SmolLM2-135M-Instruct", 0.135), Sibling("SmolLM2-360M-Instruct", 0.362)),
        "all SmolLM2 models have one tokenizer of 49,152 tokens and were trained on the same data",
    ),
    Family(
        "DeepSeek-R1-Distill-Qwen",
        ("qwen2",),
        r"r1distillqwen",
        _QWEN,
        (Sibling("DeepSeek-R1-Distill-Qwen-1.5B", 1.78),),
        "both learned the same answers of DeepSeek-R1 and have Qwen2.5's tokenizer",
    ),
    Family(
        "Qwen2.5-Coder",
        ("qwen2",),
        r"qwen2\.?5coder",
        _QWEN,
        (Sibling("Qwen2.5-Coder-0.5B-Instruct", 0.494), Sibling("Qwen2.5-Coder-1.5B-Instruct", 1.54)),
        "all Qwen2.5-Coder models have one tokenizer and were trained on the same code",
    ),
    Family(
        "Qwen2.5",
        ("qwen2", "qwen2vl"),
        r"qwen2\.?5|qwq",
        _QWEN,
        (Sibling("Qwen2.5-0.5B-Instruct", 0.494), Sibling("Qwen2.5-1.5B-Instruct", 1.54)),
        "all Qwen2.5 models have one tokenizer (larger ones pad it) and were trained on the same data",
    ),
    Family(
        "Qwen3",
        ("qwen3", "qwen3moe"),
        r"qwen3(?!\.5|next|vl)",
        ("qwen2",),
        (Sibling("Qwen3-0.6B", 0.6), Sibling("Qwen3-1.7B", 1.72)),
        "all Qwen3 models have one tokenizer, and the small ones learned from the large ones",
    ),
    Family(
        "Llama 3",
        ("llama",),
        r"llama3",
        ("llama-bpe", "llama3", "llama-v3"),
        (Sibling("Llama-3.2-1B-Instruct", 1.24), Sibling("Llama-3.2-3B-Instruct", 3.21)),
        "Llama 3 models have one tokenizer of 128,256 tokens, and Llama 3.2 1B and 3B were made from Llama 3.1 8B",
    ),
    Family(
        "Gemma 3",
        ("gemma3",),
        r"gemma3(?!n)",
        (),
        (Sibling("gemma-3-270m-it", 0.268), Sibling("gemma-3-1b-it", 1.0)),
        "all Gemma 3 models have one tokenizer of 262,144 tokens and were distilled in the same way",
    ),
    Family(
        "Falcon3",
        ("llama",),
        r"falcon3",
        ("falcon3",),
        (Sibling("Falcon3-1B-Instruct", 1.67),),
        "Falcon3 models have one tokenizer, and the 1B was pruned from its larger relatives",
    ),
    Family(
        "OLMo 2",
        ("olmo2",),
        r"olmo2",
        (),
        (Sibling("OLMo-2-0425-1B-Instruct", 1.48),),
        "all OLMo 2 models have one tokenizer and were trained on the same data",
    ),
)


def parameters(header: GgufHeader) -> int:
    """Numbers in all tensors of a file."""
    return sum(prod(tensor.shape) for tensor in header.tensors)


def family_of(header: GgufHeader) -> Family | None:
    """The family that a model belongs to by what its header says, None if it is none of those known here."""
    tokenizer = header.text("tokenizer.ggml.pre")
    names = _names(header)
    for family in FAMILIES:
        known = tokenizer is None or not family.tokenizers or tokenizer in family.tokenizers
        if header.architecture in family.architectures and known and re.search(family.pattern, names):
            return family
    return None


def small_siblings(header: GgufHeader) -> list[Suggestion]:
    """Small models that should draft well for this target, smallest first."""
    family = family_of(header)
    if family is None:
        return []
    most = LARGEST_SHARE * parameters(header) / 1e9
    return [Suggestion(one.name, one.parameters, family.why) for one in family.siblings if one.parameters <= most]


def _names(header: GgufHeader) -> str:
    """Everything that a header says about where the model comes from, made comparable."""
    keys = ("general.basename", "general.name", "general.finetune", "general.base_model.0.name")
    texts = [header.text(key) or "" for key in keys]
    return " ".join(re.sub(r"[\s_-]+", "", text.lower()) for text in [*texts, header.path.stem])
