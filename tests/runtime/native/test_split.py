"""A model in several files computes what it computes in one."""

from pathlib import Path

import numpy as np
import pytest

from slipstream.core.protocols import Segment
from slipstream.errors import ModelFileError
from slipstream.runtime import load_llamacpp
from slipstream.runtime.native import load_native
from tests.runtime.native.helpers import feed, same_bits
from tests.tiny_models import GROUPED, tiny_llama

TOKENS = [40, 41, 42, 43, 44]


def test_the_same_bits(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.geomspace(1, 8, GROUPED.head_size // 2).astype(np.float32)}
    paths = [
        tiny_llama(tmp_path / f"{split}.gguf", shape=GROUPED, storage="Q4_0", tensors=dict(factors), split=split)
        for split in (0, 5)
    ]
    assert paths[1].name == "5-00001-of-00007.gguf"
    models = [load_native(path, context_length=64, threads=2) for path in paths]
    whole, parts = (feed(model, model.open_session(), TOKENS) for model in models)
    assert same_bits(whole, parts)
    assert models[0].memory_parts == models[1].memory_parts
    for model in models:
        model.close()


def test_llamacpp_takes_it_too(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "it.gguf", shape=GROUPED, split=9)
    native, other = load_native(path, context_length=64, threads=1), load_llamacpp(path, context_length=64, threads=1)
    rows = other.forward([Segment(other.open_session(), TOKENS)])[0]
    theirs = np.array([rows.logits(row) for row in range(len(TOKENS))])
    assert np.abs(feed(native, native.open_session(), TOKENS) - theirs).max() < 0.05
    native.close()
    other.close()


def test_a_part_that_ends_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the reading of the headers and that of the weights."""
    path = tiny_llama(tmp_path / "it.gguf", shape=GROUPED, split=9)
    last = max(tmp_path.glob("*.gguf"))

    def cut(*_: object) -> None:
        last.write_bytes(last.read_bytes()[:-100])

    monkeypatch.setattr("slipstream.runtime.native.model.NativeModel._check_vocabulary", cut)
    with pytest.raises(ModelFileError, match=r"is damaged \(.*lies beyond the end of the file\)"):
        load_native(path, context_length=64)
