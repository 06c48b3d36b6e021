"""A long list of byte strings that stays in one piece of memory until somebody asks for one."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

LENGTH = struct.Struct("<Q")


class PackedStrings(Sequence[bytes]):
    """Byte strings in GGUF's encoding: each is its length (8 bytes, little endian) and its bytes.

    `raw` is the whole encoding and `ends` [n] int64 says where each string ends in it. The
    encoding is injective, so two equal stretches of `raw` hold the same strings.
    """

    __slots__ = ("ends", "raw")

    def __init__(self, raw: bytes, ends: npt.NDArray[np.int64]) -> None:
        self.raw = raw
        self.ends = ends

    @classmethod
    def pack(cls, strings: Iterable[bytes | str]) -> "PackedStrings":
        """Build one from ordinary strings (`str` is stored as UTF-8)."""
        encoded = [text.encode() if isinstance(text, str) else text for text in strings]
        raw = b"".join(LENGTH.pack(len(text)) + text for text in encoded)
        lengths = np.fromiter((LENGTH.size + len(text) for text in encoded), np.int64, len(encoded))
        return cls(raw, np.cumsum(lengths, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        return self.raw[self._start(position) + LENGTH.size : int(self.ends[position])]

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for end in self.ends.tolist():
            yield self.raw[start + LENGTH.size : end]
            start = end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedStrings) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"PackedStrings({len(self)} strings, {len(self.raw)} bytes)"

    def encoding(self, count: int) -> memoryview:
        """The encoding of the first `count` strings, without a copy."""
        return memoryview(self.raw)[: self._start(count)]

    def texts(self) -> list[str]:
        """All strings as text; bytes that are not UTF-8 become U+FFFD."""
        return [text.decode(errors="replace") for text in self]

    def _start(self, position: int) -> int:
        return int(self.ends[position - 1]) if position else 0
