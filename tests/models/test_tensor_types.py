"""What a file's tensors really are."""

from pathlib import Path

import pytest

from slipstream.models import read_model_header
from slipstream.models.tensor_types import bytes_by_type, fallen_back
from slipstream.runtime import requantize
from tests.tiny_models import SUPER, Shape, tiny_llama


def test_bytes_of_all_tensors_are_there_most_first(tmp_path: Path) -> None:
    header = read_model_header(tiny_llama(tmp_path / "x.gguf", storage="F16"))
    found = bytes_by_type(header.tensors)
    assert list(found) == ["F16", "F32"]
    assert sum(found.values()) == header.tensor_bytes


@pytest.mark.parametrize(
    ("shape", "falls"),
    [(SUPER, 0), (Shape(width=256, heads=4, head_size=64, feed_forward=288), 2), (Shape(width=96, heads=3), None)],
)
def test_k_quants_of_rows_that_are_no_super_blocks_fall_back(tmp_path: Path, shape: Shape, falls: int | None) -> None:
    """falls: matrices of the layers, one in each that has rows as long as the feed-forward; None is all there are."""
    source = tiny_llama(tmp_path / "x.gguf", storage="F16", shape=shape)
    copy = read_model_header(requantize(source, tmp_path / "copy.gguf", "Q3_K_M"))
    matrices = [one for one in copy.tensors if len(one.shape) > 1]
    expected = [one for one in matrices if one.type.block_size < 256]
    assert len(expected) == (len(matrices) if falls is None else falls)
    assert fallen_back(copy) == bytes_by_type(expected)


def test_whatever_is_in_a_file_without_blocks_belongs_there(tmp_path: Path) -> None:
    assert (
        fallen_back(read_model_header(tiny_llama(tmp_path / "x.gguf", storage="F16", shape=Shape(feed_forward=80))))
        == {}
    )
