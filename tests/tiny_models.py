"""Model files of a few hundred kilobytes with random weights, for tests that run the real runtime in no time.

What they say is noise, but it is deterministic noise from the same code paths as a real model's. All
are written with the `gguf` package and read by llama.cpp.
"""

from collections.abc import Callable
from ctypes import c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

import gguf
import gguf.quants
import numpy as np
from numpy.typing import NDArray

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
"""`llama_token_type`."""

CONTEXT = 2048


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder. `key_value_heads` None is as many as `heads`; `rotary` None is the whole head."""

    width: int = 64
    heads: int = 2
    head_size: int = 32
    feed_forward: int = 128
    layers: int = 2
    key_value_heads: int | None = None
    rotary: int | None = None

    @property
    def queries(self) -> int:
        """Channels of all query heads."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Channels of all key-value heads."""
        return (self.key_value_heads or self.heads) * self.head_size


SMALL = Shape()
GROUPED = Shape(heads=4, key_value_heads=2, feed_forward=96, layers=3)
"""Two query heads share a key-value head; no size is a multiple of all others."""
SUPER = Shape(width=256, heads=4, head_size=64, key_value_heads=2, feed_forward=256, layers=3)
"""Rows of whole super-blocks: K-quants take no others."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Pairs that are merged, most urgent first; "Ġ" is the byte-level spelling of a space. The last one ends in
# the middle of a UTF-8 character (é is the bytes C3 A9).
MERGES = ["t h", "th e", "Ġ the", "i n", "a n", "an d", "Ġ and", "e r", "o n", "Ġ a", "in g", "Ġ Ã"]


@dataclass(frozen=True)
class Vocabulary:
    """What a file says about its tokens."""

    model: str
    tokens: list[str]
    types: list[int]
    end: str
    begin: str | None = None
    scores: list[float] | None = None
    merges: list[str] = field(default_factory=list)


def byte_level_bpe() -> Vocabulary:
    """GPT-2's kind: every byte is a token, some merges, ChatML's control tokens, no BOS."""
    tokens = [*byte_symbols(), *(merge.replace(" ", "") for merge in MERGES)]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(control)
    return Vocabulary("gpt2", tokens + control, types, end="<|im_end|>", merges=MERGES)


def sentencepiece() -> Vocabulary:
    """Llama 2's kind: a space in front of the first word, bytes for what it cannot spell, a BOS."""
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.,!?T"]
    words = ["▁t", "▁th", "▁the", "in", "ing", "an", "and", "▁a", "▁and"]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(letters) + len(words))
    scores = [0.0] * 259 + [-100.0] * len(letters) + [-float(rank) for rank in range(len(words))]
    tokens = special + byte_tokens + letters + words
    return Vocabulary("llama", tokens, types, end="</s>", begin="<s>", scores=scores)


def byte_symbols() -> list[str]:
    """GPT-2's printable spelling of the 256 bytes, in byte order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [value for value in range(256) if value not in printable]
    return [chr(value if value in printable else 256 + hidden.index(value)) for value in range(256)]


Tensors = dict[str, NDArray[np.float32]]
Metadata = dict[str, bool | int | float | str]


class Options(TypedDict, total=False):
    """What `tiny_decoder` takes."""

    vocabulary: Vocabulary | None
    seed: int
    noise: float
    context_length: int
    extra: Metadata | None
    shape: Shape
    storage: str
    tied: bool
    tensors: dict[str, NDArray[np.float32] | None] | None
    split: int


def tiny_llama(path: Path, **options: Unpack[Options]) -> Path:
    """The decoder that most tests use."""
    return tiny_decoder(path, "llama", **options)


def tiny_decoder(
    path: Path,
    architecture: str,
    *,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
    noise: float = 0.0,
    context_length: int = CONTEXT,
    extra: Metadata | None = None,
    shape: Shape = SMALL,
    storage: str = "F32",
    tied: bool = False,
    tensors: dict[str, NDArray[np.float32] | None] | None = None,
    split: int = 0,
) -> Path:
    """A llama, or what a llama becomes by the tensors and metadata of `VARIANTS`.

    With `noise`, a copy of the model with this seed that is a little wrong: a draft model for it.

    extra:   more metadata, or other values for what is there
    storage: how matrices are stored, by the name of the tensor type; vectors are F32
    tied:    the embedding is the output matrix
    tensors: more tensors, or others for what is there; None leaves one out
    split:   so many tensors in each of several files, beside `path` and named after it; the first is returned
    """
    vocabulary = vocabulary or byte_level_bpe()
    variant = VARIANTS[architecture]
    weights = _Weights(seed, noise)
    parts = {"token_embd.weight": weights.matrix(len(vocabulary.tokens), shape.width, scale=variant.embeddings)}
    parts["output_norm.weight"] = np.ones(shape.width, np.float32)
    if not tied:
        parts["output.weight"] = weights.matrix(len(vocabulary.tokens), shape.width, scale=3.0)
    for layer in range(shape.layers):
        parts |= _attention(layer, weights, shape) | _feed_forward(layer, weights, shape)
        parts |= variant.tensors(f"blk.{layer}.", weights, shape)
    chosen = {name: tensor for name, tensor in (parts | (tensors or {})).items() if tensor is not None}
    metadata = _attention_metadata(architecture, shape) | variant.metadata | (extra or {})
    return _write(path, architecture, vocabulary, chosen, metadata, context_length, shape, storage, split)


def tiny_sliding_window(path: Path, *, window: int = 16, seed: int = 0) -> Path:
    """A gemma2: the first layer sees a window only, the second everything."""
    vocabulary = byte_level_bpe()
    weights = _Weights(seed)
    tensors = {"token_embd.weight": weights.matrix(len(vocabulary.tokens), SMALL.width)}
    tensors["output_norm.weight"] = np.ones(SMALL.width, np.float32)
    for layer in range(SMALL.layers):
        tensors |= _attention(layer, weights, SMALL) | _feed_forward(layer, weights, SMALL)
        for name in ("post_attention_norm", "post_ffw_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(SMALL.width, np.float32)
    metadata = _attention_metadata("gemma2", SMALL) | {
        "gemma2.attention.key_length": SMALL.head_size,
        "gemma2.attention.value_length": SMALL.head_size,
        "gemma2.attention.sliding_window": window,
    }
    return _write(path, "gemma2", vocabulary, tensors, metadata, CONTEXT)


def tiny_recurrent(path: Path, *, seed: int = 0) -> Path:
    """A mamba: its state is one, and no token can be taken out of it again."""
    vocabulary = byte_level_bpe()
    weights = _Weights(seed)
    inner, state, convolution, rank = 2 * SMALL.width, 16, 4, 4
    tensors = {"token_embd.weight": weights.matrix(len(vocabulary.tokens), SMALL.width, scale=8.0)}
    tensors["output_norm.weight"] = np.ones(SMALL.width, np.float32)
    tensors["output.weight"] = weights.matrix(len(vocabulary.tokens), SMALL.width, scale=3.0)
    for layer in range(SMALL.layers):
        block = f"blk.{layer}."
        tensors |= {
            block + "attn_norm.weight": np.ones(SMALL.width, np.float32),
            block + "ssm_in.weight": weights.matrix(2 * inner, SMALL.width),
            block + "ssm_conv1d.weight": weights.matrix(inner, convolution),
            block + "ssm_conv1d.bias": np.zeros(inner, np.float32),
            block + "ssm_x.weight": weights.matrix(rank + 2 * state, inner),
            block + "ssm_dt.weight": weights.matrix(inner, rank),
            block + "ssm_dt.bias": np.zeros(inner, np.float32),
            block + "ssm_a": -np.tile(np.arange(1, state + 1, dtype=np.float32) / state, (inner, 1)),
            block + "ssm_d": np.ones(inner, np.float32),
            block + "ssm_out.weight": weights.matrix(SMALL.width, inner),
        }
    metadata = {
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.ssm.conv_kernel": convolution,
        "mamba.ssm.inner_size": inner,
        "mamba.ssm.state_size": state,
        "mamba.ssm.time_step_rank": rank,
    }
    return _write(path, "mamba", vocabulary, tensors, metadata, CONTEXT)


class _Weights:
    """Random matrices and vectors, the same for the same seed; `noise` is the share of another one in each matrix."""

    def __init__(self, seed: int, noise: float = 0.0) -> None:
        self._random = np.random.default_rng(seed)
        self._other = np.random.default_rng([seed, 1])
        self._noise = noise

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        """[rows, columns] that keeps the size of what it multiplies, times `scale`."""
        values = self._random.standard_normal((rows, columns))
        values += self._noise * self._other.standard_normal((rows, columns))
        return (values * scale / np.sqrt(columns)).astype(np.float32)

    def vector(self, size: int, mean: float) -> NDArray[np.float32]:
        """[size] with half a unit to either side of `mean`; the same in every noisy copy."""
        return self._random.uniform(mean - 0.5, mean + 0.5, size).astype(np.float32)


@dataclass(frozen=True)
class Variant:
    """What makes an architecture out of a llama.

    tensors:    (prefix of a layer's names, weights, shape) -> what its layers have beside a llama's
    embeddings: the size of the residual stream at the start, before what the architecture does to it
    """

    tensors: Callable[[str, _Weights, Shape], Tensors]
    metadata: Metadata = field(default_factory=dict)
    embeddings: float = 8.0


def _nothing(block: str, weights: _Weights, shape: Shape) -> Tensors:
    return {}


def _biases(block: str, weights: _Weights, shape: Shape) -> Tensors:
    sizes = {"q": shape.queries, "k": shape.keys, "v": shape.keys}
    return {f"{block}attn_{name}.bias": weights.vector(size, 0.0) for name, size in sizes.items()}


def _head_norms(block: str, weights: _Weights, shape: Shape) -> Tensors:
    return {f"{block}attn_{name}_norm.weight": weights.vector(shape.head_size, 1.0) for name in "qk"}


def _head_and_post_norms(block: str, weights: _Weights, shape: Shape) -> Tensors:
    names = ("post_attention_norm", "post_ffw_norm")
    post = {f"{block}{name}.weight": weights.vector(shape.width, 1.0) for name in names}
    return _head_norms(block, weights, shape) | post


VARIANTS = {
    "llama": Variant(_nothing),
    "qwen2": Variant(_biases),
    "qwen3": Variant(_head_norms),
    "gemma3": Variant(
        _head_and_post_norms,
        {
            "gemma3.attention.sliding_window": 24,
            "gemma3.attention.sliding_window_pattern": 3,  # so that three layers have both kinds
            "gemma3.rope.freq_base": 1e6,
        },
        embeddings=1.0,
    ),
}
"""By architecture."""


def _attention(layer: int, weights: _Weights, shape: Shape) -> Tensors:
    block = f"blk.{layer}."
    return {
        block + "attn_norm.weight": np.ones(shape.width, np.float32),
        block + "attn_q.weight": weights.matrix(shape.queries, shape.width),
        block + "attn_k.weight": weights.matrix(shape.keys, shape.width),
        block + "attn_v.weight": weights.matrix(shape.keys, shape.width),
        block + "attn_output.weight": weights.matrix(shape.width, shape.queries),
    }


def _feed_forward(layer: int, weights: _Weights, shape: Shape) -> Tensors:
    block = f"blk.{layer}."
    return {
        block + "ffn_norm.weight": np.ones(shape.width, np.float32),
        block + "ffn_gate.weight": weights.matrix(shape.feed_forward, shape.width),
        block + "ffn_up.weight": weights.matrix(shape.feed_forward, shape.width),
        block + "ffn_down.weight": weights.matrix(shape.width, shape.feed_forward),
    }


def _attention_metadata(architecture: str, shape: Shape) -> Metadata:
    metadata: Metadata = {
        f"{architecture}.feed_forward_length": shape.feed_forward,
        f"{architecture}.attention.head_count": shape.heads,
        f"{architecture}.attention.head_count_kv": shape.key_value_heads or shape.heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
    }
    if shape.queries != shape.width:
        metadata[f"{architecture}.attention.key_length"] = shape.head_size
        metadata[f"{architecture}.attention.value_length"] = shape.head_size
    if shape.rotary is not None:
        metadata[f"{architecture}.rope.dimension_count"] = shape.rotary
    return metadata


def _write(
    path: Path,
    architecture: str,
    vocabulary: Vocabulary,
    tensors: Tensors,
    metadata: Metadata,
    context_length: int,
    shape: Shape = SMALL,
    storage: str = "F32",
    split: int = 0,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    writer.add_name(f"tiny {architecture}")
    writer.add_license("cc0-1.0")
    writer.add_context_length(context_length)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    _write_vocabulary(writer, vocabulary)
    for key, value in metadata.items():
        _write_value(writer, key, value)
    for name, tensor in tensors.items():
        _write_tensor(writer, name, np.ascontiguousarray(tensor, np.float32), storage)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(path.parent.glob(f"{path.stem}-00001-of-*.gguf")) if split else path


def _write_tensor(writer: gguf.GGUFWriter, name: str, tensor: NDArray[np.float32], storage: str) -> None:
    """Matrices in `storage`; vectors stay F32, as all converters leave them."""
    if storage == "F32" or tensor.ndim < 2:
        writer.add_tensor(name, tensor)
    else:
        kind = gguf.GGMLQuantizationType[storage]
        writer.add_tensor(name, quantised(tensor, kind), raw_dtype=kind)


def quantised(tensor: NDArray[np.float32], kind: gguf.GGMLQuantizationType) -> NDArray[Any]:
    """[rows, columns] as a file stores it; what the `gguf` package cannot make llama.cpp's quantiser does."""
    try:
        return gguf.quants.quantize(tensor, kind)
    except NotImplementedError:
        from llama_cpp._ggml import libggml

    rows, columns = tensor.shape
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    made = np.empty((rows, columns // block * block_bytes), np.uint8)
    quantize = libggml.ggml_quantize_chunk
    quantize.argtypes = [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]
    quantize.restype = c_size_t
    assert quantize(kind, tensor.ctypes.data, made.ctypes.data, 0, rows, columns, None) == made.nbytes
    return made


def _write_value(writer: gguf.GGUFWriter, key: str, value: bool | int | float | str) -> None:
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add[type(value)](key, value)


def _write_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_eos_token_id(vocabulary.tokens.index(vocabulary.end))
    writer.add_add_bos_token(vocabulary.begin is not None)
    if vocabulary.begin is not None:
        writer.add_bos_token_id(vocabulary.tokens.index(vocabulary.begin))
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges:
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(vocabulary.merges)
    if "<|im_start|>" in vocabulary.tokens:
        writer.add_chat_template(CHAT_TEMPLATE)
