#!/usr/bin/env python3
"""A copy of a model file with random weights: the same header, shapes and types, no zeros to skip.

    python benchmarks/random_gguf.py SRC.gguf DST.gguf [--seed 0]

The model says nonsense; a forward must cost what it costs with the source's weights. Matrices get blocks of random
codes with scales that keep activations at the size they have in a trained model; norms get values around 1, biases
around 0.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.errors import SlipstreamError
from slipstream.models import read_header
from slipstream.models.gguf import TensorInfo

Random = np.random.Generator
Maker = Callable[[Random, int, float], npt.NDArray[Any]]
"""(random, blocks, standard deviation of the values) -> blocks as the file stores them."""


def scales(random: Random, blocks: int, size: float) -> npt.NDArray[Any]:
    """Scales around `size` of either sign, so that codes that are not symmetric have no mean."""
    made: npt.NDArray[Any] = random.uniform(0.5 * size, 1.5 * size, blocks) * random.choice([-1.0, 1.0], blocks)
    return made


def q4_0(random: Random, blocks: int, deviation: float) -> npt.NDArray[Any]:
    """32 codes 0..15, value = scale * (code - 8)."""
    made = np.empty(blocks, [("scale", "<f2"), ("codes", "u1", 16)])
    made["scale"] = scales(random, blocks, deviation / 4.6)
    made["codes"] = random.integers(0, 256, (blocks, 16), np.uint8)
    return made


def q4_1(random: Random, blocks: int, deviation: float) -> npt.NDArray[Any]:
    """32 codes 0..15, value = scale * code + minimum."""
    made = np.empty(blocks, [("scale", "<f2"), ("minimum", "<f2"), ("codes", "u1", 16)])
    made["scale"] = scales(random, blocks, deviation / 4.6)
    made["minimum"] = -7.5 * made["scale"]
    made["codes"] = random.integers(0, 256, (blocks, 16), np.uint8)
    return made


def q8_0(random: Random, blocks: int, deviation: float) -> npt.NDArray[Any]:
    """32 signed codes, value = scale * code."""
    made = np.empty(blocks, [("scale", "<f2"), ("codes", "i1", 32)])
    made["scale"] = scales(random, blocks, deviation / 74)
    made["codes"] = random.integers(-127, 128, (blocks, 32), np.int8)
    return made


def f16(random: Random, blocks: int, deviation: float) -> npt.NDArray[Any]:
    """Plain values."""
    return (deviation * random.standard_normal(blocks, np.float32)).astype("<f2")


def f32(random: Random, blocks: int, deviation: float) -> npt.NDArray[Any]:
    """Plain values."""
    return (deviation * random.standard_normal(blocks, np.float32)).astype("<f4")


MAKERS: dict[str, Maker] = {"Q4_0": q4_0, "Q4_1": q4_1, "Q8_0": q8_0, "F16": f16, "F32": f32}


def random_tensor(random: Random, tensor: TensorInfo) -> npt.NDArray[Any]:
    """Blocks of the tensor's type and size. Raises SlipstreamError for a type this script cannot make."""
    if tensor.type.name not in MAKERS:
        raise SlipstreamError(f"{tensor.name} is {tensor.type.name}; this script makes {', '.join(MAKERS)}.")
    columns = tensor.shape[0]
    blocks = int(np.prod(tensor.shape)) // tensor.type.block_size
    made = MAKERS[tensor.type.name](random, blocks, columns**-0.5)
    return 1 + made if len(tensor.shape) == 1 and not tensor.name.endswith(".bias") else made


def randomise(source: Path, destination: Path, seed: int = 0) -> None:
    """Write `source` with other weights. Raises SlipstreamError for a file or a type it cannot read or make."""
    header = read_header(source)
    random = np.random.default_rng(seed)
    with source.open("rb") as given, destination.open("wb") as file:
        file.write(given.read(header.data_offset))
        file.truncate(header.file_size)
        for tensor in header.tensors:
            file.seek(tensor.offset)
            file.write(random_tensor(random, tensor).tobytes())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with a sentence where the file cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.destination.exists() and options.destination.samefile(options.source):
        sys.exit("random_gguf.py: the destination is the source; name another file.")
    try:
        randomise(options.source, options.destination, options.seed)
    except (SlipstreamError, OSError) as error:
        sys.exit(f"random_gguf.py: {error}")


if __name__ == "__main__":
    main()
