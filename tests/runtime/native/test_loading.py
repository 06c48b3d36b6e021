"""Which files the native runtime takes, and what it says of the others."""

import math
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.errors import ModelFileError, RuntimeUnavailableError, UnsupportedModelError
from slipstream.models.gguf import read_header
from slipstream.runtime.native import _native, load_native, loading, unsupported
from slipstream.runtime.native.model import NativeModel
from slipstream.runtime.native.modelfile import MOST
from tests.runtime.native.helpers import FORMATS
from tests.tiny_models import GROUPED, SUPER, Shape, tiny_llama, tiny_recurrent, tiny_sliding_window


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def why_not(path: Path) -> str | None:
    """The clause; it must also be what loading says."""
    reason = unsupported(read_header(path))
    if reason is not None:
        with pytest.raises(UnsupportedModelError) as caught:
            load_native(path)
        assert str(caught.value) == (f"The native runtime cannot run {path.name}: {reason}; use the llamacpp runtime.")
    return reason


def test_a_llama_is_supported(file: Path) -> None:
    assert why_not(file) is None


def test_other_architectures(tmp_path: Path) -> None:
    assert why_not(tiny_sliding_window(tmp_path / "it.gguf")) == "its architecture 'gemma2' is not known to it"
    assert why_not(tiny_recurrent(tmp_path / "it.gguf")) == "its architecture 'mamba' is not known to it"


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"llama.expert_count": 8}, "it is a mixture of experts"),
        ({"llama.expert_count": 0}, None),
        ({"llama.logit_scale": 0.5}, "it sets logit_scale"),
        ({"llama.attention.scale": 0.5}, "it sets attention.scale"),
        ({"llama.embedding_scale": 2.0}, "it sets embedding_scale"),
        ({"llama.residual_scale": 2.0}, "it sets residual_scale"),
        ({"llama.attention.causal": False}, "it is an embedding model"),
        ({"llama.attention.causal": True}, None),
        ({"llama.attention.causal": 0}, "its attention.causal is neither true nor false"),
        ({"llama.pooling_type": 1}, "it is an embedding model"),
        ({"llama.pooling_type": "none"}, "it is an embedding model"),
        ({"llama.pooling_type": 0}, None),
        ({"llama.rope.scaling.type": "yarn"}, "its rotary embedding is scaled by 'yarn'"),
        ({"llama.rope.scaling.type": "longrope"}, "its rotary embedding is scaled by 'longrope'"),
        ({"llama.rope.scaling.type": "none"}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, None),
        ({"llama.rope.scaling.factor": 4}, "its rope.scaling.factor is not a sensible number"),
        ({"llama.rope.scaling.factor": 1e-40}, "its rotary embedding has impossible frequencies"),
        ({"llama.rope.scaling.attn_factor": 2.0}, "it sets rope.scaling.attn_factor"),
        ({"llama.rope.freq_base": float("nan")}, "its rope.freq_base is not a sensible number"),
        ({"llama.rope.freq_base": float("inf")}, "its rope.freq_base is not a sensible number"),
        ({"llama.rope.freq_base": "10000"}, "its rope.freq_base is not a sensible number"),
        ({"llama.rope.dimension_count": 31}, "its rotary embedding has an odd size"),
        ({"llama.rope.dimension_count": 16}, "its rotary embedding's size 16 is not a multiple of 32"),
        ({"llama.attention.head_count": 0}, "its attention.head_count is not one whole number in a sensible range"),
        ({"llama.attention.head_count": True}, "its attention.head_count is not one whole number in a sensible range"),
        ({"llama.attention.head_count": 2.0}, "its attention.head_count is not one whole number in a sensible range"),
        # 64 / 100 is no head size
        ({"llama.attention.head_count": 100}, "its attention.key_length is not one whole number in a sensible range"),
        # at once: a rotary embedding of that size would take seconds
        (
            {"llama.attention.key_length": 1 << 24},
            "its attention.key_length is not one whole number in a sensible range",
        ),
        ({"llama.attention.key_length": 1056}, "its attention.key_length is not one whole number in a sensible range"),
        (
            {"llama.attention.head_count": 1 << 20, "llama.attention.key_length": 64},
            "its 1048576 heads of 64 numbers are more than any model has",
        ),
        ({"llama.rope.dimension_count": 64}, "its rotary embedding of 64 numbers is larger than a head of 32"),
        ({"llama.attention.head_count_kv": 3}, "its 4 heads cannot share 3 key-value heads evenly"),
        ({"llama.attention.head_count_kv": 8}, "its 4 heads cannot share 8 key-value heads evenly"),
        (
            {"llama.attention.layer_norm_rms_epsilon": -1.0},
            "its attention.layer_norm_rms_epsilon is not a sensible number",
        ),
    ],
    ids=str,
)
def test_metadata(tmp_path: Path, extra: dict[str, bool | int | float | str], reason: str | None) -> None:
    shape = Shape() if "llama.attention.head_count" in extra else GROUPED  # the first does not state its head size
    assert why_not(tiny_llama(tmp_path / "it.gguf", shape=shape, extra=extra)) == reason


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (Shape(width=48, heads=1, head_size=48), "its width 48 is not a multiple of 32"),
        (Shape(width=64, heads=2, head_size=16), "its head size 16 is not a multiple of 32"),
        (Shape(feed_forward=100), "its feed-forward size 100 is not a multiple of 32"),
    ],
    ids=str,
)
def test_sizes(tmp_path: Path, shape: Shape, reason: str) -> None:
    assert why_not(tiny_llama(tmp_path / "it.gguf", shape=shape)) == reason


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"blk.1.ffn_up.weight": None}, "it has no tensor blk.1.ffn_up.weight"),
        ({"output_norm.weight": None}, "it has no tensor output_norm.weight"),
        (
            {"blk.1.attn_q.bias": zeros(128), "blk.0.attn_q.bias": zeros(128)},
            "it has tensors that its architecture does not use (blk.0.attn_q.bias)",
        ),
        ({"blk.3.attn_q.weight": zeros(128, 64)}, "it has tensors that its architecture does not use"),
        ({"blk.0.attn_q.weight": zeros(2, 64, 64)}, "blk.0.attn_q.weight has more than two dimensions"),
        ({"blk.0.ffn_norm.weight": zeros(2, 64)}, "blk.0.ffn_norm.weight is a matrix where a vector is needed"),
        ({"output_norm.weight": zeros(64, 64)}, "output_norm.weight is a matrix where a vector is needed"),
        ({"blk.0.ffn_down.weight": zeros(64, 40)}, "blk.0.ffn_down.weight has rows of 40 numbers, which is not"),
        ({"rope_freqs.weight": zeros(8)}, "rope_freqs.weight is not a vector of 16 float32 numbers"),
        ({"rope_freqs.weight": zeros(16)}, "rope_freqs.weight holds impossible numbers"),
        ({"rope_freqs.weight": zeros(16) + np.nan}, "rope_freqs.weight holds impossible numbers"),
    ],
)
def test_tensors(tmp_path: Path, tensors: dict[str, np.ndarray | None], reason: str) -> None:
    found = why_not(tiny_llama(tmp_path / "it.gguf", shape=GROUPED, tensors=tensors))
    assert found is not None
    assert found.startswith(reason)


def test_a_tensor_without_dimensions(tmp_path: Path) -> None:
    header = read_header(tiny_llama(tmp_path / "it.gguf"))
    tensors = [
        replace(one, shape=(), nbytes=4) if one.name == "blk.0.attn_norm.weight" else one for one in header.tensors
    ]
    reason = unsupported(replace(header, tensors=tuple(tensors)))
    assert reason == "blk.0.attn_norm.weight is a single number where a row is needed"


Q4_0, IQ4_XS, MXFP4 = 2, 23, 39
KNOWN = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K"


def restated(path: Path, name: str, kind: int, shape: tuple[int, ...] | None = None) -> Path:
    """The file with another type, and shape, in a tensor's entry; a large tensor is a hole after all others."""
    header = read_header(path)
    known = {tensor.name: tensor for tensor in header.tensors}[name]
    entry = len(name).to_bytes(8, "little") + name.encode()
    place = path.read_bytes().index(entry) + len(entry)
    offset = known.offset
    if shape is not None:
        offset = -(-header.file_size // 32) * 32
        with path.open("r+b") as file:
            file.truncate(offset + math.prod(shape))
    sizes = known.shape if shape is None else shape
    assert len(sizes) == len(known.shape)
    with path.open("r+b") as file:
        file.seek(place + 4)
        file.write(struct.pack(f"<{len(sizes)}QIQ", *sizes, kind, offset - header.data_offset))
    return path


def test_a_tensor_type_without_a_layout(tmp_path: Path) -> None:
    path = restated(tiny_llama(tmp_path / "it.gguf", shape=GROUPED), "blk.0.attn_q.weight", MXFP4)
    assert why_not(path) == f"blk.0.attn_q.weight is MXFP4, and it knows {KNOWN}"


def test_super_blocks_without_a_layout(tmp_path: Path) -> None:
    path = restated(tiny_llama(tmp_path / "it.gguf", shape=SUPER), "blk.0.attn_q.weight", IQ4_XS)
    assert why_not(path) == f"blk.0.attn_q.weight is IQ4_XS, and it knows {KNOWN}"


def test_a_norm_that_is_quantised(tmp_path: Path) -> None:
    path = restated(tiny_llama(tmp_path / "it.gguf", shape=GROUPED), "blk.0.attn_norm.weight", Q4_0)
    assert why_not(path) == "blk.0.attn_norm.weight is Q4_0, and vectors are F32, F16, BF16"


@pytest.mark.parametrize(
    ("shape", "says"),
    [((32, 1 << 31), "2147483648 x 32"), ((1 << 31, 32), "32 x 2147483648"), ((64, MOST + 1), "16777217 x 64")],
)
def test_matrices_larger_than_any(tmp_path: Path, shape: tuple[int, int], says: str) -> None:
    """A sparse file has them: it takes no room."""
    path = restated(tiny_llama(tmp_path / "it.gguf", shape=GROUPED), "token_embd.weight", Q4_0, shape)
    assert why_not(path) == f"token_embd.weight is {says}, which is more than any model has"


def test_the_largest_matrix_is_a_matter_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: 100_000_000)
    path = restated(tiny_llama(tmp_path / "it.gguf", shape=GROUPED), "output.weight", Q4_0, (64, MOST))
    with pytest.raises(RuntimeUnavailableError, match=r"it\.gguf needs .* \(weights 0\.60 GB"):
        load_native(path, context_length=64, threads=1)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"blk.0.attn_q.weight": zeros(64, 64)}, "its query matrix is 64 x 64 where 128 x 64 is needed"),
        ({"blk.0.attn_k.weight": zeros(128, 64)}, "its key matrix is 128 x 64 where 64 x 64 is needed"),
        ({"blk.2.attn_v.weight": zeros(64, 96)}, "its value matrix is 64 x 96 where 64 x 64 is needed"),
        ({"blk.2.attn_output.weight": zeros(64, 64)}, "its projection matrix is 64 x 64 where 64 x 128 is needed"),
        ({"blk.1.ffn_gate.weight": zeros(128, 64)}, "blk.1.ffn_gate.weight has 128 rows where 96 are needed"),
        ({"blk.1.ffn_up.weight": zeros(64, 64)}, "blk.1.ffn_up.weight has 64 rows where 96 are needed"),
        ({"blk.1.ffn_norm.weight": zeros(96)}, "a norm of it has the wrong size"),
        ({"output_norm.weight": zeros(32)}, "its last norm has the wrong size"),
        ({"token_embd.weight": zeros(271, 96)}, "its embedding has the wrong shape"),
        ({"token_embd.weight": zeros(270, 64)}, "its output matrix is 271 x 64 where 270 x 64 is needed"),
    ],
)
def test_matrices_that_do_not_fit_together(tmp_path: Path, tensors: dict[str, np.ndarray | None], says: str) -> None:
    path = tiny_llama(tmp_path / "it.gguf", shape=GROUPED, tensors=tensors)
    with pytest.raises(ModelFileError) as caught:
        load_native(path, context_length=64, threads=1)
    assert str(caught.value) == f"{path} is damaged ({says}); download or convert it again."


def test_a_feed_forward_size_that_the_file_does_not_have(tmp_path: Path) -> None:
    """Its matrices fit together, and buffers of the stated size would be too small for them."""
    path = tiny_llama(tmp_path / "it.gguf", shape=GROUPED, extra={"llama.feed_forward_length": 64})
    with pytest.raises(ModelFileError) as caught:
        load_native(path, context_length=64, threads=1)
    says = "blk.0.ffn_gate.weight has 96 rows where 64 are needed"
    assert str(caught.value) == f"{path} is damaged ({says}); download or convert it again."


def test_a_vocabulary_of_another_size(tmp_path: Path) -> None:
    both = {"token_embd.weight": zeros(256, 64), "output.weight": zeros(256, 64)}
    path = tiny_llama(tmp_path / "it.gguf", shape=GROUPED, tensors=both)
    with pytest.raises(ModelFileError) as caught:
        load_native(path, context_length=64, threads=1)
    assert str(caught.value) == (
        f"{path} is damaged (a vocabulary of 271 tokens and logits of 256); download or convert it again."
    )


def test_a_file_that_ends_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole when its header was read, cut when its weights are."""
    path = tiny_llama(tmp_path / "it.gguf", shape=GROUPED)
    check = NativeModel._check_vocabulary

    def cut(*arguments: object) -> None:
        check(*arguments)  # type: ignore[arg-type]
        with path.open("r+b") as handle:
            handle.truncate(path.stat().st_size // 2)

    monkeypatch.setattr(NativeModel, "_check_vocabulary", cut)
    with pytest.raises(ModelFileError) as caught:
        load_native(path, context_length=64, threads=1)
    assert re.fullmatch(
        rf"{re.escape(str(path))} is damaged \(\S+ lies beyond the end of the file\); download or convert it again\.",
        str(caught.value),
    )


def test_a_file_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama(tmp_path / "it.gguf", shape=GROUPED)
    monkeypatch.setattr(NativeModel, "_check_vocabulary", lambda *_: path.unlink())
    with pytest.raises(ModelFileError, match="it cannot be read: No such file or directory"):
        load_native(path, context_length=64, threads=1)


def out_of_memory(*_: object) -> None:
    raise MemoryError


def test_memory_that_is_refused_after_all(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "load_weights", out_of_memory)
    with pytest.raises(RuntimeUnavailableError) as caught:
        load_native(file, context_length=64, threads=1)
    assert str(caught.value) == "There is not enough memory for tiny.gguf; choose a smaller model."


def test_no_memory_for_the_cache(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "Model", out_of_memory)
    with pytest.raises(RuntimeUnavailableError) as caught:
        load_native(file, context_length=64, max_sequences=3, threads=1)
    assert str(caught.value) == (
        "There is not enough memory for the KV cache of 3 sequence(s) of 64 tokens of tiny.gguf; "
        "choose a shorter context or fewer sequences."
    )


def test_every_layout_has_a_number() -> None:
    assert tuple(loading.FORMATS) == FORMATS
