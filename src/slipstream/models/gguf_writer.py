"""Write GGUF files: metadata and tensors of the models that are made here.

Source: the GGUF specification (docs/gguf.md in the ggml repository), version 3, little endian.
"""

import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.models.gguf import Value
from slipstream.models.gguf_types import ARRAY, SCALARS, STRING, TENSOR_TYPES
from slipstream.models.low_bit import WRITERS
from slipstream.models.packed_strings import PackedStrings

ALIGNMENT: Final = 32
_TYPES: Final = {tensor_type.name: number for number, tensor_type in TENSOR_TYPES.items()}
_SCALARS: Final = {dtype: number for number, dtype in SCALARS.items()}
_BOOL, _U32, _F32 = (_SCALARS[np.dtype(name)] for name in ("?", "<u4", "<f4"))


class Tensor(NamedTuple):
    """One tensor as it stands in a file. shape: as PyTorch says it, rows first."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: bytes


def stored(name: str, numbers: NDArray[Any], kind: str) -> Tensor:
    """A tensor with its numbers in the type `kind`: F32, F16, I64, Q4_0 or Q8_0 (rows of whole blocks of 32)."""
    plain = {"F32": "<f4", "F16": "<f2", "I64": "<i8"}
    if kind in plain:
        data = numbers.astype(plain[kind]).tobytes()
    else:
        data = WRITERS[kind](np.ascontiguousarray(numbers, np.float32).reshape(-1)).tobytes()
    return Tensor(name, kind, numbers.shape, data)


def stored_bytes(shape: Sequence[int], kind: str) -> int:
    """Bytes of a tensor in a file, without what aligns it."""
    block = TENSOR_TYPES[_TYPES[kind]]
    return prod(shape) // block.block_size * block.block_bytes


def metadata_bytes(metadata: Mapping[str, Value]) -> bytes:
    """All entries, as a file has them between its counts and its list of tensors."""
    return b"".join(_text(key) + _typed(value) for key, value in metadata.items())


def write_gguf(path: Path, metadata: Mapping[str, Value], tensors: Sequence[Tensor]) -> None:
    """Write a whole file. Whole numbers become uint32, fractions float32, arrays keep their type.

    Raises OSError where `path` cannot be written.
    """
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + metadata_bytes(metadata)
    offset = 0
    for tensor in tensors:
        shape = tensor.shape[::-1]
        head += _text(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", _TYPES[tensor.kind], offset)
        offset += -(-len(tensor.data) // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as file:
        file.write(_padded(head))
        for tensor in tensors:
            file.write(_padded(tensor.data))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", STRING) + _text(value)
        case PackedStrings():
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + value.raw
        case _:
            return struct.pack("<IIQ", ARRAY, _SCALARS[value.dtype], len(value)) + value.tobytes()
