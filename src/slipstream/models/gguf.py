"""Read the header of a GGUF file: metadata and tensor table, never the weights.

Source: the GGUF specification (docs/gguf.md in the ggml repository), versions 2 and 3,
little endian. Long arrays stay packed (`PackedStrings`, numpy), so that a vocabulary of 262k
tokens costs tens of milliseconds. A file is untrusted: every count and length is checked against
the bytes that are there before anything is allocated for it.
"""

import os
import stat
import struct
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn

import numpy as np

from slipstream.errors import ModelFileError, UnsupportedModelError
from slipstream.models.gguf_types import ARRAY, FILE_TYPES, SCALARS, STRING, TENSOR_TYPES, TensorType
from slipstream.models.packed_strings import LENGTH, PackedStrings
from slipstream.models.split import join

Value = bool | int | float | str | PackedStrings | np.ndarray[Any, np.dtype[Any]]
"""A metadata value: a scalar, or an array that is still packed."""

# Headers of real models are 1-20 MB (the vocabulary). The first size serves nearly all of them in one read.
READ_SIZES = (1 << 24, 1 << 28)
# No real file comes near these; they bound the time a hostile one can cost.
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 18
MAX_DIMENSIONS = 4
"""`GGML_MAX_DIMS`."""
MAX_LAYERS = 512
"""`LLAMA_MAX_LAYERS` of llama.cpp."""
# More than 0 is what a top-p must be.
SMALLEST = sys.float_info.min


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor. `shape` has the fastest dimension first, as in the file; `offset` counts from its start.

    part: index into the header's `parts` of the file that holds it
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the file's author recommends (`general.sampling.*`); None where the file says nothing usable."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True)
class GgufHeader:
    """The header of one file, or of a model split into several. Properties give None where the file says nothing.

    other_parts:  files beside `path` whose tensors are among these
    metadata_end: bytes of the file before its list of tensors
    """

    path: Path
    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    file_size: int
    other_parts: tuple[Path, ...] = ()
    metadata_end: int = 0

    @property
    def parts(self) -> tuple[Path, ...]:
        """All files of the model; `TensorInfo.part` counts them."""
        return self.path, *self.other_parts

    @property
    def architecture(self) -> str:
        """`general.architecture`, such as "llama"; empty if the file does not say."""
        return self.text("general.architecture") or ""

    @property
    def name(self) -> str:
        """The model's name, or the file's name without its suffix."""
        return self.text("general.name") or self.path.stem

    @property
    def licence(self) -> str | None:
        """The licence as the file states it, such as "apache-2.0"."""
        stated = self.metadata.get("general.license")
        if isinstance(stated, PackedStrings):  # some converters write a list
            return ", ".join(stated.texts()) or None
        named = self.text("general.license.name")
        return named if named and stated in (None, "other") else self.text("general.license")

    @property
    def context_length(self) -> int | None:
        """Tokens the model was trained to attend to."""
        length = self.integer(f"{self.architecture}.context_length")
        return length if length and length > 0 else None

    @property
    def chat_template(self) -> str | None:
        """The default chat template (Jinja source)."""
        return self.text("tokenizer.chat_template")

    @property
    def quantisation(self) -> str:
        """The file type such as "Q4_K_M"; without one, the tensor type that holds most bytes."""
        file_type = self.integer("general.file_type")
        if file_type is not None and file_type in FILE_TYPES:
            return FILE_TYPES[file_type]
        held: Counter[str] = Counter()
        for tensor in self.tensors:
            held[tensor.type.name] += tensor.nbytes
        return held.most_common(1)[0][0] if held else "unknown"

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """The recommended sampling values; impossible ones are left out, as a wrong default helps nobody."""
        return SamplingDefaults(
            temperature=self._recommended("temp", 1e-4, 100.0, zero=True),
            top_k=_whole(self._recommended("top_k", 0, 1 << 31)),
            top_p=self._recommended("top_p", SMALLEST, 1.0),
            min_p=self._recommended("min_p", 0.0, 1.0),
            repetition_penalty=self._recommended("penalty_repeat", 0.01, 100.0),
        )

    def text(self, key: str) -> str | None:
        """The value of `key` if it is a string."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        """The value of `key` if it is an integer (a bool is not)."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, key: str) -> bool | None:
        """The value of `key` if it is a bool."""
        value = self.metadata.get(key)
        return value if isinstance(value, bool) else None

    def require_language_model(self) -> None:
        """Refuse files that are good GGUF but nothing that can generate text.

        Raises UnsupportedModelError for vision projectors, LoRA adapters, importance matrices,
        vocabulary-only files, files without an architecture and files with an impossible number of
        layers, for which llama.cpp would end the process.
        """
        problem = self._not_a_language_model()
        if problem:
            raise UnsupportedModelError(f"{self.path} {problem}")

    def _not_a_language_model(self) -> str | None:
        kind = (self.text("general.type") or "model").lower()
        if kind == "mmproj" or self.architecture == "clip":
            return "is a vision projector, not a language model; give the model file that it belongs to."
        if kind == "adapter":
            return "is a LoRA adapter; merge it into its base model (llama.cpp's llama-export-lora) and give that file."
        if self.architecture == "eagle3":
            return "is a head, which drafts for another model; give that model, and this file with --draft."
        if kind == "imatrix":
            return "is an importance matrix for quantising, not a language model; give the model file."
        if not self.architecture:
            return "does not say which architecture it has; convert the model again."
        if not self.tensors:
            return "holds a vocabulary without weights; give the full model file."
        return self._impossible_size()

    def _impossible_size(self) -> str | None:
        for key, most in (("block_count", MAX_LAYERS), ("embedding_length", None)):
            number = self.integer(f"{self.architecture}.{key}")
            if number is not None and (number < 1 or (most and number > most)):
                allowed = f"must be from 1 to {most}" if most else "must be 1 or more"
                return (
                    f"says that {self.architecture}.{key} is {number}, which {allowed}; download or convert it again."
                )
        return None

    def _recommended(self, key: str, low: float, high: float, *, zero: bool = False) -> float | None:
        """A number of `general.sampling.*` if it is from `low` to `high`, or 0 where `zero` means something."""
        value = self.metadata.get(f"general.sampling.{key}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        # float32 0.95 would show as 0.949999988: give back the shortest number that the file can mean.
        shortest = float(f"{value:.7g}")
        return shortest if low <= shortest <= high or (zero and shortest == 0) else None


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Scan the header of any GGUF file, model or not (see `read_model_header`).

    Raises ModelFileError, with one sentence, if there is no such file or it is not a complete GGUF
    file; UnsupportedModelError for a version or tensor type that this code does not know.
    """
    path = Path(path)
    try:
        with _open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            for limit in READ_SIZES:
                file.seek(0)
                data = file.read(limit)
                try:
                    return _Scanner(path, data, size).scan()
                except _RanOut:
                    if len(data) < limit:
                        break
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.") from error
    if size > READ_SIZES[-1]:
        raise ModelFileError(f"{path} has an impossibly long header; the file is damaged: download it again.")
    raise ModelFileError(f"{path} ends inside its header ({size} bytes); the file is truncated: download it again.")


def read_model_header(path: str | os.PathLike[str]) -> GgufHeader:
    """`read_header` for what must be a language model: what everything that loads one should call.

    Of a model that is split into several files, `path` is the first (`split.join`).
    """
    header = join(read_header(path), read_header)
    header.require_language_model()
    return header


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a pipe or device could block for ever, so nothing else is opened."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ModelFileError(f"There is no file {path}; check the path, or see `slipstream models`.") from None
    except ValueError:  # a zero byte in the name
        raise ModelFileError(f"{str(path)!r} is not a file name.") from None
    if stat.S_ISDIR(mode):
        raise ModelFileError(f"{path} is a directory; give the .gguf file in it.")
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{path} is not a regular file; give a .gguf file.")
    return path.open("rb")


class _RanOut(Exception):
    """The header goes on after the bytes that were read."""


class _Scanner:
    """Walks the header's bytes once, front to back. Every step checks that its bytes exist."""

    def __init__(self, path: Path, data: bytes, file_size: int) -> None:
        self.path = path
        self.data = data
        self.file_size = file_size
        self.position = 0

    def scan(self) -> GgufHeader:
        version = self._version()
        tensor_count = self._count("tensors", MAX_TENSORS)
        entry_count = self._count("metadata entries", MAX_ENTRIES)
        metadata = self._metadata(entry_count)
        end = self.position
        infos = [self._tensor() for _ in range(tensor_count)]
        data_offset = self._aligned(self.position, self._alignment(metadata))
        tensors = self._placed(infos, data_offset, self._alignment(metadata))
        return GgufHeader(
            self.path, version, MappingProxyType(metadata), tensors, data_offset, self.file_size, metadata_end=end
        )

    def _version(self) -> int:
        if not self.data:
            raise ModelFileError(f"{self.path} is empty; download it again.")
        if self.data[:4] != b"GGUF":
            raise ModelFileError(f"{self.path} is not a GGUF file{_guess(self.data)}.")
        self._take(4)
        version = self._number("<I")
        if version in (2, 3):
            return version
        if version & 0xFFFF == 0 and version:
            raise UnsupportedModelError(f"{self.path} is a big-endian GGUF file; only little-endian files can be read.")
        if version == 1:
            raise UnsupportedModelError(f"{self.path} is GGUF version 1, which is obsolete; convert the model again.")
        raise UnsupportedModelError(f"{self.path} is GGUF version {version}; versions 2 and 3 can be read.")

    def _metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self._text()
            if key in metadata:
                self._damaged(f"the metadata key {key[:80]!r} appears twice")
            metadata[key] = self._value(self._number("<I"))
        return metadata

    def _value(self, kind: int) -> Value:
        if kind == STRING:
            return self._text()
        if kind == ARRAY:
            return self._array()
        if kind not in SCALARS:
            self._damaged(f"a metadata value has the unknown type {kind}")
        scalar: bool | int | float = self._numbers(kind, 1)[0].item()
        return scalar

    def _array(self) -> Value:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == STRING:
            return self._strings(count)
        if kind not in SCALARS:
            self._damaged(f"a metadata array has elements of the unknown type {kind}")
        return self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        dtype = SCALARS[kind]
        raw = self._take(count * dtype.itemsize)
        if dtype == np.bool_:  # any byte but 0 counts as true; numpy must not see such bytes as bool
            return np.frombuffer(raw, np.uint8).astype(np.bool_)
        return np.frombuffer(raw, dtype)

    def _strings(self, count: int) -> PackedStrings:
        self._need(count * LENGTH.size)
        data, start, unpack = self.data, self.position, LENGTH.unpack_from
        end, last = start, len(data) - LENGTH.size
        ends: list[int] = []
        append = ends.append  # this loop runs once per token of the vocabulary: it is the scan's whole cost
        for _ in range(count):
            if end > last:
                break
            (length,) = unpack(data, end)
            end += 8 + length
            append(end)
        self._need(end - start)
        if len(ends) < count:
            self._need(end - start + LENGTH.size)
        self.position = end
        return PackedStrings(data[start:end], np.array(ends, np.int64) - start)

    def _tensor(self) -> tuple[str, TensorType, tuple[int, ...], int]:
        name = self._text()
        dimensions = self._number("<I")
        if dimensions > MAX_DIMENSIONS:
            self._damaged(f"the tensor {name[:80]!r} has {dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(dimensions))
        kind = self._number("<I")
        if kind not in TENSOR_TYPES:
            raise UnsupportedModelError(
                f"{self.path}: tensor {name[:80]!r} has the type {kind}, which this version does not know."
            )
        return name, TENSOR_TYPES[kind], shape, self._number("<Q")

    def _placed(
        self, infos: list[tuple[str, TensorType, tuple[int, ...], int]], data_offset: int, alignment: int
    ) -> tuple[TensorInfo, ...]:
        """Check that tensors lie inside the file and apart from each other; give offsets from its start."""
        tensors = []
        for name, kind, shape, offset in infos:
            row = shape[0] if shape else 1
            if 0 in shape or row % kind.block_size or offset % alignment:
                self._damaged(f"the tensor {name[:80]!r} has an impossible shape or place")
            nbytes = prod(shape) // kind.block_size * kind.block_bytes
            tensors.append(TensorInfo(name, kind, shape, data_offset + offset, nbytes))
        name, times = Counter(tensor.name for tensor in tensors).most_common(1)[0] if tensors else ("", 0)
        if times > 1:
            self._damaged(f"the tensor {name[:80]!r} appears {times} times")
        needed = max((tensor.offset + tensor.nbytes for tensor in tensors), default=0)
        if needed > self.file_size:
            raise ModelFileError(
                f"{self.path} is truncated: its tensors need {needed} bytes and it has {self.file_size}; "
                "download it again."
            )
        for one, other in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
            if one.offset + one.nbytes > other.offset:
                self._damaged(f"the tensors {one.name[:80]!r} and {other.name[:80]!r} overlap")
        return tuple(tensors)

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        alignment = metadata.get("general.alignment", 32)
        # A power of two, as llama.cpp demands; the upper bound keeps sums small.
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            self._damaged("general.alignment is not a power of two")
        return alignment

    @staticmethod
    def _aligned(position: int, alignment: int) -> int:
        return -(-position // alignment) * alignment

    def _count(self, what: str, limit: int) -> int:
        count = self._number("<Q")
        if count > limit:
            self._damaged(f"it claims {count} {what}")
        return count

    def _number(self, layout: str) -> int:
        number: int = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return number

    def _text(self) -> str:
        return self._take(self._number("<Q")).decode(errors="replace")

    def _take(self, length: int) -> bytes:
        self._need(length)
        start, self.position = self.position, self.position + length
        return self.data[start : self.position]

    def _need(self, length: int) -> None:
        """Say at once, and allocate nothing, if `length` more bytes cannot be there."""
        end = self.position + length
        if end > self.file_size:
            raise ModelFileError(
                f"{self.path} ends inside its header (it has {self.file_size} bytes and promises {end}); "
                "the file is truncated or damaged: download it again."
            )
        if end > len(self.data):
            raise _RanOut

    def _damaged(self, what: str) -> NoReturn:
        raise ModelFileError(f"{self.path} is damaged ({what}); download it again.")


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _guess(data: bytes) -> str:
    """What the user probably has instead, as the end of a sentence."""
    if data.startswith(b"version https://git-lfs"):
        return ": it is a Git LFS pointer to one; fetch the real file with `git lfs pull`"
    if data[:4] in (b"lmgg", b"fmgg", b"tjgg"):
        return ": it is an older GGML file; convert the model again"
    if data[:2] == b"PK":
        return ": it is a zip archive (perhaps a PyTorch model); give a .gguf file"
    if data[8:10] == b'{"':
        return ": it looks like safetensors; convert it with llama.cpp's convert_hf_to_gguf.py"
    if data.lstrip()[:1] == b"<":
        return ": it is a web page (a failed download?); download it again"
    return "; give a .gguf model file"
