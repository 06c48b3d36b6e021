"""What a head's file says is checked field by field, and a target that it does not belong to is named."""

import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from slipstream.errors import ModelFileError, SlipstreamError, UnsupportedModelError, VocabularyMismatchError
from slipstream.models import read_header, read_model_header
from slipstream.models.heads import is_head, read_head
from tests.tiny_heads import SMALL_HEAD, Facts, HeadShape, head_arrays, tiny_head
from tests.tiny_models import GROUPED, Shape, sentencepiece, tiny_llama


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("heads") / "target.gguf", shape=GROUPED)


def test_a_good_head(tmp_path: Path, target: Path) -> None:
    path = tiny_head(tmp_path / "head.gguf", target, storage="Q8_0")
    head = read_head(path)
    assert is_head(path)
    assert not is_head(target)
    assert not is_head(tmp_path / "nothing")
    assert (head.width, head.target_width, head.drafted, head.vocabulary) == (64, 64, 150, 271)
    assert (head.target_layers, head.hidden_layers) == ((1, 2, 3), (0, 1, 2))
    assert head.draft_tokens is not None
    assert (np.diff(head.draft_tokens) > 0).all()
    head.require_target(read_model_header(target))


def test_a_key_s_first_name_is_known(tmp_path: Path, target: Path) -> None:
    extra = {"eagle3.target_layers": None, "eagle3.extract_layers": [1, 1, 3]}
    assert read_head(tiny_head(tmp_path / "head.gguf", target, extra=extra)).target_layers == (1, 1, 3)


def test_a_head_is_no_model_to_run(tmp_path: Path, target: Path) -> None:
    path = tiny_head(tmp_path / "head.gguf", target)
    with pytest.raises(
        UnsupportedModelError, match="drafts for another model; give that model, and this file with --d"
    ):
        read_model_header(path)


def test_a_model_is_no_head(target: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"its general.architecture is 'llama', not 'eagle3'"):
        read_head(target)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("block_count", 2, "is 2 and must be 1"),
        ("context_length", "long", "is 'long' and must be a whole number from 1"),
        ("embedding_length", None, "is missing and must be a whole number"),
        ("embedding_length", 65, "is 65 and must be a multiple of 32"),
        ("feed_forward_length", True, "is True and must be a whole number"),
        ("attention.head_count", 0, "is 0 and must be a whole number from 1"),
        ("attention.head_count_kv", 3, "is 3 and must be a divisor of its 4 heads"),
        ("attention.key_length", 48, "is 48 and must be a multiple of 32"),
        ("attention.value_length", 64, "is 64 and must be 32, as its key_length"),
        ("target_hidden_size", 1.5, "is 1.5 and must be a whole number"),
        ("target_layers", [1, 2], r"is \[1, 2\] and must be 3 numbers of layers"),
        ("target_layers", [0, 1, 2], r"is \[0, 1, 2\] and must be 3 numbers of layers, from 1 on"),
        ("target_layers", 2, "is 2 and must be 3 numbers of layers"),
        ("target_layers", [1.0, 2.0, 3.0], "must be 3 numbers of layers"),
        ("vocab_size", 100, "d2t is I64 150 and must be I64 with at most 100 numbers"),
        ("norm_before_residual", 1, "is 1 and must be true or false"),
        ("norm_before_fc", True, "enc.output_norm.weight is missing and must be 192"),
    ],
)
def test_a_field_that_is_not_usable_is_named(tmp_path: Path, target: Path, field: str, value: Any, told: str) -> None:
    path = tiny_head(tmp_path / "head.gguf", target, extra={f"eagle3.{field}": value})
    with pytest.raises(ModelFileError, match=rf"head.gguf is no usable head: its .*{told}.*; download or convert"):
        read_head(path)


@pytest.mark.parametrize(
    ("shape", "extra", "told"),
    [
        (SMALL_HEAD, {"embedding_length": 96}, "is F32 64 x 192 and must be 96 x 192"),
        (SMALL_HEAD, {"feed_forward_length": 64}, "is F32 96 x 64 and must be 64 x 64"),
        (SMALL_HEAD, {"attention.head_count": 8}, "is F32 128 x 128 and must be 256 x 128"),
        (SMALL_HEAD, {"attention.head_count_kv": 4}, "is F32 64 x 128 and must be 128 x 128"),
        (SMALL_HEAD, {"target_hidden_size": 32}, "is F32 64 x 192 and must be 64 x 96"),
        (replace(SMALL_HEAD, drafted=None), {"vocab_size": 270}, "output.weight is F32 271 x 64 and must be 270 x 64"),
        (replace(SMALL_HEAD, norm_before_fc=True), {"norm_before_fc": False}, "heads have no such tensor"),
        (replace(SMALL_HEAD, width=96), {}, "token_embd.weight is missing and must be there, as its target is 64 wide"),
        (replace(SMALL_HEAD, own_output=False), {}, "output.weight is missing and must be 150 x 64"),
    ],
)
def test_tensors_have_the_shapes_that_were_said(
    tmp_path: Path, target: Path, shape: HeadShape, extra: dict[str, Any], told: str
) -> None:
    changed = {f"eagle3.{key}": value for key, value in extra.items()}
    path = tiny_head(tmp_path / "head.gguf", target, shape, extra=changed)
    with pytest.raises(ModelFileError, match=told):
        read_head(path)


@pytest.mark.parametrize(
    "name", ["fc.weight", "blk.0.attn_norm_2.weight", "blk.0.ffn_down.weight", "output_norm.weight"]
)
def test_a_tensor_that_is_missing_is_named(tmp_path: Path, target: Path, name: str) -> None:
    path = tiny_head(tmp_path / "head.gguf", target, without=(name,))
    with pytest.raises(ModelFileError, match=f"its {name} is missing"):
        read_head(path)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [(0, -1, "the token -1 and must be tokens from 0 to 270"), (149, 271, "the token 271"), (7, None, "a token twice")],
)
def test_the_mapping_is_one(tmp_path: Path, target: Path, place: int, value: int | None, told: str) -> None:
    arrays = head_arrays(Facts.of(target))
    ids = arrays["d2t"] + np.arange(150)
    ids[place] = ids[place + 1] if value is None else value
    arrays["d2t"] = ids - np.arange(150)
    with pytest.raises(ModelFileError, match=f"its d2t is a list with {told}"):
        read_head(tiny_head(tmp_path / "head.gguf", target, arrays=arrays))


def test_another_target_is_refused_by_what_differs(tmp_path: Path, target: Path) -> None:
    head = read_head(tiny_head(tmp_path / "head.gguf", target))
    for shape, told in (
        (
            replace(GROUPED, width=128),
            "eagle3.target_hidden_size is 64, and the target has hidden states of 128 numbers",
        ),
        (replace(GROUPED, layers=2), r"eagle3.target_layers is \[1, 2, 3\], and the target has 2 layers"),
    ):
        other = tiny_llama(tmp_path / "other.gguf", shape=shape)
        with pytest.raises(UnsupportedModelError, match=rf"does not belong to other.gguf: its {told}; use a head"):
            head.require_target(read_model_header(other))


def test_another_vocabulary_is_refused(tmp_path: Path, target: Path) -> None:
    other = read_model_header(tiny_llama(tmp_path / "other.gguf", shape=GROUPED, vocabulary=sentencepiece()))
    head = read_head(tiny_head(tmp_path / "head.gguf", target))
    with pytest.raises(UnsupportedModelError, match=r"eagle3.vocab_size is 271, and the target has 300 tokens"):
        head.require_target(other)
    tokens = Facts.of(target).tokens
    tokens[100] = "else"
    head = read_head(tiny_head(tmp_path / "head.gguf", target, extra={"tokenizer.ggml.tokens": tokens}))
    with pytest.raises(VocabularyMismatchError, match="has token 100 as 'else', and the target as"):
        head.require_target(read_model_header(target))
    unknown = tiny_head(tmp_path / "head.gguf", target, extra={"tokenizer.ggml.tokens": None})
    read_head(unknown).require_target(read_model_header(target))


def test_damaged_files_are_refused_with_a_sentence(tmp_path: Path, target: Path) -> None:
    """Bytes of the header that are others, files that are cut; what is not noticed is a head all the same."""
    good = tiny_head(tmp_path / "good.gguf", target, storage="Q8_0").read_bytes()
    end = read_header(tmp_path / "good.gguf").data_offset
    path, owner, told = tmp_path / "damaged.gguf", read_model_header(target), []
    for number in range(400):
        chance = random.Random(number)
        content = bytearray(good)
        for _ in range(chance.choice([1, 1, 2, 8])):
            at = chance.randrange(end)
            content[at] = chance.choice([content[at] ^ 1 << chance.randrange(8), chance.randrange(256)])
        if chance.random() < 0.2:
            del content[chance.randrange(len(content)) :]
        path.write_bytes(content)
        try:
            head = read_head(path)
            head.require_target(owner)
        except SlipstreamError as error:
            told.append(str(error))
        else:
            assert head.drafted == 150
    assert len(told) > 100
    assert all(one.endswith(".") and "\n" not in one for one in told)


def test_a_list_of_tokens_of_another_type_is_refused(tmp_path: Path, target: Path) -> None:
    path = tiny_head(tmp_path / "head.gguf", target)
    content = path.read_bytes()
    at = content.index(b"d2t", content.index(b"blk.0")) + 3 + 4 + 8
    assert struct.unpack_from("<I", content, at) == (gguf.GGMLQuantizationType.I64,)
    path.write_bytes(content[:at] + struct.pack("<I", gguf.GGMLQuantizationType.F64) + content[at + 4 :])
    with pytest.raises(ModelFileError, match="its d2t is F64 150 and must be I64"):
        read_head(path)


def test_shapes_of_other_targets(tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "wide.gguf", shape=Shape(width=96, heads=3, layers=4))
    head = read_head(tiny_head(tmp_path / "head.gguf", target, replace(SMALL_HEAD, width=64, own_embedding=True)))
    assert (head.width, head.target_width) == (64, 96)
    head.require_target(read_model_header(target))
