"""A copy of a model with its matrices in four bits, so that a model can draft for itself (`--draft lowbit`).

Quantised as ggml does it (`quantize_row_q4_0_ref`, `quantize_row_q8_0_ref` in ggml-quants.c): the number of a block
that is largest without its sign gives the scale. The output's matrix keeps eight bits: it decides between tokens that
are close, and is a small part of the work.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import UnsupportedModelError
from slipstream.models.gguf import GgufHeader, TensorInfo
from slipstream.models.gguf_copy import Entry, head, nbytes, pad
from slipstream.models.gguf_types import FILE_TYPES
from slipstream.models.tensor_types import bytes_by_type, is_matrix

BLOCK = 32
CHUNK = 1 << 21
"""Numbers that are converted at once; a multiple of `BLOCK`."""
SMALLEST = 1e-30
_FILE_TYPE = next(number for number, name in FILE_TYPES.items() if name == "Q4_0")

Numbers = NDArray[np.float32]


def write_low_bit(header: GgufHeader, destination: Path, progress: Callable[[float], None], threads: int = 2) -> None:
    """Write the copy; `progress` is called with the fraction that is done.

    header: of a model whose matrices are F32, F16, BF16 or Q8_0, as `read_model_header` gives it
    Raises UnsupportedModelError for other types, OSError where `destination` cannot be written.
    """
    if (unknown := unreadable_type(header)) is not None:
        raise UnsupportedModelError(
            f"{header.path.name} has {unknown} matrices, of which no low-bit copy can be made without llama.cpp; "
            "use another draft, or a file of 8 or 16 bits."
        )
    files = [np.memmap(part, np.uint8, "r") for part in header.parts]
    kinds = _kinds(header)
    done, whole = 0, max(header.tensor_bytes, 1)
    with destination.open("wb") as output, ThreadPoolExecutor(threads) as pool:
        output.write(head(header, _entries(header.tensors, kinds), {"general.file_type": _FILE_TYPE}))
        for tensor, kind in zip(header.tensors, kinds, strict=True):
            source = files[tensor.part][tensor.offset : tensor.offset + tensor.nbytes]
            pad(output)
            for written in _in_order(pool, _converter(tensor, kind), _chunks(source, tensor), 2 * threads):
                output.write(written)
            done += tensor.nbytes
            progress(done / whole)
        pad(output)


def _in_order(
    pool: Executor, convert: Callable[[NDArray[np.uint8]], bytes], chunks: Iterable[NDArray[np.uint8]], most: int
) -> Iterator[bytes]:
    """Results in the order of their chunks, of which `most` are in work: a whole tensor would take too much memory."""
    waiting: deque[Future[bytes]] = deque()
    for chunk in chunks:
        waiting.append(pool.submit(convert, chunk))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def unreadable_type(header: GgufHeader) -> str | None:
    """A type of matrices from which no copy can be made here; None if there is none."""
    types = [one.type.name for one in header.tensors if _is_quantised(one)]
    return next((name for name in types if name not in READERS), None)


def planned_types(header: GgufHeader) -> dict[str, int]:
    """Bytes by tensor type, most first, of the copy that `write_low_bit` would make."""
    held: Counter[str] = Counter()
    for entry in _entries(header.tensors, _kinds(header)):
        held[entry.kind] += nbytes(entry)
    return dict(held.most_common())


def planned_to_fall_back(header: GgufHeader) -> dict[str, int]:
    """Of these, the bytes of matrices that stay as they are because their rows are no whole blocks."""
    return bytes_by_type(one for one in header.tensors if is_matrix(one) and not _is_quantised(one))


def _is_quantised(tensor: TensorInfo) -> bool:
    """Whether the copy has it in fewer bits: matrices of whole blocks."""
    return is_matrix(tensor) and tensor.shape[0] % BLOCK == 0


def _kinds(header: GgufHeader) -> list[str]:
    """The types that all tensors have in the copy."""
    output_name = max(("output.weight", "token_embd.weight"), key=[one.name for one in header.tensors].count)
    return [_kind(tensor, output_name) for tensor in header.tensors]


def _kind(tensor: TensorInfo, output_name: str) -> str:
    """The type that a tensor has in the copy."""
    if not _is_quantised(tensor):
        return tensor.type.name
    return "Q8_0" if tensor.name == output_name else "Q4_0"


def _entries(tensors: Iterable[TensorInfo], kinds: Iterable[str]) -> Iterator[Entry]:
    for tensor, kind in zip(tensors, kinds, strict=True):
        yield Entry(tensor.name, tensor.shape, kind)


def _chunks(source: NDArray[np.uint8], tensor: TensorInfo) -> Iterator[NDArray[np.uint8]]:
    step = CHUNK // tensor.type.block_size * tensor.type.block_bytes
    for start in range(0, len(source), step):
        yield source[start : start + step]


def _converter(tensor: TensorInfo, kind: str) -> Callable[[NDArray[np.uint8]], bytes]:
    if kind == tensor.type.name:
        return lambda source: source.tobytes()
    read, write = READERS[tensor.type.name], WRITERS[kind]
    return lambda source: write(read(source)).tobytes()


def _read_bf16(source: NDArray[np.uint8]) -> Numbers:
    return (source.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _read_q8_0(source: NDArray[np.uint8]) -> Numbers:
    blocks = source.reshape(-1, 34)
    scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    return (blocks[:, 2:].view(np.int8).astype(np.float32) * scales).reshape(-1)


def quantised_q4_0(numbers: Numbers) -> NDArray[np.uint8]:
    """[n / 32, 18] bytes of Q4_0 blocks, as ggml writes them."""
    blocks = numbers.reshape(-1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scales = largest / np.float32(-8)
    codes = np.clip(blocks * _inverse(scales) + np.float32(8.5), 0, 15).astype(np.uint8)
    result = np.empty((len(blocks), 18), np.uint8)
    result[:, :2] = scales.astype("<f2").view(np.uint8)
    result[:, 2:] = codes[:, :16] | codes[:, 16:] << 4
    return result


def quantised_q8_0(numbers: Numbers) -> NDArray[np.uint8]:
    """[n / 32, 34] bytes of Q8_0 blocks, as ggml writes them."""
    blocks = numbers.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scales)
    result = np.empty((len(blocks), 34), np.uint8)
    result[:, :2] = scales.astype("<f2").view(np.uint8)
    result[:, 2:] = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8).view(np.uint8)
    return result


def _inverse(scales: Numbers) -> Numbers:
    """0 for a scale so small that half precision has none for it."""
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=np.abs(scales) > SMALLEST)


READERS: dict[str, Callable[[NDArray[np.uint8]], Numbers]] = {
    "F32": lambda source: source.view("<f4"),
    "F16": lambda source: source.view("<f2").astype(np.float32),
    "BF16": _read_bf16,
    "Q8_0": _read_q8_0,
}
"""From a tensor's bytes to its numbers, for types of eight bits or more."""

WRITERS: dict[str, Callable[[Numbers], NDArray[np.uint8]]] = {"Q4_0": quantised_q4_0, "Q8_0": quantised_q8_0}
