"""Files as llama.cpp's quantiser makes them: several types in one, and others where rows are no whole super-blocks."""

from pathlib import Path

import pytest

from slipstream.models import read_header
from slipstream.runtime import requantize
from tests.runtime.native.test_model import distance
from tests.tiny_models import GROUPED, SUPER, Shape, tiny_llama

MIXTURES = [
    ("Q2_K", SUPER, "Q2_K Q3_K Q6_K"),
    ("Q3_K_M", SUPER, "Q3_K Q4_K Q5_K Q6_K"),
    ("Q4_K_M", SUPER, "Q4_K Q6_K"),
    ("Q5_K_M", SUPER, "Q5_K Q6_K"),
    ("Q6_K", SUPER, "Q6_K"),
    ("IQ4_NL", SUPER, "IQ4_NL Q6_K"),
    ("Q5_0", GROUPED, "Q5_0 Q8_0"),
    ("Q5_1", GROUPED, "Q5_1 Q8_0"),
    ("Q2_K", GROUPED, "Q4_0 Q8_0"),
    ("Q4_K_M", GROUPED, "Q5_0 Q8_0"),
    ("Q5_K_M", GROUPED, "Q5_1 Q8_0"),
]
"""File type, sizes, the types of the matrices."""


@pytest.mark.parametrize(("file_type", "shape", "types"), MIXTURES)
def test_what_the_quantiser_makes(tmp_path: Path, file_type: str, shape: Shape, types: str) -> None:
    source = tiny_llama(tmp_path / "source.gguf", shape=shape)
    path = requantize(source, tmp_path / "it.gguf", file_type, threads=1)
    found = {tensor.type.name for tensor in read_header(path).tensors if len(tensor.shape) > 1}
    assert " ".join(sorted(found)) == types
    assert distance(path) < 0.05
