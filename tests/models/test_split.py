"""Models in several files: the first part stands for all of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import ModelFileError, UnsupportedModelError
from slipstream.models import GgufHeader, list_models, models_directory, read_header, read_model_header
from tests.models.gguf_writer import write_model
from tests.models.test_gguf import refusal
from tests.tiny_models import tiny_llama

SPLIT = 8
"""Tensors of a part; the tiny model has 21."""


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf", split=SPLIT)


def part(first: Path, number: int) -> Path:
    return first.with_name(first.name.replace("00001-of", f"{number:05}-of"))


def without_places(header: GgufHeader) -> list[object]:
    return [replace(tensor, offset=0, part=0) for tensor in header.tensors]


def test_the_first_part_is_the_whole_model(first: Path, tmp_path: Path) -> None:
    header = read_model_header(first)
    assert first.name == "tiny-00001-of-00003.gguf"
    assert header.parts == (first, part(first, 2), part(first, 3))
    whole = read_model_header(tiny_llama(tmp_path / "whole.gguf"))
    assert without_places(header) == without_places(whole)
    assert [tensor.part for tensor in header.tensors] == [0] * 8 + [1] * 8 + [2] * (len(whole.tensors) - 16)
    assert whole.parts == (whole.path,)
    assert header.tensor_bytes == whole.tensor_bytes


def test_a_first_part_without_tensors(tmp_path: Path) -> None:
    whole = tiny_llama(tmp_path / "tiny-00002-of-00002.gguf", extra={"split.no": 1, "split.count": 2})
    count = len(read_header(whole).tensors)
    tensors = dict.fromkeys((tensor.name for tensor in read_header(whole).tensors), None)
    first = tmp_path / "tiny-00001-of-00002.gguf"
    keys = {"split.no": 0, "split.count": 2, "split.tensors.count": count}
    tiny_llama(first, extra=dict(keys), tensors=dict(tensors))
    assert {tensor.part for tensor in read_model_header(first).tensors} == {1}


def test_a_missing_part(first: Path) -> None:
    part(first, 2).unlink()
    assert refusal(first) == (
        f"{part(first, 2)} is missing: {first.name} is split into 3 files, which must lie beside each other; "
        "download them all."
    )


def test_another_part_than_the_first(first: Path) -> None:
    assert refusal(part(first, 2), UnsupportedModelError) == (
        f"{part(first, 2)} is part 2 of a model split into 3 files; "
        f"name the first part, {first.name}, and the others are found beside it."
    )
    nameless = part(first, 2).rename(first.with_name("second.gguf"))
    assert "name the first part and the others are found beside it" in refusal(nameless, UnsupportedModelError)


@pytest.mark.parametrize("name", ["tiny.gguf", "tiny-00001-of-00004.gguf", "tiny-00002-of-00003.gguf", "1-of-3.gguf"])
def test_a_first_part_with_another_name(first: Path, name: str) -> None:
    renamed = first.rename(first.with_name(name))
    assert refusal(renamed, UnsupportedModelError) == (
        f"{renamed} is part 1 of a model split into 3 files, but its name does not end in -00001-of-00003.gguf; "
        "give all parts the names that they came with."
    )


def test_parts_that_changed_places(first: Path) -> None:
    part(first, 3).rename(part(first, 2))
    assert refusal(first) == (
        f"{part(first, 2)} says that it is part 3 of 3, and part 2 of 3 is needed; download all parts of one model."
    )


def test_a_part_of_another_split(first: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", split=12)
    part(other, 2).rename(part(first, 2))
    assert "says that it is part 2 of 2, and part 2 of 3 is needed" in refusal(first)


def test_a_whole_model_in_a_part_s_place(first: Path) -> None:
    tiny_llama(part(first, 2))
    assert "says that it is part 1 of 1, and part 2 of 3 is needed" in refusal(first)


def test_a_part_that_is_damaged(first: Path) -> None:
    part(first, 3).write_bytes(part(first, 3).read_bytes()[:-1])
    assert refusal(first).startswith(f"{part(first, 3)} is truncated")


def test_parts_with_other_tensors(first: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", tensors={"blk.1.ffn_down.weight": None}, split=SPLIT)
    part(other, 3).rename(part(first, 3))
    total = len(read_model_header(tiny_llama(tmp_path / "whole.gguf")).tensors)
    assert refusal(first) == (
        f"The parts of {first} hold {total - 1} tensors and it says {total}; download all parts of one model."
    )


def test_a_tensor_in_two_parts(first: Path) -> None:
    content = part(first, 2).read_bytes()
    part(first, 2).write_bytes(content.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"))
    assert refusal(first) == (
        f"The parts of {first} hold the tensor 'blk.0.attn_q.weight' 2 times; download all parts of one model."
    )


def test_no_limit_is_trusted(tmp_path: Path) -> None:
    first = tmp_path / "it-00001-of-65535.gguf"
    write_model(first, split__count=65535, split__no=0)
    with pytest.raises(ModelFileError, match=r"it-00002-of-65535\.gguf is missing"):
        read_model_header(first)


def test_a_split_model_is_listed_once(home: Path) -> None:
    models_directory().mkdir(parents=True)
    first = tiny_llama(models_directory() / "tiny.gguf", split=SPLIT)
    [found] = list_models()
    assert (found.path, found.problem) == (first, None)
    assert found.size == sum(path.stat().st_size for path in first.parent.glob("*.gguf"))
