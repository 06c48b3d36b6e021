"""A few damaged files; `scripts/fuzz` runs ten thousand with C++ under sanitizers."""

from pathlib import Path

from tests.runtime.native.fuzz_header import Anatomy, fuzz
from tests.tiny_models import tiny_llama


def test_damaged_files_are_refused_or_run(tmp_path: Path) -> None:
    outcome = fuzz(200, 7, tmp_path)
    assert outcome.failures == []
    assert sum(outcome.counts.values()) == 200
    # Damage that only ever met the first check, or never did any, would show nothing.
    assert {"ModelFileError", "UnsupportedModelError", "accepted"} <= set(outcome.counts)
    assert min(outcome.counts["ModelFileError"], outcome.counts["accepted"]) > 20


def test_it_knows_where_things_are(tmp_path: Path) -> None:
    content = tiny_llama(tmp_path / "it.gguf").read_bytes()
    anatomy = Anatomy(content)
    assert [int(count.read(content)) for count in anatomy.counts] == [3, len(anatomy.tensors), len(anatomy.spans) - 2]
    names = [content[slice(*tensor.name)].decode() for tensor in anatomy.tensors]
    assert names[:2] == ["token_embd.weight", "output_norm.weight"]
    assert [int(size.read(content)) for size in anatomy.tensors[0].dimensions] == [64, 271]
    assert anatomy.tensors[-1].offset.read(content) + anatomy.data < len(content)
