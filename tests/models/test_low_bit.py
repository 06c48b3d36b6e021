"""Low-bit copies; ggml's own package says what they should be."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from slipstream.errors import UnsupportedModelError
from slipstream.models import read_model_header
from slipstream.models.low_bit import (
    planned_to_fall_back,
    planned_types,
    quantised_q4_0,
    quantised_q8_0,
    write_low_bit,
)
from slipstream.models.tensor_types import bytes_by_type, fallen_back
from tests.tiny_models import SUPER, Shape, tiny_llama

numbers = st.floats(0.0009765625, 1000, width=32)
blocks = arrays(np.float32, (4, 32), elements=numbers | numbers.map(lambda x: -x) | st.just(0.0))


@given(blocks)
def test_blocks_are_those_of_ggml(numbers: np.ndarray) -> None:
    q4_0, q8_0 = (gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind]) for kind in ("Q4_0", "Q8_0"))
    assert quantised_q4_0(numbers.reshape(-1)).tobytes() == q4_0.tobytes()
    assert quantised_q8_0(numbers.reshape(-1)).tobytes() == q8_0.tobytes()


def copied(source: Path, destination: Path) -> list[float]:
    """Make a copy; returns the fractions that were reported."""
    fractions: list[float] = []
    write_low_bit(read_model_header(source), destination, fractions.append)
    return fractions


@pytest.mark.parametrize("storage", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_matrices_are_as_the_quantiser_has_them_and_the_rest_as_it_was(
    tmp_path: Path, storage: str, tied: bool
) -> None:
    source, copy = tiny_llama(tmp_path / "x.gguf", storage=storage, tied=tied), tmp_path / "copy.gguf"
    fractions = copied(source, copy)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    before, after = (gguf.GGUFReader(path) for path in (source, copy))
    assert [one.name for one in after.tensors] == [one.name for one in before.tensors]
    output = "token_embd.weight" if tied else "output.weight"
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert list(new.shape) == list(old.shape)
        if len(old.shape) < 2:
            assert new.data.tobytes() == old.data.tobytes()
            continue
        kind = gguf.GGMLQuantizationType.Q8_0 if old.name == output else gguf.GGMLQuantizationType.Q4_0
        numbers = gguf.quants.dequantize(old.data, old.tensor_type).astype(np.float32)
        assert new.tensor_type == kind
        assert new.data.tobytes() == gguf.quants.quantize(numbers, kind).tobytes(), old.name


def test_what_the_file_says_is_kept_but_for_its_type(tmp_path: Path) -> None:
    source, copy = tiny_llama(tmp_path / "x.gguf", storage="F16"), tmp_path / "copy.gguf"
    copied(source, copy)
    before, after = read_model_header(source), read_model_header(copy)
    assert set(after.metadata) == set(before.metadata)
    for key, value in before.metadata.items():
        if key != "general.file_type" and isinstance(value, str | int | float):
            assert after.metadata[key] == value, key
    assert after.file_size < before.file_size / 2


def test_a_split_model_becomes_one_file(tmp_path: Path) -> None:
    first = tiny_llama(tmp_path / "x-00001-of-00003.gguf", storage="F16", split=3)
    copied(first, tmp_path / "copy.gguf")
    after = read_model_header(tmp_path / "copy.gguf")
    assert after.parts == (tmp_path / "copy.gguf",)
    assert [one.name for one in after.tensors] == [one.name for one in read_model_header(first).tensors]


def test_rows_that_are_no_whole_blocks_stay_as_they_are(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "x.gguf", storage="F16", shape=Shape(feed_forward=80))
    copied(source, tmp_path / "copy.gguf")
    kinds = {one.name: one.type.name for one in read_model_header(tmp_path / "copy.gguf").tensors}
    assert kinds["blk.0.ffn_down.weight"] == "F16"
    assert kinds["blk.0.ffn_up.weight"] == "Q4_0"


@pytest.mark.parametrize("shape", [Shape(), Shape(feed_forward=80)])
@pytest.mark.parametrize("tied", [True, False])
def test_what_it_will_be_made_of_is_known_before(tmp_path: Path, shape: Shape, tied: bool) -> None:
    source = tiny_llama(tmp_path / "x.gguf", storage="F16", shape=shape, tied=tied)
    header = read_model_header(source)
    copied(source, tmp_path / "copy.gguf")
    copy = read_model_header(tmp_path / "copy.gguf")
    assert planned_types(header) == bytes_by_type(copy.tensors)
    assert planned_to_fall_back(header) == fallen_back(copy)


def test_four_bits_cannot_become_fewer(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "x.gguf", storage="Q4_K", shape=SUPER)
    with pytest.raises(UnsupportedModelError, match="of which no low-bit copy can be made"):
        copied(source, tmp_path / "copy.gguf")
    assert not (tmp_path / "copy.gguf").exists()


def test_numbers_too_small_for_a_scale_are_zero() -> None:
    tiny = np.full(32, 1e-40, np.float32)
    assert not quantised_q8_0(tiny)[:, 2:].any()
    assert not quantised_q4_0(tiny)[:, :1].any()
