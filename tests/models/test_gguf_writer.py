from pathlib import Path

import gguf
import numpy as np
import pytest

from slipstream.models.gguf import read_header
from slipstream.models.gguf_writer import stored, stored_bytes, write_gguf
from slipstream.models.packed_strings import PackedStrings

METADATA = {
    "general.architecture": "llama",
    "a.flag": True,
    "a.count": 7,
    "a.number": 0.5,
    "a.texts": PackedStrings.pack(["one", "zwölf", ""]),
    "a.layers": np.array([2, 4, 7], np.int32),
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    tensors = [
        stored("vector", random.standard_normal(5).astype(np.float32), "F32"),
        stored("ids", np.array([3, 1, 2]), "I64"),
        *(stored(kind, random.standard_normal((3, 64)).astype(np.float32), kind) for kind in ("F16", "Q8_0", "Q4_0")),
    ]
    write_gguf(tmp_path / "file.gguf", METADATA, tensors)
    return tmp_path / "file.gguf"


def test_our_reader_finds_what_was_written(written: Path) -> None:
    header = read_header(written)
    for key, value in METADATA.items():
        found = header.metadata[key]
        assert (found == value).all() if isinstance(value, np.ndarray) else found == value
    assert [(one.name, one.type.name, one.shape) for one in header.tensors] == [
        ("vector", "F32", (5,)),
        ("ids", "I64", (3,)),
        ("F16", "F16", (64, 3)),
        ("Q8_0", "Q8_0", (64, 3)),
        ("Q4_0", "Q4_0", (64, 3)),
    ]
    for one in header.tensors:
        assert one.nbytes == stored_bytes(one.shape[::-1], one.type.name)


def test_so_does_the_gguf_package(written: Path) -> None:
    reader = gguf.GGUFReader(written)
    assert reader.fields["a.count"].contents() == 7
    assert reader.fields["a.texts"].contents() == ["one", "zwölf", ""]
    assert reader.fields["a.layers"].contents() == [2, 4, 7]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert tensors["ids"].data.tolist() == [3, 1, 2]
    matrix = np.random.default_rng(0)
    matrix.standard_normal(5)
    wanted = matrix.standard_normal((3, 64)).astype(np.float32)
    assert np.array_equal(tensors["F16"].data, wanted.astype(np.float16))
