"""Writing a file that has another one's metadata and other tensors."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import BinaryIO, NamedTuple

from slipstream.models.gguf import GgufHeader
from slipstream.models.gguf_types import TENSOR_TYPES

ALIGNMENT = 32
NUMBERS = {tensor_type.name: number for number, tensor_type in TENSOR_TYPES.items()}
"""Tensor types by name."""
_WHOLE = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
"""How whole numbers of metadata are stored, by their types."""


class Entry(NamedTuple):
    """A tensor of the copy. shape: fastest dimension first; kind: the type's name."""

    name: str
    shape: Sequence[int]
    kind: str


def head(header: GgufHeader, entries: Iterable[Entry], restated: Mapping[str, int]) -> bytes:
    """Everything before the first tensor: the source's metadata, and where tensors are, one after the other.

    restated: other values for whole numbers that the source states; each tensor must begin at a multiple of `ALIGNMENT`
    """
    with header.path.open("rb") as file:
        metadata = bytearray(file.read(header.metadata_end))
    for key, value in {**restated, "split.count": 0, "general.alignment": ALIGNMENT}.items():
        _restate(metadata, key, value)
    offset, table, count = 0, bytearray(), 0
    for count, entry in enumerate(entries, 1):  # noqa: B007
        spelled, shape = entry.name.encode(), entry.shape
        table += struct.pack("<Q", len(spelled)) + spelled + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        table += struct.pack("<IQ", NUMBERS[entry.kind], offset)
        offset += aligned(nbytes(entry))
    struct.pack_into("<Q", metadata, 8, count)
    whole = metadata + table
    return bytes(whole + bytes(aligned(len(whole)) - len(whole)))


def nbytes(entry: Entry) -> int:
    """Bytes that a tensor takes."""
    block = TENSOR_TYPES[NUMBERS[entry.kind]]
    return prod(entry.shape) // block.block_size * block.block_bytes


def aligned(position: int) -> int:
    """The first place from `position` on where a tensor may begin."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def pad(output: BinaryIO) -> None:
    """Go on to where a tensor may begin."""
    output.write(bytes(aligned(output.tell()) - output.tell()))


def _restate(metadata: bytearray, key: str, value: int) -> None:
    """Put another whole number in a key's place; nothing is done where it is not stated as one."""
    name = struct.pack("<Q", len(key)) + key.encode()
    at = metadata.find(name) + len(name)
    if at < len(name):
        return
    layout = _WHOLE.get(struct.unpack_from("<I", metadata, at)[0])
    if layout is not None:
        struct.pack_into(layout, metadata, at + 4, value)
