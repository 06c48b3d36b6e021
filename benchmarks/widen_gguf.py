"""Make a model that costs more and says the same.

Widens a llama-architecture GGUF: hidden size, feed-forward size and heads are padded with zeros and
RMSNorm is compensated, so the wide model computes the same function (up to rounding) while every
matrix is as large as a bigger model's. It gives a benchmark the cost of a 1.5B-parameter target and
real text, from a file of 100 MB.

    python benchmarks/widen_gguf.py SRC.gguf DST.gguf --dim 2048 --ffn 5632 --heads 32 --kv-heads 8

Needs numpy and gguf. The source may be of any quantisation that gguf can dequantise.

Why it computes the same: zero rows and columns add nothing to a product; an unused head reads and
writes zeros; and RMSNorm's mean over `dim` instead of `dim0` values is smaller by dim0 / dim, so its
weight shrinks by sqrt(dim0 / dim) and its epsilon by dim0 / dim.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

Matrix = npt.NDArray[np.float32]

TYPES = ("F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
# Written from the head size instead: the source may leave them out, and then a reader divides dim by heads.
HEAD_SIZE_KEYS = ("llama.attention.key_length", "llama.attention.value_length")


class WidenError(Exception):
    """The model cannot be widened as asked; the message says why."""


@dataclass(frozen=True)
class Shape:
    """The sizes that widening changes."""

    dim: int
    ffn: int
    heads: int
    kv_heads: int

    @property
    def group(self) -> int:
        """Query heads that share one key and value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Widening:
    """From one shape to another; `head_dim` stays, because attention's scale depends on it."""

    old: Shape
    new: Shape
    head_dim: int

    def __post_init__(self) -> None:
        """Raise WidenError for a new shape that cannot hold the old one."""
        old, new = self.old, self.new
        if new.kv_heads < 1 or new.heads % new.kv_heads:
            raise WidenError(f"--heads {new.heads} must be a multiple of --kv-heads {new.kv_heads}.")
        for name in ("dim", "ffn", "kv_heads", "group"):
            if getattr(new, name) < getattr(old, name):
                option = "heads per kv head" if name == "group" else f"--{name.replace('_', '-')}"
                raise WidenError(f"{option} must be at least {getattr(old, name)}, the source model's.")

    def tensor(self, name: str, weights: Matrix) -> Matrix:
        """The wide version of tensor `name`; matrices are [rows out, columns in]."""
        new = self.new
        if name.endswith("norm.weight"):
            return pad(weights * np.float32(np.sqrt(self.old.dim / new.dim)), (new.dim,))
        if name in ("token_embd.weight", "output.weight"):
            return pad(weights, (weights.shape[0], new.dim))
        # "blk.3.attn_q.weight" -> "attn_q.weight"; biases are unknown and refused below.
        match name.split(".", 2)[-1]:
            case "attn_q.weight":
                return self._spread_rows(weights, new.heads, self._query_places())
            case "attn_k.weight" | "attn_v.weight":
                return self._spread_rows(weights, new.kv_heads, range(self.old.kv_heads))
            case "attn_output.weight":
                return self._spread_rows(weights.T, new.heads, self._query_places()).T.copy()
            case "ffn_gate.weight" | "ffn_up.weight":
                return pad(weights, (new.ffn, new.dim))
            case "ffn_down.weight":
                return pad(weights, (new.dim, new.ffn))
        raise WidenError(f"the source has a tensor this script does not know: {name}.")

    def _query_places(self) -> list[int]:
        """New index of each old query head: head j reads key head j // group, and must go on doing so."""
        old, new = self.old, self.new
        return [(j // old.group) * new.group + j % old.group for j in range(old.heads)]

    def _spread_rows(self, weights: Matrix, heads: int, places: Sequence[int]) -> Matrix:
        """Move each old head's `head_dim` rows to its new head; [heads * head_dim, dim]."""
        wide = np.zeros((heads, self.head_dim, self.new.dim), np.float32)
        by_head = weights.reshape(len(places), self.head_dim, -1)
        wide[list(places), :, : by_head.shape[2]] = by_head
        return wide.reshape(heads * self.head_dim, self.new.dim)


def pad(weights: Matrix, shape: tuple[int, ...]) -> Matrix:
    """`weights` in the low corner of zeros of `shape`."""
    wide = np.zeros(shape, np.float32)
    wide[tuple(slice(0, size) for size in weights.shape)] = weights
    return wide


def widen(source: Path, destination: Path, new: Shape, type_name: str = "Q4_0") -> None:
    """Write `source` at the sizes of `new` to `destination`, matrices as `type_name` (one of TYPES).

    Raises WidenError for another architecture, sizes below the source's, or a tensor it does not know.
    """
    if destination.exists() and destination.samefile(source):
        raise WidenError("the destination is the source, which is read while writing; name another file.")
    reader = GGUFReader(source)
    widening = _widening(reader, new)
    writer = GGUFWriter(destination, "llama")
    try:
        copy_metadata(reader, writer, widening.old, widening.new, widening.head_dim)
        for tensor in reader.tensors:
            weights = quants.dequantize(np.array(tensor.data), tensor.tensor_type).astype(np.float32)
            _add_tensor(writer, tensor.name, widening.tensor(tensor.name, weights), type_name)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _value(reader: GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def _widening(reader: GGUFReader, new: Shape) -> Widening:
    architecture = _value(reader, "general.architecture")
    if architecture != "llama":
        raise WidenError(f"only the llama architecture is supported, and the source is {architecture}.")
    old = Shape(
        dim=_value(reader, "llama.embedding_length"),
        ffn=_value(reader, "llama.feed_forward_length"),
        heads=_value(reader, "llama.attention.head_count"),
        kv_heads=_value(reader, "llama.attention.head_count_kv"),
    )
    return Widening(old, new, head_dim=old.dim // old.heads)


def copy_metadata(reader: GGUFReader, writer: GGUFWriter, old: Shape, new: Shape, head_dim: int) -> None:
    """Everything the source says of itself, with the new sizes."""
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    changed = {
        "llama.embedding_length": new.dim,
        "llama.feed_forward_length": new.ffn,
        "llama.attention.head_count": new.heads,
        "llama.attention.head_count_kv": new.kv_heads,
        epsilon: _value(reader, epsilon) * old.dim / new.dim,
    }
    for key, field in reader.fields.items():
        # "GGUF." are the reader's names for the header's own fields.
        if key.startswith("GGUF.") or key in ("general.architecture", *HEAD_SIZE_KEYS):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(key, changed.get(key, _value(reader, key)), kind, element)
    for key in HEAD_SIZE_KEYS:
        writer.add_key_value(key, head_dim, GGUFValueType.UINT32)


def _add_tensor(writer: GGUFWriter, name: str, weights: Matrix, type_name: str) -> None:
    """Norms stay F32; embeddings are kept at 8 bits or more, as llama.cpp's quantiser does."""
    kind = GGMLQuantizationType[type_name]
    if name.endswith("norm.weight"):
        kind = GGMLQuantizationType.F32
    elif name in ("token_embd.weight", "output.weight") and not type_name.startswith("F"):
        kind = GGMLQuantizationType.Q8_0
    writer.add_tensor(name, quants.quantize(weights, kind), raw_dtype=kind)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with a sentence where the model cannot be widened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--ffn", type=int, default=5632)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--type", default="Q4_0", choices=TYPES)
    options = parser.parse_args(arguments)
    shape = Shape(options.dim, options.ffn, options.heads, options.kv_heads)
    try:
        widen(options.source, options.destination, shape, options.type)
    except (WidenError, OSError) as error:
        sys.exit(f"widen_gguf.py: {error}")


if __name__ == "__main__":
    main()
