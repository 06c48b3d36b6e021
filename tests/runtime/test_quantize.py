"""Requantised copies: atomic, loadable, and smaller."""

from pathlib import Path

import pytest

from slipstream.errors import ModelFileError, StorageError, UsageError
from slipstream.models.gguf import read_header
from slipstream.runtime import load_llamacpp
from slipstream.runtime.llamacpp import quantize, requantize


def test_a_copy_has_the_type_and_runs(files: dict[str, Path], tmp_path: Path) -> None:
    copy = requantize(files["llama"], tmp_path / "small.gguf", "q8_0", threads=1)
    types = {tensor.type.name for tensor in read_header(copy).tensors}
    assert types == {"Q8_0", "F32"}
    assert copy.stat().st_size < 0.4 * files["llama"].stat().st_size
    load_llamacpp(copy, context_length=64, threads=1).close()
    again = requantize(copy, tmp_path / "smaller.gguf", "Q4_0", threads=1)
    assert "Q4_0" in {tensor.type.name for tensor in read_header(again).tensors}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.gguf", "smaller.gguf"]


def test_an_unknown_type_names_the_nearest(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'q4_km' is no file type of llama.cpp; the nearest are .*Q4_K_M"):
        requantize(files["llama"], tmp_path / "x.gguf", "q4_km")


def test_a_failure_leaves_nothing_and_keeps_what_was_there(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "x.gguf"
    destination.write_text("precious")

    def fail(_: object, __: object, partial: Path, *rest: object) -> None:
        partial.write_text("half")
        raise ModelFileError("no")

    monkeypatch.setattr(quantize, "_quantize", fail)
    with pytest.raises(ModelFileError):
        requantize(files["llama"], destination, "q8_0")
    assert destination.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [destination]


def test_what_the_library_refuses_is_said_in_its_words(files: dict[str, Path], tmp_path: Path) -> None:
    data = files["llama"].read_bytes()
    key = data.index(b"llama", data.index(b"general.architecture"))
    source = tmp_path / "new.gguf"
    source.write_bytes(data[:key] + b"zebra" + data[key + 5 :])
    with pytest.raises(ModelFileError, match=r"llama.cpp cannot quantise .*new.gguf: .*zebra"):
        requantize(source, tmp_path / "x.gguf", "q8_0", threads=1)
    assert list(tmp_path.iterdir()) == [source]


def test_places_that_cannot_be_written(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a directory"):
        requantize(files["llama"], tmp_path, "q8_0")
    with pytest.raises(StorageError, match="cannot be written to"):
        requantize(files["llama"], tmp_path / "nowhere" / "x.gguf", "q8_0")
