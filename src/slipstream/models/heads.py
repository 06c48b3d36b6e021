"""Heads as files: what one says about itself, and whether it belongs to a target (docs/heads.md has the fields).

A head is a GGUF file of llama.cpp's architecture `eagle3`. Nothing in one is trusted: every field is checked, and a
refusal names the file, the field, what was found and what is needed.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelFileError, UnsupportedModelError, VocabularyMismatchError
from slipstream.models.gguf import GgufHeader, TensorInfo, read_header
from slipstream.models.packed_strings import PackedStrings

ARCHITECTURE: Final = "eagle3"
TARGET_LAYERS: Final = 3
"""Layers of the target that a head reads."""
MOST: Final = 1 << 24
"""Larger than any size in a header."""
MOST_HEAD: Final = 1024
"""Numbers in a head of attention; models have 64 to 256."""
UNIT: Final = 32
"""Sizes are multiples of it."""

EMBEDDING, OUTPUT, DRAFT_TOKENS = "token_embd.weight", "output.weight", "d2t"
DIRECT: Final = "embd_fc.weight"
"""Adds the embedding to the stream: ours, not in llama.cpp's files."""
FUSING_NORM, ROTARY_FACTORS = "enc.output_norm.weight", "rope_freqs.weight"
OPTIONAL = frozenset({DIRECT, EMBEDDING, OUTPUT, DRAFT_TOKENS, ROTARY_FACTORS})


@dataclass(frozen=True)
class HeadFile:
    """A head's header with its fields checked.

    width:         of its own states
    target_width:  of the target's hidden states
    target_layers: whose inputs it reads, counted from 0
    vocabulary:    tokens of the target
    drafted:       tokens that it has logits for
    draft_tokens:  [drafted] int64, the target's ids of those; None where they are all of the target's
    """

    header: GgufHeader
    width: int
    feed_forward: int
    heads: int
    key_value_heads: int
    head_size: int
    target_width: int
    target_layers: tuple[int, ...]
    vocabulary: int
    norm_before_residual: bool
    norm_before_fc: bool
    drafted: int
    draft_tokens: NDArray[np.int64] | None

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The layers after which the target's hidden states are read (`Rows.hidden`)."""
        return tuple(layer - 1 for layer in self.target_layers)

    def has(self, tensor: str) -> bool:
        return any(one.name == tensor for one in self.header.tensors)

    def require_target(self, target: GgufHeader) -> None:
        """Refuse a target that the head was not made for.

        Raises UnsupportedModelError where sizes differ, VocabularyMismatchError where tokens do.
        """
        layers = target.integer(f"{target.architecture}.block_count") or 0
        width = target.integer(f"{target.architecture}.embedding_length")
        tokens = target.metadata.get("tokenizer.ggml.tokens")
        size = len(tokens) if isinstance(tokens, PackedStrings) else 0
        if self.target_width != width:
            self._foreign(target, "eagle3.target_hidden_size", self.target_width, f"hidden states of {width} numbers")
        if max(self.target_layers) > layers:
            self._foreign(target, "eagle3.target_layers", list(self.target_layers), f"{layers} layers")
        if self.vocabulary != size:
            self._foreign(target, "eagle3.vocab_size", self.vocabulary, f"{size} tokens")
        own = self.header.metadata.get("tokenizer.ggml.tokens")
        if isinstance(own, PackedStrings) and isinstance(tokens, PackedStrings) and own != tokens:
            pairs = enumerate(zip_longest(own, tokens, fillvalue=b""))
            token, (ours, theirs) = next((token, pair) for token, pair in pairs if pair[0] != pair[1])
            raise VocabularyMismatchError(
                f"{self.header.path} does not belong to {target.path.name}: its tokenizer.ggml.tokens has token "
                f"{token} as {ours.decode(errors='replace')!r}, and the target as {theirs.decode(errors='replace')!r}; "
                "use a head that was trained for this target."
            )

    def _foreign(self, target: GgufHeader, field: str, found: object, needed: str) -> NoReturn:
        raise UnsupportedModelError(
            f"{self.header.path} does not belong to {target.path.name}: its {field} is {found}, and the target has "
            f"{needed}; use a head that was trained for this target."
        )


def is_head(path: Path) -> bool:
    """Whether a file is a head by its header; False for what is no GGUF file."""
    try:
        return read_header(path).architecture == ARCHITECTURE
    except ModelFileError:
        return False


def read_head(path: str | os.PathLike[str]) -> HeadFile:
    """Read and check a head's header and its list of tokens.

    Raises ModelFileError for what is damaged or lacks something, UnsupportedModelError for another kind of file.
    """
    header = read_header(path)
    if header.architecture != ARCHITECTURE:
        raise UnsupportedModelError(
            f"{header.path} is no head: its general.architecture is {header.architecture!r}, not {ARCHITECTURE!r}; "
            "give a head's GGUF file or its folder."
        )
    return _Reader(header).read()


class _Reader:
    """Asks a header for one field after another."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.tensors = {tensor.name: tensor for tensor in header.tensors}

    def read(self) -> HeadFile:
        if (layers := self._integer("block_count", 1)) != 1:
            self._bad("eagle3.block_count", layers, "1")
        self._context_length()
        width, heads = self._size("embedding_length"), self._integer("attention.head_count")
        key_value_heads = self._integer("attention.head_count_kv", heads)
        if heads % key_value_heads:
            self._bad("eagle3.attention.head_count_kv", key_value_heads, f"a divisor of its {heads} heads")
        head_size = self._size("attention.key_length", width // heads, MOST_HEAD)
        if (value_size := self._size("attention.value_length", head_size, MOST_HEAD)) != head_size:
            self._bad("eagle3.attention.value_length", value_size, f"{head_size}, as its key_length")
        target_width = self._size("target_hidden_size")
        vocabulary = self._integer("vocab_size", self._tokens())
        drafted = self._drafted(vocabulary)
        head = HeadFile(
            header=self.header,
            width=width,
            feed_forward=self._size("feed_forward_length"),
            heads=heads,
            key_value_heads=key_value_heads,
            head_size=head_size,
            target_width=target_width,
            target_layers=self._target_layers(),
            vocabulary=vocabulary,
            norm_before_residual=self._flag("norm_before_residual"),
            norm_before_fc=self._flag("norm_before_fc"),
            drafted=drafted,
            draft_tokens=self._draft_tokens(drafted, vocabulary),
        )
        self._check_tensors(head)
        return head

    def _tokens(self) -> int | None:
        tokens = self.header.metadata.get("tokenizer.ggml.tokens")
        return len(tokens) if isinstance(tokens, PackedStrings) else None

    def _context_length(self) -> None:
        """Nothing depends on it, but a value that is none would mean a damaged file."""
        if "eagle3.context_length" in self.header.metadata:
            self._integer("context_length")

    def _target_layers(self) -> tuple[int, ...]:
        value = self.header.metadata.get("eagle3.target_layers")
        if value is None:  # as files of the format's first months call it
            value = self.header.metadata.get("eagle3.extract_layers")
        whole = isinstance(value, np.ndarray) and value.dtype.kind in "iu"
        layers = value.tolist() if isinstance(value, np.ndarray) and whole else []
        if len(layers) != TARGET_LAYERS or not all(1 <= layer <= MOST for layer in layers):
            found = value.tolist() if isinstance(value, np.ndarray) else value
            self._bad("eagle3.target_layers", found, f"{TARGET_LAYERS} numbers of layers, from 1 on")
        return tuple(layers)

    def _drafted(self, vocabulary: int) -> int:
        mapping = self.tensors.get(DRAFT_TOKENS)
        if mapping is None:
            return vocabulary
        if mapping.type.name != "I64" or len(mapping.shape) != 1 or mapping.shape[0] > vocabulary:
            self._bad(DRAFT_TOKENS, _told(mapping), f"I64 with at most {vocabulary} numbers")
        return mapping.shape[0]

    def _draft_tokens(self, drafted: int, vocabulary: int) -> NDArray[np.int64] | None:
        mapping = self.tensors.get(DRAFT_TOKENS)
        if mapping is None:
            return None
        tokens = np.fromfile(self.header.path, "<i8", drafted, offset=mapping.offset).astype(np.int64)
        if len(tokens) < drafted:
            raise ModelFileError(f"{self.header.path} cannot be read to its end; download or convert it again.")
        if (outside := tokens[(tokens < 0) | (tokens >= vocabulary)]).size:
            self._bad(DRAFT_TOKENS, f"a list with the token {outside[0]}", f"tokens from 0 to {vocabulary - 1}")
        if len(np.unique(tokens)) < drafted:
            self._bad(DRAFT_TOKENS, "a list with a token twice", "each token once")
        return tokens

    def _check_tensors(self, head: HeadFile) -> None:
        shapes = tensor_shapes(head)
        same_width = head.width == head.target_width
        for name, shape in shapes.items():
            tensor = self.tensors.get(name)
            if tensor is not None and rows_first(tensor) != shape:
                self._bad(name, _told(tensor), " x ".join(map(str, shape)))
            if tensor is None and name not in OPTIONAL:
                self._bad(name, "missing", " x ".join(map(str, shape)))
        if DIRECT in self.tensors and head.norm_before_residual:
            self._bad(DIRECT, "there", "left out with norm_before_residual")
        if EMBEDDING not in self.tensors and not same_width:
            self._bad(EMBEDDING, "missing", f"there, as its target is {head.target_width} wide and not {head.width}")
        if OUTPUT not in self.tensors and not (same_width and head.draft_tokens is None):
            self._bad(OUTPUT, "missing", f"{head.drafted} x {head.width}")
        if unknown := set(self.tensors) - set(shapes):
            self._bad(min(unknown), "there", "left out: heads have no such tensor")

    def _size(self, key: str, default: int | None = None, most: int = MOST) -> int:
        size = self._integer(key, default, most)
        if size % UNIT:
            self._bad(f"eagle3.{key}", size, f"a multiple of {UNIT}")
        return size

    def _integer(self, key: str, default: int | None = None, most: int = MOST) -> int:
        name = f"eagle3.{key}"
        value = self.header.metadata.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            self._bad(name, "missing" if value is None else _value_told(value), f"a whole number from 1 to {most}")
        return value

    def _flag(self, key: str) -> bool:
        value = self.header.metadata.get(f"eagle3.{key}", False)
        if not isinstance(value, bool):
            self._bad(f"eagle3.{key}", _value_told(value), "true or false")
        return value

    def _bad(self, field: str, found: object, needed: str) -> NoReturn:
        raise ModelFileError(
            f"{self.header.path} is no usable head: its {field} is {found} and must be {needed}; "
            "download or convert it again."
        )


def tensor_shapes(head: HeadFile) -> dict[str, tuple[int, ...]]:
    """All tensors that a head may have, rows first; `OPTIONAL` ones may be left out."""
    width, inner, keys = head.width, head.heads * head.head_size, head.key_value_heads * head.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, TARGET_LAYERS * head.target_width),
        EMBEDDING: (head.vocabulary, width),
        DIRECT: (width, width),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_norm_2.weight": (width,),
        "blk.0.attn_q.weight": (inner, 2 * width),
        "blk.0.attn_k.weight": (keys, 2 * width),
        "blk.0.attn_v.weight": (keys, 2 * width),
        "blk.0.attn_output.weight": (width, inner),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (head.feed_forward, width),
        "blk.0.ffn_up.weight": (head.feed_forward, width),
        "blk.0.ffn_down.weight": (width, head.feed_forward),
        "output_norm.weight": (width,),
        OUTPUT: (head.drafted, width),
        DRAFT_TOKENS: (head.drafted,),
        ROTARY_FACTORS: (head.head_size // 2,),
    }
    if head.norm_before_fc:
        shapes[FUSING_NORM] = (TARGET_LAYERS * head.target_width,)
    return shapes


def rows_first(tensor: TensorInfo) -> tuple[int, ...]:
    """A tensor's shape as PyTorch says it."""
    return tensor.shape[::-1]


def _told(tensor: TensorInfo) -> str:
    return f"{tensor.type.name} {' x '.join(map(str, rows_first(tensor)))}"


def _value_told(value: object) -> str:
    """A metadata value for people; long ones in a few words."""
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        return f"a list of {len(value)}"
    return repr(value)[:80]
