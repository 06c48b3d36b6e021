"""A copy of a model with some of its layers only, for runtimes that cannot leave layers out while they compute.

The layers that are kept are numbered anew, so a copy works where a layer does the same whatever its number is, or
where each one keeps its place in the pattern of its architecture.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from slipstream.errors import UnsupportedModelError
from slipstream.models.gguf import GgufHeader, TensorInfo
from slipstream.models.gguf_copy import Entry, head, pad
from slipstream.models.layer_sets import spelled

CHUNK = 1 << 24
"""Bytes that are copied at once."""
ALIKE = frozenset(
    (
        *("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "phi2", "gemma", "starcoder2", "stablelm", "gptneox"),
        *("falcon", "internlm2", "olmo", "olmoe", "granite", "command-r", "exaone", "nemotron"),
    )
)
"""Architectures whose layers are computed alike by llama.cpp, whatever their number is."""
PERIODS = {"gemma2": 2, "gemma3": 6, "cohere2": 4}
"""Architectures in which one layer of so many sees everything and the others a window."""
BY_COUNT = {("gemma2", 46), ("gemma3", 62)}
"""Models that llama.cpp knows by their number of layers and computes otherwise."""


def layer_count(header: GgufHeader) -> int:
    """Layers of the model; 0 if its file does not say."""
    return header.integer(f"{header.architecture}.block_count") or 0


def period_of(header: GgufHeader) -> int:
    """Layers after which the pattern of the architecture repeats itself.

    Raises UnsupportedModelError where it is not known that a copy with fewer layers would be computed alike.
    """
    architecture = header.architecture
    period = 1 if architecture in ALIKE else PERIODS.get(architecture)
    if period is None or (architecture, layer_count(header)) in BY_COUNT or _states_layers(header):
        raise UnsupportedModelError(
            f"A copy of {header.path.name} with fewer layers cannot be made: what a layer of its kind "
            f"({architecture}) does may depend on its number; use another draft."
        )
    stated = header.integer(f"{architecture}.attention.sliding_window_pattern") if period > 1 else None
    return stated or period


def can_be_renumbered(layers: Sequence[int], period: int) -> bool:
    """Whether each of the layers keeps its place in the pattern."""
    return all(layer % period == place % period for place, layer in enumerate(layers))


def check_layers(header: GgufHeader, layers: Sequence[int]) -> None:
    """Raise UnsupportedModelError for layers that cannot be numbered anew."""
    period = period_of(header)
    if not can_be_renumbered(layers, period):
        raise UnsupportedModelError(
            f"A copy of {header.path.name} with the layers {spelled(layers)} cannot be made, because every {period} of "
            f"them are a pattern; leave out {period} in a row, or a multiple of that."
        )


def write_pruned(
    header: GgufHeader, layers: Sequence[int], destination: Path, progress: Callable[[float], None]
) -> None:
    """Write the copy; `progress` is called with the fraction that is done.

    Raises UnsupportedModelError (`check_layers`), OSError where `destination` cannot be written.
    """
    check_layers(header, layers)
    kept = [(tensor, name) for tensor in header.tensors if (name := _renamed(tensor.name, layers)) is not None]
    files = [np.memmap(part, np.uint8, "r") for part in header.parts]
    entries = [Entry(name, tensor.shape, tensor.type.name) for tensor, name in kept]
    done, whole = 0, max(sum(tensor.nbytes for tensor, _ in kept), 1)
    with destination.open("wb") as output:
        output.write(head(header, entries, {f"{header.architecture}.block_count": len(layers)}))
        for tensor, _ in kept:
            pad(output)
            for chunk in _chunks(files[tensor.part], tensor):
                output.write(chunk)
            done += tensor.nbytes
            progress(done / whole)
        pad(output)


def pruned_bytes(header: GgufHeader, layers: Sequence[int]) -> int:
    """Bytes of the copy's tensors."""
    return sum(tensor.nbytes for tensor in header.tensors if _renamed(tensor.name, layers) is not None)


def _renamed(name: str, layers: Sequence[int]) -> str | None:
    """A tensor's name in the copy, None if it is not there."""
    block, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    if block != "blk" or not number.isdecimal():
        return name
    return f"blk.{layers.index(int(number))}.{rest}" if int(number) in layers else None


def _states_layers(header: GgufHeader) -> bool:
    """Whether metadata says something of each layer, or of the last ones."""
    prefix, count = f"{header.architecture}.", layer_count(header)
    stated = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    lists = [value for value in stated.values() if isinstance(value, np.ndarray) and len(value) == count]
    return bool(lists or stated.get("nextn_predict_layers"))


def _chunks(file: "np.memmap[tuple[int], np.dtype[np.uint8]]", tensor: TensorInfo) -> Iterator[bytes]:
    end = tensor.offset + tensor.nbytes
    for start in range(tensor.offset, end, CHUNK):
        yield file[start : min(start + CHUNK, end)].tobytes()
