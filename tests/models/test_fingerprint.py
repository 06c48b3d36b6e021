from pathlib import Path

import pytest

from slipstream.errors import ModelFileError
from slipstream.models.fingerprint import fingerprint


def test_any_byte_of_a_small_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(bytes(1000))
    before = fingerprint(path)
    assert len(before) == 32
    path.write_bytes(bytes(999) + b"x")
    assert fingerprint(path) != before


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_part_of_a_split_model_counts(tmp_path: Path, number: int) -> None:
    parts = [tmp_path / f"x-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    for part in parts:
        part.write_bytes(bytes(1000))
    before = fingerprint(parts[0])
    parts[number - 1].write_bytes(bytes(999) + b"x")
    assert fingerprint(parts[0]) != before


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        fingerprint(tmp_path / "x.gguf")
