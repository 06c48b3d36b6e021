"""The files that benchmarks compare on, each made once and kept in `benchmarks` of Slipstream's cache.

All but one come from SmolLM2-135M as the catalogue has it (Q4_1): itself, other types of the same sizes, the model
widened to 1.45B parameters (`widen_gguf.py`: the same function, the cost of a larger model), K-quants of that one by
llama.cpp's quantiser, the wide shapes with random weights (`random_gguf.py`), and models with next to nothing in their
layers (`thin`), whose forwards are all overhead. Gemma 3 270M has most of its weights in its output.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from benchmarks.random_gguf import randomise
from benchmarks.widen_gguf import Shape, copy_metadata, widen
from slipstream.core.protocols import Model
from slipstream.models import read_model_header, resolve
from slipstream.models.gguf import GgufHeader, TensorInfo, read_header
from slipstream.models.paths import cache_directory
from slipstream.models.storage import exclusive, publish
from slipstream.runtime import LoadOptions, choose, load, requantize, runtime_named

SOURCE_SHAPE = Shape(dim=576, ffn=1536, heads=9, kv_heads=3)
WIDE_SHAPE = Shape(dim=2048, ffn=5632, heads=32, kv_heads=8)
SMALL = "SmolLM2-135M Q4_1"
GEMMA = "Gemma 3 270M Q4_K_M"
FETCHED = {SMALL: "smollm2-135m", GEMMA: "gemma3-270m"}
HEAD_SIZE = 64
EXACT = " as F32"
"""Appended to a small file's name: the values of its weights, in F32."""


def _widened(shape: Shape, kind: str, source: str = SMALL) -> Callable[[Path], None]:
    return lambda path: widen(rig_file(source), path, shape, kind)


def _requantised(source: str, kind: str) -> Callable[[Path], None]:
    """As llama.cpp's quantiser makes it, which mixes types."""

    def make(path: Path) -> None:
        requantize(rig_file(source), path, kind)

    return make


SMALL_FILES = (SMALL, "SmolLM2-135M Q4_0", "SmolLM2-135M Q8_0", "SmolLM2-135M F16")
MAKERS: dict[str, Callable[[Path], None]] = {
    **{name: _widened(SOURCE_SHAPE, name.split()[-1]) for name in SMALL_FILES[1:]},
    **{name + EXACT: _widened(SOURCE_SHAPE, "F32", name) for name in SMALL_FILES},
    **{f"wide {kind}": _widened(WIDE_SHAPE, kind) for kind in ("Q4_0", "Q8_0", "F16")},
    **{f"wide {kind}": _requantised("wide F16", kind) for kind in ("Q2_K", "Q4_K_M", "Q6_K")},
    "random Q4_0": lambda path: randomise(rig_file("wide Q4_0"), path),
    "thin 576": lambda path: thin(rig_file(SMALL), path, 576),
    "thin 2048": lambda path: thin(rig_file(SMALL), path, 2048),
}
"""How to write each file but those of FETCHED, which are the catalogue's."""


def loaded(path: Path, runtime: str, context_length: int = 2048) -> Model:
    """A file's model on a runtime ("auto": the one it would get)."""
    options = LoadOptions(runtime_named("runtime", runtime), context_length=context_length)
    return load(path, choose(read_model_header(path), options), options)


def rig_file(name: str) -> Path:
    """Path of the file called `name` (a key of FETCHED or MAKERS), fetched or made now if it is not there."""
    if name in FETCHED:
        return resolve(FETCHED[name], fetch=True)
    path = cache_directory() / "benchmarks" / f"{name.replace(' ', '-')}.gguf"
    with exclusive(path.with_suffix(".lock"), lambda: None):
        if not path.exists():
            print(f"Making {path.name}; this takes a minute, once.", file=sys.stderr, flush=True)
            unfinished = path.with_suffix(".part")
            MAKERS[name](unfinished)
            publish(unfinished, path)
    return path


def thin(source: Path, destination: Path, dim: int) -> None:
    """Write a model of as many layers as `source`, `dim` wide, with one head and a feed-forward of 32; random Q4_0."""
    shape = Shape(dim=dim, ffn=32, heads=1, kv_heads=1)
    reader, writer, random = GGUFReader(source), GGUFWriter(destination, "llama"), np.random.default_rng(0)
    copy_metadata(reader, writer, SOURCE_SHAPE, shape, HEAD_SIZE)
    for tensor in reader.tensors:
        sizes = _thin_shape(tensor.name, shape, vocabulary=int(tensor.shape[-1]))
        values = random.standard_normal(sizes, np.float32) / np.float32(np.sqrt(dim))
        kind = GGMLQuantizationType.Q4_0 if len(sizes) > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _thin_shape(name: str, shape: Shape, vocabulary: int) -> tuple[int, ...]:
    """[rows out, columns in] of a tensor; its name is "blk.3.attn_q.weight", "token_embd.weight" or the like."""
    match name.split(".")[-2]:
        case "token_embd" | "output":
            return vocabulary, shape.dim
        case "attn_q" | "attn_k" | "attn_v":
            return HEAD_SIZE, shape.dim
        case "attn_output":
            return shape.dim, HEAD_SIZE
        case "ffn_gate" | "ffn_up":
            return shape.ffn, shape.dim
        case "ffn_down":
            return shape.dim, shape.ffn
    return (shape.dim,)


def matrices(header: GgufHeader) -> list[TensorInfo]:
    """The matrices that a forward multiplies with: all but an embedding that the output does not share."""
    names = {tensor.name for tensor in header.tensors}
    unused = {"token_embd.weight"} if "output.weight" in names else set()
    return [tensor for tensor in header.tensors if len(tensor.shape) > 1 and tensor.name not in unused]


def matrix_size(path: Path) -> tuple[int, int]:
    """Bytes that a forward reads of the matrices in this file, and multiply-adds that one row needs."""
    used = matrices(read_header(path))
    return sum(tensor.nbytes for tensor in used), sum(tensor.shape[0] * tensor.shape[1] for tensor in used)


def layer_bytes(path: Path) -> int:
    """Bytes of the matrices in the layers of this file: all but embedding and output."""
    return sum(tensor.nbytes for tensor in matrices(read_header(path)) if tensor.name.startswith("blk."))
