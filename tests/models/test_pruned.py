"""Copies of a model with some of its layers."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from slipstream.core.protocols import Segment
from slipstream.errors import UnsupportedModelError
from slipstream.models import read_model_header
from slipstream.models.layer_sets import Layers, parse_layers, spelled
from slipstream.models.pruned import check_layers, period_of, pruned_bytes, write_pruned
from slipstream.runtime.llamacpp import load_llamacpp
from slipstream.runtime.native import load_native
from tests.tiny_models import Shape, tiny_decoder, tiny_llama

SHAPE = Shape(width=128, heads=4, key_value_heads=2, feed_forward=96, layers=6)


def pruned(source: Path, layers: Layers, told: list[float] | None = None) -> Path:
    destination = source.with_name("pruned.gguf")
    write_pruned(read_model_header(source), layers, destination, (told if told is not None else []).append)
    return destination


@pytest.mark.parametrize("storage", ["F32", "Q4_0"])
@pytest.mark.parametrize("split", [0, 7])
def test_kept_layers_are_numbered_anew_and_have_their_bytes(tmp_path: Path, storage: str, split: int) -> None:
    source = tiny_llama(tmp_path / "six.gguf", shape=SHAPE, storage=storage, split=split)
    layers, told = (0, 2, 5), []
    header = read_model_header(source)
    copy = pruned(source, layers, told)
    assert told[-1] == 1.0
    parts = [gguf.GGUFReader(part) for part in header.parts]
    before = {tensor.name: tensor for part in parts for tensor in part.tensors}
    after = {tensor.name: tensor for tensor in gguf.GGUFReader(copy).tensors}
    names = {f"blk.{place}.": f"blk.{layer}." for place, layer in enumerate(layers)}
    for name, tensor in after.items():
        prefix = next((one for one in names if name.startswith(one)), "")
        original = before[names[prefix] + name.removeprefix(prefix) if prefix else name]
        assert tensor.tensor_type == original.tensor_type
        assert np.array_equal(tensor.data, original.data)
    assert len(after) == 3 + (len(before) - 3) * 3 // 6
    found = read_model_header(copy)
    assert found.integer("llama.block_count") == 3
    assert found.tensor_bytes == pruned_bytes(header, layers)
    assert {k: v for k, v in found.metadata.items() if isinstance(v, str)} == {
        k: v for k, v in header.metadata.items() if isinstance(v, str)
    }


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_the_copy_says_what_these_layers_of_the_model_say(tmp_path: Path, architecture: str) -> None:
    """In the native runtime the same bits; and llama.cpp loads it and agrees."""
    source = tiny_decoder(tmp_path / "six.gguf", architecture, shape=SHAPE)
    layers = (0, 1, 2) if architecture == "gemma3" else (0, 1, 5)
    copy, tokens = pruned(source, layers), list(range(40, 90))
    whole, part = (load_native(path, context_length=256, threads=1) for path in (source, copy))
    rows = [
        np.array(model.forward([Segment(model.open_session(), tokens, outputs=1)], layers=chosen)[0].logits(49))
        for model, chosen in ((whole, layers), (part, None))
    ]
    whole.close()
    part.close()
    assert rows[0].tobytes() == rows[1].tobytes()
    other = load_llamacpp(copy, context_length=256, threads=1)
    theirs = other.forward([Segment(other.open_session(), tokens, outputs=1)])[0].logits(49)
    assert np.abs(theirs - rows[0]).max() < 0.1 * np.abs(rows[0]).max()
    other.close()


def test_an_architecture_that_nobody_looked_at_is_refused(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "six.gguf", shape=SHAPE)
    header = read_model_header(source)
    for metadata in (
        {"general.architecture": "jamba", "jamba.block_count": 6},
        {"general.architecture": "gemma3", "gemma3.block_count": 62},
        {"general.architecture": "llama", "llama.block_count": 6, "llama.nextn_predict_layers": 1},
        {"general.architecture": "llama", "llama.block_count": 6, "llama.attention.head_count_kv": np.arange(6)},
    ):
        changed = type(header)(header.path, 3, metadata, header.tensors, 0, 0)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedModelError, match=r"A copy of six\.gguf with fewer layers cannot be made"):
            period_of(changed)


def test_a_pattern_must_go_on(tmp_path: Path) -> None:
    header = read_model_header(tiny_decoder(tmp_path / "six.gguf", "gemma3", shape=SHAPE))
    assert period_of(header) == 3
    check_layers(header, (0, 1, 2))
    check_layers(header, (3, 4, 5))
    check_layers(header, (0, 4, 5))
    with pytest.raises(UnsupportedModelError, match="with the layers 0,2-3 cannot be made, because every 3 of them"):
        check_layers(header, (0, 2, 3))


@pytest.mark.parametrize("text", ["0", "0-1", "0,2-4", "1,3,5", "0-4"])
def test_sets_are_spelt_as_they_are_read(text: str) -> None:
    assert spelled(parse_layers(text, 6, "six")) == text
