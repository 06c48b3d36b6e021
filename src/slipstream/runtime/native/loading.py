"""From a file's header to weights in memory: which architecture, which tensors, how many bytes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from slipstream.errors import ModelFileError, RuntimeUnavailableError
from slipstream.models.gguf import GgufHeader, TensorInfo
from slipstream.models.heads import EMBEDDING, OUTPUT, HeadFile
from slipstream.runtime.memory import available_memory, gigabytes
from slipstream.runtime.native import _native
from slipstream.runtime.native.architectures import ARCHITECTURES
from slipstream.runtime.native.architectures.eagle3 import eagle3
from slipstream.runtime.native.modelfile import MOST, ROTARY_FACTORS, ModelFile, NotSupported
from slipstream.runtime.native.program import Decoder, compiled

FORMATS = {
    "F32": 0,
    "F16": 1,
    "BF16": 30,
    "Q8_0": 8,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "IQ4_NL": 20,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
}
"""Tensor types with a layout (native/src/matrix.hpp), by their numbers in a file."""

VECTOR_FORMATS = ("F32", "F16", "BF16")

F16_BYTES = 2
BORROWED = "the target's output"
"""What a head's program calls the output matrix where it is the target's."""

MOST_HEADS = 1 << 18
"""Numbers in all heads of a layer: four times what the largest models have."""

TensorPlace = tuple[str, int, int, int, int, int]
"""Name, type, rows, columns, part of the model, offset in that file."""


class Plan(NamedTuple):
    """What is to be loaded. parts: the files that places count."""

    decoder: Decoder
    places: list[TensorPlace]
    parts: Sequence[Path]

    @property
    def vocabulary(self) -> int:
        """Logits in a row: the rows of the output matrix."""
        return next(rows for name, _, rows, *_ in self.places if name == self.decoder.output)

    @property
    def fused(self) -> int:
        """Numbers of the hidden states that rows begin with; 0 where they begin with embeddings."""
        fuse = self.decoder.fuse
        return next((columns for name, _, _, columns, *_ in self.places if fuse and name == fuse.matrix), 0)


class Sizes(NamedTuple):
    """What the caller decides."""

    sessions: int
    context: int
    rows: int
    threads: int


class Memory(NamedTuple):
    """Bytes that a model takes."""

    weights: int
    kv_cache: int
    buffers: int


def unsupported(header: GgufHeader) -> str | None:
    """Why the native runtime cannot run this file, as a clause that follows a colon; None if it can."""
    try:
        plan(header)
    except NotSupported as reason:
        return str(reason)
    return None


def plan(header: GgufHeader) -> Plan:
    """Describe the file's decoder and find its tensors. Raises NotSupported."""
    _require_name(header)
    describe = ARCHITECTURES.get(header.architecture)
    if describe is None:
        raise NotSupported(f"its architecture {header.architecture!r} is not known to it")
    file = ModelFile(header)
    file.refuse("pooling_type", "it is an embedding model")
    if not file.flag("attention.causal", True):
        raise NotSupported("it is an embedding model")
    decoder = describe(file)
    _check_sizes(decoder)
    names = decoder.tensors()
    if unknown := set(file.tensors) - set(names) - {ROTARY_FACTORS}:
        raise NotSupported(f"it has tensors that its architecture does not use ({min(unknown)})")
    return Plan(decoder, _places(file, decoder, names), header.parts)


def plan_head(head: HeadFile, target: GgufHeader) -> Plan:
    """The same for a head, which belongs to this target. Where it has no output matrix, the target's is loaded once
    more. Raises NotSupported.
    """
    _require_name(head.header)
    decoder = eagle3(head, OUTPUT if head.has(OUTPUT) else BORROWED)
    _check_sizes(decoder)
    places = _places(ModelFile(head.header), decoder, [name for name in decoder.tensors() if name != BORROWED])
    if decoder.output == BORROWED:
        file = ModelFile(target)
        _, kind, rows, columns, part, offset = _place(file, OUTPUT if file.has(OUTPUT) else EMBEDDING)
        places.append((BORROWED, kind, rows, columns, len(head.header.parts) + part, offset))
    return Plan(decoder, places, (*head.header.parts, *target.parts))


def _require_name(header: GgufHeader) -> None:
    try:
        str(header.path).encode()
    except UnicodeEncodeError:
        raise NotSupported("its name is not UTF-8") from None


def _places(file: ModelFile, decoder: Decoder, names: Sequence[str]) -> list[TensorPlace]:
    vectors = decoder.vectors()
    return [_vector_place(file, name) if name in vectors else _place(file, name) for name in names]


def load(header: GgufHeader, plan: Plan, threads: int, progress: Callable[[float], None] | None) -> _native.Program:
    """Read and repack the weights; the program holds them. Raises ModelFileError, RuntimeUnavailableError."""
    try:
        _check_feed_forward(plan)
        weights = _native.load_weights([str(part) for part in plan.parts], plan.places, threads, progress)
        return compiled(plan.decoder, weights, [name for name, *_ in plan.places])
    except ValueError as problem:
        raise ModelFileError(f"{header.path} is damaged ({problem}); download or convert it again.") from None
    except MemoryError:
        raise RuntimeUnavailableError(
            f"There is not enough memory for {header.path.name}; choose a smaller model."
        ) from None


def memory_needed(plan: Plan, sizes: Sizes) -> Memory:
    """What loading with these sizes takes, known before any of it is taken."""
    decoder = plan.decoder
    cache, buffers = _native.memory_needed(
        windows=decoder.windows(),
        width=decoder.width,
        heads=decoder.heads,
        key_value_heads=decoder.key_value_heads,
        head_size=decoder.head_size,
        feed_forward=decoder.feed_forward,
        vocabulary=plan.vocabulary,
        angles=sum(2 * len(rotary.frequencies) for rotary in decoder.rotaries()),
        fused=plan.fused,
        sessions=sizes.sessions,
        context=sizes.context,
        rows=sizes.rows,
        threads=sizes.threads,
    )
    return Memory(_native.weight_bytes(plan.places), cache, buffers)


def cached_bytes(plan: Plan, tokens: int) -> int:
    """Bytes of keys and values of so many tokens that the next one looks at: in each layer those of its window."""
    decoder = plan.decoder
    in_layers = sum(min(window or tokens, tokens) for window in decoder.windows())
    return 2 * F16_BYTES * decoder.key_value_heads * decoder.head_size * in_layers


def check_memory(name: str, needed: Memory, sizes: Sizes) -> None:
    """Raise RuntimeUnavailableError, with the numbers, if the machine does not have as much."""
    available = available_memory()
    if available is None or sum(needed) <= available:
        return
    raise RuntimeUnavailableError(
        f"{name} needs {gigabytes(sum(needed))} of memory (weights {gigabytes(needed.weights)}, KV cache of "
        f"{sizes.sessions} sequence(s) of {sizes.context} tokens {gigabytes(needed.kv_cache)}, buffers "
        f"{gigabytes(needed.buffers)}) and {gigabytes(available)} are free; choose a shorter context, fewer "
        "sequences or a smaller model."
    )


def _check_sizes(decoder: Decoder) -> None:
    """The kernels work on groups of 32."""
    for what, size in (
        ("width", decoder.width),
        ("head size", decoder.head_size),
        ("feed-forward size", decoder.feed_forward),
        *(("rotary embedding's size", 2 * len(rotary.frequencies)) for rotary in decoder.rotaries()),
    ):
        if size % 32:
            raise NotSupported(f"its {what} {size} is not a multiple of 32")
    if decoder.heads * decoder.head_size > MOST_HEADS:
        raise NotSupported(f"its {decoder.heads} heads of {decoder.head_size} numbers are more than any model has")
    if decoder.heads % decoder.key_value_heads:
        raise NotSupported(f"its {decoder.heads} heads cannot share {decoder.key_value_heads} key-value heads evenly")


def _check_feed_forward(plan: Plan) -> None:
    """The one size of a decoder that its program does not state. Raises ValueError, as `compiled` does."""
    gates, needed = plan.decoder.gates(), plan.decoder.feed_forward
    for name, _, rows, *_ in plan.places:
        if name in gates and rows != needed:
            raise ValueError(f"{name} has {rows} rows where {needed} are needed")


def _place(file: ModelFile, name: str) -> TensorPlace:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise NotSupported(f"it has no tensor {name}")
    if tensor.type.name not in FORMATS:
        raise NotSupported(f"{name} is {tensor.type.name}, and it knows {', '.join(FORMATS)}")
    rows, columns = _matrix_shape(tensor)
    return name, FORMATS[tensor.type.name], rows, columns, tensor.part, tensor.offset


def _vector_place(file: ModelFile, name: str) -> TensorPlace:
    place = _, _, rows, *_ = _place(file, name)
    if rows != 1:
        raise NotSupported(f"{name} is a matrix where a vector is needed")
    if (kind := file.tensors[name].type.name) not in VECTOR_FORMATS:
        raise NotSupported(f"{name} is {kind}, and vectors are {', '.join(VECTOR_FORMATS)}")
    return place


def _matrix_shape(tensor: TensorInfo) -> tuple[int, int]:
    """Rows (output channels; 1 for a vector) and columns (inputs)."""
    columns, *rest = tensor.shape or (0,)
    rows = rest.pop(0) if rest else 1
    if min(rows, columns) < 1:
        raise NotSupported(f"{tensor.name} is a single number where a row is needed")
    if any(size != 1 for size in rest):
        raise NotSupported(f"{tensor.name} has more than two dimensions")
    if max(rows, columns) > MOST:
        raise NotSupported(f"{tensor.name} is {rows} x {columns}, which is more than any model has")
    if columns % 32:
        raise NotSupported(f"{tensor.name} has rows of {columns} numbers, which is not a multiple of 32")
    return rows, columns
