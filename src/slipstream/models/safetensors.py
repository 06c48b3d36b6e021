"""Read safetensors files: a length, a JSON header, and plain numbers.

Source: the format's description (https://huggingface.co/docs/safetensors). A file is untrusted: every length and offset
is checked against the bytes that are there before anything is read.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelFileError

MOST_HEADER: Final = 100_000_000
"""Bytes, as the format has it."""
MOST: Final = 1 << 40
"""Larger than any dimension."""

TYPES: Final = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "u1",
}
"""Types of numbers, and numpy's for their bytes."""


class Safetensors(Mapping[str, NDArray[Any]]):
    """The tensors of a file by name, each read when it is asked for; BF16 comes as float32, BOOL as bool.

    Raises ModelFileError for a file that is damaged, truncated or of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._size = file.seek(0, 2)
                file.seek(0)
                length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
                if not 2 <= length <= min(MOST_HEADER, self._size - 8):
                    raise self._damaged("its header does not fit")
                raw = file.read(length)
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error
        self._start = 8 + length
        try:
            entries = json.loads(raw)
        except (ValueError, RecursionError):
            raise self._damaged("its header is no JSON") from None
        if not isinstance(entries, dict):
            raise self._damaged("its header is no list of tensors")
        self._entries = {name: self._checked(name, one) for name, one in entries.items() if name != "__metadata__"}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> NDArray[Any]:
        kind, shape, offset = self._entries[name]
        numbers = np.fromfile(self.path, TYPES[kind], prod(shape), offset=offset)
        if numbers.size < prod(shape):
            raise self._damaged("it could not be read to its end")
        if kind == "BF16":
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        return (numbers.astype(np.bool_) if kind == "BOOL" else numbers).reshape(shape)

    def _checked(self, name: str, entry: object) -> tuple[str, tuple[int, ...], int]:
        """Type, shape and place of a tensor."""
        if not isinstance(entry, dict) or str(entry.get("dtype")) not in TYPES:
            raise self._damaged(f"the tensor {name[:80]!r} has no type that is known")
        kind, shape, offsets = str(entry["dtype"]), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
        if shape is None or offsets is None or len(offsets) != 2:
            raise self._damaged(f"the tensor {name[:80]!r} has an impossible shape or place")
        begin, end = offsets
        if end - begin != prod(shape) * np.dtype(TYPES[kind]).itemsize or end > self._size - self._start:
            raise self._damaged(f"the tensor {name[:80]!r} has an impossible shape or place")
        return kind, shape, self._start + begin

    def _damaged(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is no complete safetensors file ({what}); download it again.")


def _sizes(numbers: object) -> tuple[int, ...] | None:
    """A list of sizes; None for anything else."""
    if isinstance(numbers, list) and all(type(one) is int and 0 <= one <= MOST for one in numbers):
        return tuple(numbers)
    return None
