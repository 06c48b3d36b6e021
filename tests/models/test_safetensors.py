import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.errors import ModelFileError
from slipstream.models.safetensors import Safetensors
from tests.tiny_heads import write_safetensors

ARRAYS = {
    "matrix": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "ids": np.array([3, -1, 2**40]),
    "flags": np.array([True, False, True]),
    "number": np.float32(2.5).reshape(()),
    "nothing": np.zeros((0, 4), np.float32),
}


def written(path: Path, header: Any, data: bytes = bytes(16)) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def test_all_kinds_of_numbers(tmp_path: Path) -> None:
    for kind, tolerance in (("F32", 0), ("F16", 1e-3), ("BF16", 1e-2)):
        write_safetensors(tmp_path / "it.safetensors", ARRAYS, kind)
        read = Safetensors(tmp_path / "it.safetensors")
        assert list(read) == list(ARRAYS)
        assert len(read) == len(ARRAYS)
        for name, expected in ARRAYS.items():
            assert read[name].shape == expected.shape
            assert np.allclose(read[name], expected, rtol=tolerance, atol=0)
        assert read["flags"].dtype == np.bool_


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
    ],
)
def test_impossible_tensors_are_refused(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(ModelFileError, match=r"no complete safetensors file \(the tensor 'it' has"):
        Safetensors(written(tmp_path / "bad.safetensors", {"it": entry}))


@pytest.mark.parametrize("header", [b"{ ", b"[]", b"77", b"\xff\xfe", b"[" * 100_000])
def test_a_header_that_is_none_is_refused(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(ModelFileError, match="its header is no"):
        Safetensors(written(tmp_path / "bad.safetensors", header))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    for content in (b"", b"PK\3\4", struct.pack("<Q", 1 << 60) + b"{}", b"\0" * 64):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match="its header does not fit"):
            Safetensors(path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        Safetensors(tmp_path / "none.safetensors")


def test_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    write_safetensors(path, ARRAYS)
    good, told = path.read_bytes(), []
    for number in range(500):
        chance = random.Random(number)
        content = bytearray(good)
        for _ in range(chance.choice([1, 1, 3])):
            content[chance.randrange(len(content))] = chance.randrange(256)
        if chance.random() < 0.3:
            del content[chance.randrange(len(content)) :]
        path.write_bytes(content)
        try:
            for numbers in Safetensors(path).values():
                assert numbers.nbytes <= len(good) * 2
        except ModelFileError as error:
            told.append(str(error))
    assert len(told) > 200
    assert all(one.endswith("; download it again.") and "\n" not in one for one in told)
