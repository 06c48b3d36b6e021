"""Every architecture but llama, which `test_model.py` has: the same numbers as llama.cpp, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from slipstream.models.gguf import read_header
from slipstream.runtime import Choice, LoadOptions, choose
from slipstream.runtime.native import unsupported
from slipstream.runtime.native.architectures import ARCHITECTURES
from tests.runtime.native.against_llamacpp import EXACT, distance, divergence, native_logits
from tests.tiny_models import VARIANTS, Metadata, Shape, tiny_decoder

OTHERS = [name for name in ARCHITECTURES if name != "llama"]

SHAPES = {
    "qwen2": [Shape(heads=2, layers=3), Shape(width=128, heads=4, key_value_heads=1)],  # heads fill the width
    "qwen3": [Shape(heads=4, key_value_heads=2, feed_forward=96, layers=3), Shape(heads=2, head_size=64)],
    "gemma3": [
        Shape(heads=4, key_value_heads=1, feed_forward=96, layers=3),
        Shape(width=96, heads=2, head_size=64, layers=4),
    ],
}
GELU = 3e-3
"""llama.cpp rounds to half precision what its table of GELU is asked for."""


def tolerance(architecture: str) -> float:
    return GELU if architecture == "gemma3" else EXACT


def test_every_architecture_is_tested() -> None:
    assert set(SHAPES) == set(OTHERS)
    assert set(VARIANTS) == set(ARCHITECTURES)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("architecture", "shape"), [(name, shape) for name in OTHERS for shape in SHAPES[name]], ids=str
)
def test_shapes(tmp_path: Path, architecture: str, shape: Shape, tied: bool) -> None:
    path = tiny_decoder(tmp_path / "it.gguf", architecture, shape=shape, tied=tied)
    assert distance(path) < tolerance(architecture)


@pytest.mark.parametrize("architecture", OTHERS)
def test_it_is_the_runtime_that_files_get(tmp_path: Path, architecture: str) -> None:
    header = read_header(tiny_decoder(tmp_path / "it.gguf", architecture, shape=SHAPES[architecture][0]))
    assert choose(header, LoadOptions(gpu_layers=0)) == Choice("native")


LAYERS = {
    "qwen2": Shape(width=896, heads=14, key_value_heads=2, head_size=64, feed_forward=4864, layers=1),  # 2.5 0.5B
    "qwen3": Shape(width=1024, heads=16, key_value_heads=8, head_size=128, feed_forward=3072, layers=1),  # 0.6B
    "gemma3": Shape(width=640, heads=4, key_value_heads=1, head_size=256, feed_forward=2048, layers=3),  # 270M
}
"""Layers as real models have them."""


@pytest.mark.parametrize("architecture", OTHERS)
def test_layers_of_real_shapes(tmp_path: Path, architecture: str) -> None:
    """By mean divergence, in a format where neither rounds to 8 bits."""
    path = tiny_decoder(tmp_path / "it.gguf", architecture, shape=LAYERS[architecture], storage="F16")
    assert divergence(path) < 1e-5


# ---- What the numbers hang on ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", OTHERS)
@pytest.mark.parametrize(
    "extra",
    [
        {"rope.freq_base": 500000.0},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
        {"attention.layer_norm_rms_epsilon": 0.1},
    ],
    ids=str,
)
def test_metadata_of_all(tmp_path: Path, architecture: str, extra: Metadata) -> None:
    shape = SHAPES[architecture][0]
    named = {f"{architecture}.{key}": value for key, value in extra.items()}
    path = tiny_decoder(tmp_path / "it.gguf", architecture, shape=shape, extra=named)
    assert distance(path) < tolerance(architecture)
    plain = native_logits(tiny_decoder(tmp_path / "plain.gguf", architecture, shape=shape))
    assert np.abs(native_logits(path) - plain).max() > 0.01


@pytest.mark.parametrize(
    ("layers", "extra"),
    [
        (3, {"gemma3.attention.sliding_window": 1}),
        (3, {"gemma3.attention.sliding_window": 17}),
        (3, {"gemma3.attention.sliding_window": 4096}),
        (3, {"gemma3.attention.sliding_window": 0}),  # all layers see everything
        (3, {"gemma3.attention.sliding_window_pattern": 2}),
        (3, {"gemma3.rope.freq_base_swa": 500.0}),
        (7, {"gemma3.attention.sliding_window_pattern": 6}),
        (62, {}),  # the 27B model's scale
    ],
    ids=str,
)
def test_metadata_of_gemma3(tmp_path: Path, layers: int, extra: Metadata) -> None:
    shape = Shape(heads=4, key_value_heads=1, feed_forward=96, layers=layers)
    path = tiny_decoder(tmp_path / "it.gguf", "gemma3", shape=shape, extra=extra)
    assert distance(path) < GELU
    plain = native_logits(tiny_decoder(tmp_path / "plain.gguf", "gemma3", shape=SHAPES["gemma3"][0]))
    assert np.abs(native_logits(path) - plain).max() > 0.01


# ---- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "extra", "reason"),
    [
        ("qwen2", {"qwen2.rope.scaling.type": "yarn"}, "its rotary embedding is scaled by 'yarn'"),
        ("qwen3", {"qwen3.pooling_type": 3}, "it is an embedding model"),
        ("gemma3", {"gemma3.final_logit_softcapping": 30.0}, "it sets final_logit_softcapping"),
        ("gemma3", {"gemma3.attention.key_length_swa": 64}, "it sets attention.key_length_swa"),
        ("gemma3", {"gemma3.rope.dimension_count_swa": 32}, "it sets rope.dimension_count_swa"),
        ("gemma3", {"gemma3.rope.scaling.type": "yarn"}, "its rotary embedding is scaled by 'yarn'"),
        (
            "gemma3",
            {"gemma3.attention.sliding_window": -1.0},
            "its attention.sliding_window is not one whole number in a sensible range",
        ),
        (
            "gemma3",
            {"gemma3.attention.sliding_window_pattern": 0},
            "its attention.sliding_window_pattern is not one whole number in a sensible range",
        ),
    ],
    ids=str,
)
def test_metadata_that_is_refused(tmp_path: Path, architecture: str, extra: Metadata, reason: str) -> None:
    path = tiny_decoder(tmp_path / "it.gguf", architecture, shape=SHAPES[architecture][0], extra=extra)
    assert unsupported(read_header(path)) == reason


@pytest.mark.parametrize(
    ("architecture", "tensor", "rows", "reason"),
    [
        ("qwen2", "blk.0.attn_q.bias", None, "it has no tensor blk.0.attn_q.bias"),
        ("qwen2", "output.bias", 271, "it has tensors that its architecture does not use (output.bias)"),
        ("qwen2", "blk.0.attn_output.bias", 64, "it has tensors that its architecture does not use"),
        ("qwen3", "blk.1.attn_k_norm.weight", None, "it has no tensor blk.1.attn_k_norm.weight"),
        ("qwen3", "blk.0.attn_q.bias", 128, "it has tensors that its architecture does not use (blk.0.attn_q.bias)"),
        ("gemma3", "blk.0.post_ffw_norm.weight", None, "it has no tensor blk.0.post_ffw_norm.weight"),
        ("gemma3", "dense_2.weight", 64, "it has tensors that its architecture does not use (dense_2.weight)"),
    ],
)
def test_tensors_that_are_refused(
    tmp_path: Path, architecture: str, tensor: str, rows: int | None, reason: str
) -> None:
    tensors = {tensor: None if rows is None else np.zeros(rows, np.float32)}
    path = tiny_decoder(tmp_path / "it.gguf", architecture, shape=SHAPES[architecture][0], tensors=tensors)
    found = unsupported(read_header(path))
    assert found is not None
    assert found.startswith(reason)
