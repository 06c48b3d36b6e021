from pathlib import Path

import pytest

from slipstream.models import GgufHeader, TensorInfo
from slipstream.models.families import FAMILIES, family_of, small_siblings
from slipstream.models.gguf_types import TENSOR_TYPES


def header(name: str, architecture: str, tokenizer: str | None = None, billions: float = 8.0) -> GgufHeader:
    metadata = {"general.architecture": architecture, "general.name": name}
    if tokenizer is not None:
        metadata["tokenizer.ggml.pre"] = tokenizer
    tensor = TensorInfo("weight", TENSOR_TYPES[0], (round(billions * 1e6), 1000), 0, 0)
    return GgufHeader(Path("model.gguf"), 3, metadata, (tensor,), 0, 0)


@pytest.mark.parametrize(
    ("name", "architecture", "tokenizer", "family"),
    [
        ("Smollm2 1.7B 8k Mix7 Ep2 v2", "llama", "smollm", "SmolLM2"),
        ("Qwen2.5 7B Instruct", "qwen2", "qwen2", "Qwen2.5"),
        ("Qwen2.5 Coder 32B Instruct", "qwen2", "qwen2", "Qwen2.5-Coder"),
        ("DeepSeek R1 Distill Qwen 14B", "qwen2", "deepseek-r1-qwen", "DeepSeek-R1-Distill-Qwen"),
        ("Qwen3 30B A3B", "qwen3moe", "qwen2", "Qwen3"),
        ("Meta Llama 3.1 8B Instruct", "llama", "llama-bpe", "Llama 3"),
        ("gemma-3-27b-it", "gemma3", "default", "Gemma 3"),
        ("Qwen3.5 9B", "qwen3", "qwen2", None),
        ("Llama 2 7B Chat", "llama", "default", None),
        ("Mistral 7B", "llama", "default", None),
        ("Smollm2 1.7B with another tokenizer", "llama", "gpt-2", None),
    ],
)
def test_a_family_is_known_by_name_architecture_and_tokenizer(
    name: str, architecture: str, tokenizer: str, family: str | None
) -> None:
    found = family_of(header(name, architecture, tokenizer))
    assert (found and found.name) == family


def test_siblings_are_smaller_than_half_of_the_target_and_say_why() -> None:
    large = small_siblings(header("Smollm2 1.7B", "llama", "smollm", 1.7))
    assert [one.name for one in large] == ["SmolLM2-135M-Instruct", "SmolLM2-360M-Instruct"]
    assert all("tokenizer" in one.why for one in large)
    middle = small_siblings(header("Smollm2 360M", "llama", "smollm", 0.362))
    assert [one.name for one in middle] == ["SmolLM2-135M-Instruct"]
    assert small_siblings(header("Smollm2 135M", "llama", "smollm", 0.135)) == []
    assert small_siblings(header("unheard of", "llama", None)) == []


def test_every_sibling_is_of_its_own_family() -> None:
    for family in FAMILIES:
        for one in family.siblings:
            found = family_of(header(one.name, family.architectures[0], (family.tokenizers or (None,))[0]))
            assert found is family
