"""Heads of a few kilobytes with random weights, for the tiny models of `tests.tiny_models`."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models import GgufHeader, read_header
from slipstream.models.packed_strings import PackedStrings
from tests.tiny_models import GROUPED, quantised, tiny_llama

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head. `width` None is the target's; `drafted` None is the target's vocabulary."""

    width: int | None = None
    heads: int = 4
    head_size: int = 32
    key_value_heads: int = 2
    feed_forward: int = 96
    drafted: int | None = 150
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    direct: bool = False
    own_embedding: bool = False
    own_output: bool = True


SMALL_HEAD = HeadShape()


@dataclass(frozen=True)
class Facts:
    """What a head has to know of its target."""

    width: int
    layers: int
    tokens: list[str]

    @classmethod
    def of(cls, target: Path | GgufHeader) -> "Facts":
        header = read_header(target) if isinstance(target, Path) else target
        width, layers = (header.integer(f"{header.architecture}.{key}") for key in ("embedding_length", "block_count"))
        tokens = header.metadata["tokenizer.ggml.tokens"]
        assert width is not None
        assert layers is not None
        assert isinstance(tokens, PackedStrings)
        return cls(width, layers, [token.decode() for token in tokens])


def head_arrays(target: Facts, shape: HeadShape = SMALL_HEAD, seed: int = 0) -> Arrays:
    """A head's weights as PyTorch has them: matrices [out, in], rotary pairs in halves, `d2t` as differences."""
    random = np.random.default_rng([seed, 7])
    width, size = shape.width or target.width, len(target.tokens)
    inner, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size

    def matrix(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def norm(count: int = width) -> NDArray[np.float32]:
        return random.uniform(0.5, 1.5, count).astype(np.float32)

    drafted = shape.drafted or size
    arrays: Arrays = {
        "fc.weight": matrix(width, 3 * target.width),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.self_attn.q_proj.weight": matrix(inner, 2 * width),
        "midlayer.self_attn.k_proj.weight": matrix(keys, 2 * width),
        "midlayer.self_attn.v_proj.weight": matrix(keys, 2 * width),
        "midlayer.self_attn.o_proj.weight": matrix(width, inner),
        "midlayer.post_attention_layernorm.weight": norm(),
        "midlayer.mlp.gate_proj.weight": matrix(shape.feed_forward, width),
        "midlayer.mlp.up_proj.weight": matrix(shape.feed_forward, width),
        "midlayer.mlp.down_proj.weight": matrix(width, shape.feed_forward),
        "norm.weight": norm(),
    }
    if shape.direct:
        arrays["embd_fc.weight"] = matrix(width, width)
    if shape.norm_before_fc:
        arrays["input_norm.weight"] = norm(3 * target.width)
    if shape.own_embedding:
        arrays["embed_tokens.weight"] = matrix(size, width, 8.0)
    if shape.own_output:
        arrays["lm_head.weight"] = matrix(drafted, width, 3.0)
    if drafted < size:
        chosen = np.sort(random.choice(size, drafted, replace=False))
        arrays["d2t"] = chosen - np.arange(drafted)
        arrays["t2d"] = np.isin(np.arange(size), chosen)
    return arrays


def head_config(target: Facts, shape: HeadShape = SMALL_HEAD, **more: Any) -> dict[str, Any]:
    """`config.json` as SpecForge writes it."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": shape.drafted or len(target.tokens),
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "hidden_size": shape.width or target.width,
        "intermediate_size": shape.feed_forward,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": shape.key_value_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "target_hidden_size": target.width,
        "vocab_size": len(target.tokens),
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, target.layers - 1], "use_aux_hidden_state": True},
        **more,
    }


def tiny_checkpoint(
    folder: Path,
    target: Path,
    shape: HeadShape = SMALL_HEAD,
    *,
    seed: int = 0,
    kind: str = "F32",
    config: dict[str, Any] | None = None,
    arrays: Arrays | None = None,
) -> Path:
    """A folder as SafeAILab and SpecForge publish heads, with safetensors.

    config, arrays: instead of the usual ones
    """
    facts = Facts.of(target)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or head_config(facts, shape)), "utf-8")
    write_safetensors(folder / "model.safetensors", arrays or head_arrays(facts, shape, seed), kind)
    return folder


def write_safetensors(path: Path, arrays: Arrays, kind: str = "F32") -> None:
    """Floating-point numbers as F32, F16 or BF16; others as they are."""
    entries, data = {}, b""
    for name, numbers in arrays.items():
        stored = {"i": ("I64", "<i8"), "b": ("BOOL", "u1")}.get(
            numbers.dtype.kind, (kind, {"F16": "<f2"}.get(kind, "<f4"))
        )
        raw = numbers.astype(stored[1])
        if stored[0] == "BF16":
            raw = (raw.view(np.uint32) >> 16).astype(np.uint16)
        entries[name] = {
            "dtype": stored[0],
            "shape": list(numbers.shape),
            "data_offsets": [len(data), len(data) + raw.nbytes],
        }
        data += raw.tobytes()
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


GGUF_NAMES = {
    "fc.weight": "fc.weight",
    "embd_fc.weight": "embd_fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "embed_tokens.weight": "token_embd.weight",
    "midlayer.input_layernorm.weight": "blk.0.attn_norm.weight",
    "midlayer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
    "midlayer.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "midlayer.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "midlayer.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "midlayer.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "midlayer.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "midlayer.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "midlayer.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "midlayer.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tiny_head(
    path: Path,
    target: Path,
    shape: HeadShape = SMALL_HEAD,
    *,
    seed: int = 0,
    storage: str = "F32",
    extra: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    arrays: Arrays | None = None,
) -> Path:
    """A head's GGUF file as docs/heads.md has it, written by the `gguf` package.

    extra:   other values of metadata, or more; None leaves one out
    without: tensors that are left out
    arrays:  weights instead of random ones
    """
    facts = Facts.of(target)
    writer = gguf.GGUFWriter(path, "eagle3")
    metadata: dict[str, Any] = {
        "general.name": "tiny head",
        "eagle3.block_count": 1,
        "eagle3.context_length": 2048,
        "eagle3.embedding_length": shape.width or facts.width,
        "eagle3.feed_forward_length": shape.feed_forward,
        "eagle3.attention.head_count": shape.heads,
        "eagle3.attention.head_count_kv": shape.key_value_heads,
        "eagle3.attention.key_length": shape.head_size,
        "eagle3.attention.value_length": shape.head_size,
        "eagle3.attention.layer_norm_rms_epsilon": 1e-5,
        "eagle3.rope.freq_base": 10000.0,
        "eagle3.rope.dimension_count": shape.head_size,
        "eagle3.vocab_size": len(facts.tokens),
        "eagle3.target_hidden_size": facts.width,
        "eagle3.target_layers": [1, 2, facts.layers],
        "eagle3.norm_before_residual": shape.norm_before_residual,
        "eagle3.norm_before_fc": shape.norm_before_fc,
        "tokenizer.ggml.tokens": facts.tokens,
        **(extra or {}),
    }
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, numbers in (arrays or head_arrays(facts, shape, seed)).items():
        if name == "d2t":
            numbers = numbers + np.arange(len(numbers))
        elif name == "t2d" or GGUF_NAMES[name] in without:
            continue
        if "q_proj" in name or "k_proj" in name:
            numbers = permuted(numbers, shape.head_size)
        _add_tensor(writer, GGUF_NAMES.get(name, name), numbers, storage)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(matrix: NDArray[Any], head_size: int) -> NDArray[Any]:
    """Rotary pairs beside each other, as llama.cpp's converter leaves them."""
    order = np.arange(len(matrix)).reshape(-1, 2, head_size // 2).transpose(0, 2, 1).reshape(-1)
    return np.ascontiguousarray(matrix[order])


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if value is not None:
        add.get(type(value), writer.add_array)(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, numbers: NDArray[Any], storage: str) -> None:
    if numbers.dtype.kind == "i":
        writer.add_tensor(name, numbers.astype(np.int64))
    elif storage == "F32" or numbers.ndim < 2:
        writer.add_tensor(name, numbers)
    else:
        kind = gguf.GGMLQuantizationType[storage]
        writer.add_tensor(name, quantised(numbers, kind), raw_dtype=kind)


def bigram_target(path: Path, *, noise: float = 0.0, **options: Any) -> Path:
    """A llama whose next token depends on the one before only; with `noise`, on others a little, too."""
    random = np.random.default_rng(11)
    shape = GROUPED
    tensors: dict[str, NDArray[np.float32] | None] = {}
    for layer in range(shape.layers):
        for name, columns in (("attn_output", shape.queries), ("ffn_down", shape.feed_forward)):
            matrix = noise * random.standard_normal((shape.width, columns)) / np.sqrt(columns)
            tensors[f"blk.{layer}.{name}.weight"] = matrix.astype(np.float32)
    return tiny_llama(path, shape=shape, tensors=tensors, **options)


def knowing_head(path: Path, target: Path, *, drafted: int | None = None, own: int = 0) -> Path:
    """A head that says of a `bigram_target` what that says itself, as far as its tokens go.

    Its attention finds its own row, hands its embedding on, and the target's output reads it.
    """
    facts = Facts.of(target)
    shape = HeadShape(drafted=drafted, heads=4, head_size=32, key_value_heads=2, norm_before_residual=True)
    arrays = head_arrays(facts, shape, own)
    width, keys = facts.width, shape.key_value_heads * shape.head_size
    assert keys == width
    eye, nothing = np.eye(width, dtype=np.float32), np.zeros((width, width), np.float32)
    own_row = np.concatenate([4 * eye, nothing], axis=1)
    arrays["midlayer.self_attn.k_proj.weight"] = own_row
    arrays["midlayer.self_attn.q_proj.weight"] = np.concatenate(
        [own_row[:32], own_row[:32], own_row[32:], own_row[32:]]
    )
    arrays["midlayer.self_attn.v_proj.weight"] = np.concatenate([eye, nothing], axis=1)
    output = np.zeros((width, 2 * width), np.float32)
    output[:32, :32], output[32:, 64:96] = np.eye(32), np.eye(32)  # the first of the two heads that share a value
    arrays["midlayer.self_attn.o_proj.weight"] = output
    for name in ("midlayer.hidden_norm.weight", "midlayer.mlp.down_proj.weight"):
        arrays[name] = np.zeros_like(arrays[name])
    for name in ("midlayer.input_layernorm.weight", "norm.weight"):
        arrays[name] = np.ones_like(arrays[name])
    tensor = next(one for one in read_header(target).tensors if one.name == "output.weight")
    table = np.fromfile(target, np.float32, len(facts.tokens) * width, offset=tensor.offset).reshape(-1, width)
    chosen = arrays["d2t"] + np.arange(len(arrays["d2t"])) if "d2t" in arrays else np.arange(len(table))
    arrays["lm_head.weight"] = table[chosen]
    return tiny_head(path, target, shape, arrays=arrays)
