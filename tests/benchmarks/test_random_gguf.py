"""Random weights of the shapes, types and sizes of a real file's."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from benchmarks.random_gguf import main, randomise

ROWS, COLUMNS = 64, 256
TYPES = ("Q4_0", "Q4_1", "Q8_0", "F16", "F32")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of zeros: a norm, a bias, and a matrix of each type."""
    path = tmp_path / "source.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_tensor("norm.weight", np.zeros(COLUMNS, np.float32))
    writer.add_tensor("query.bias", np.zeros(COLUMNS, np.float32))
    for name in TYPES:
        kind = GGMLQuantizationType[name]
        zeros = np.zeros((ROWS, COLUMNS), np.float32)
        writer.add_tensor(f"{name}.weight", quants.quantize(zeros, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_only_the_weights_differ(source: Path, tmp_path: Path) -> None:
    made = tmp_path / "random.gguf"
    randomise(source, made)
    before, after = GGUFReader(source), GGUFReader(made)
    begin = int(after.tensors[0].data_offset)
    assert made.stat().st_size == source.stat().st_size
    assert made.read_bytes()[:begin] == source.read_bytes()[:begin]
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert (old.name, old.tensor_type, old.data_offset) == (new.name, new.tensor_type, new.data_offset)


@pytest.mark.parametrize("name", TYPES)
def test_values_have_the_size_of_a_trained_matrix(source: Path, tmp_path: Path, name: str) -> None:
    made = tmp_path / "random.gguf"
    randomise(source, made)
    [tensor] = [tensor for tensor in GGUFReader(made).tensors if tensor.name == f"{name}.weight"]
    values = quants.dequantize(np.array(tensor.data), tensor.tensor_type)
    assert np.std(values) == pytest.approx(COLUMNS**-0.5, rel=0.1)
    assert abs(np.mean(values)) < 0.1 * COLUMNS**-0.5
    assert np.mean(values == 0) < 0.1, "no zeros to skip"


def test_norms_are_around_one_and_biases_around_zero(source: Path, tmp_path: Path) -> None:
    made = tmp_path / "random.gguf"
    randomise(source, made)
    norm, bias = (np.array(tensor.data) for tensor in GGUFReader(made).tensors[:2])
    for vector, mean in ((norm, 1), (bias, 0)):
        assert np.mean(vector) == pytest.approx(mean, abs=0.05)
        assert 0 < np.std(vector) < 0.2


def test_the_source_is_not_overwritten(source: Path) -> None:
    before = source.read_bytes()
    with pytest.raises(SystemExit, match="the destination is the source"):
        main([str(source), str(source)])
    assert source.read_bytes() == before
