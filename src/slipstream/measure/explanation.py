"""What a model file comes to on this machine: what runs it and why, what memory it takes, how fast it can be at most.

Nothing is loaded. A token of plain decoding reads every weight once, so the rate at which this machine reads memory
bounds its speed (Williams, Waterman, Patterson 2009, the roofline model); speculation shares a reading among tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.engine.low_bit import DEFAULT_KIND, copies_of, is_worth_a_copy
from slipstream.errors import ModelFileError, SlipstreamError
from slipstream.measure.memory_bill import kv_bytes_per_token
from slipstream.models import GgufHeader, PackedStrings, read_model_header
from slipstream.models.low_bit import planned_to_fall_back, planned_types, unreadable_type
from slipstream.models.shipped_heads import shipped_head
from slipstream.models.tensor_types import bytes_by_type, fallen_back
from slipstream.runtime import LoadOptions, choose, devices
from slipstream.runtime.checks import check_sizes, context_for
from slipstream.runtime.llamacpp import binding
from slipstream.runtime.memory import available_memory
from slipstream.runtime.threads import default_threads
from slipstream.tokenizer.specification import Specification

MOST_READ, LEAST_READ = 1_000_000_000, 64_000_000
"""Bytes that are read to learn the rate: as many as the model has, since a small one may lie in a cache."""

SIZES = {
    "layers": "block_count",
    "width": "embedding_length",
    "heads": "attention.head_count",
    "key-value heads": "attention.head_count_kv",
}


@dataclass(frozen=True, slots=True)
class LowBitCopy:
    """A copy in fewer bits that can draft for the model (`--draft lowbit:TYPE`).

    made:        whether it is there; the types of one that is not are those that our quantiser would choose
    formats:     bytes by tensor type, most first
    fallen_back: of them, those of matrices that could not have the type that was asked for
    """

    type: str
    made: bool
    formats: Mapping[str, int]
    fallen_back: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of one file. Sizes in bytes, rates in bytes per second.

    sizes:       of the architecture, those that the file states
    formats:     bytes by tensor type, most first
    fallen_back: of them, those of matrices that could not have the type that the file is named after
    copies:      low-bit copies of it; none of a model that has few bits itself
    reason:      why this runtime, a sentence
    computes_on: processors
    context:     tokens that the figures of memory are for
    kv_cache, buffers: None where that is not known before the model is loaded
    free:        memory that can be had now, None where the system does not say
    read:        weights that a token of plain decoding reads
    read_behind: keys and values that one behind a full context reads
    read_rate:   of this machine's memory, None where layers go to a GPU or it was not measured
    head:        what the head that comes with Slipstream for it takes beside it; 0 where none does
    """

    name: str
    path: str
    architecture: str
    sizes: Mapping[str, int]
    formats: Mapping[str, int]
    fallen_back: Mapping[str, int]
    copies: Sequence[LowBitCopy]
    runtime: str
    reason: str
    computes_on: str
    context: int
    weights: int
    kv_cache: int | None
    buffers: int | None
    free: int | None
    read: int
    read_behind: int | None
    read_rate: float | None
    head: int = 0

    @property
    def first_rate(self) -> float | None:
        """Most tokens per second of plain decoding, at the beginning of a text; None if unknown."""
        return None if self.read_rate is None else self.read_rate / self.read

    @property
    def last_rate(self) -> float | None:
        """The same at the end of the context."""
        if self.read_rate is None or self.read_behind is None:
            return None
        return self.read_rate / (self.read + self.read_behind)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self.path,
            "architecture": self.architecture,
            "sizes": {name.replace(" ", "_").replace("-", "_"): size for name, size in self.sizes.items()},
            "format_bytes": dict(self.formats),
            "fallen_back_bytes": dict(self.fallen_back),
            "low_bit_copies": [
                {
                    "type": one.type,
                    "made": one.made,
                    "format_bytes": dict(one.formats),
                    "fallen_back_bytes": dict(one.fallen_back),
                }
                for one in self.copies
            ],
            "runtime": self.runtime,
            "reason": self.reason,
            "computes_on": self.computes_on,
            "context": self.context,
            "memory_bytes": {"weights": self.weights, "kv_cache": self.kv_cache, "buffers": self.buffers},
            "head_bytes": self.head,
            "free_bytes": self.free,
            "bytes_per_token": self.read,
            "bytes_per_second": self.read_rate,
            "most_tokens_per_second": self.first_rate,
            "most_tokens_per_second_at_full_context": self.last_rate,
        }


def explain(header: GgufHeader, options: LoadOptions) -> Explanation:
    """Explain a file as it would be loaded; measures for about a second how fast memory is read.

    Raises what `runtime.choose` raises, and UsageError for sizes that cannot be.
    """
    check_sizes(options.context_length, options.max_sequences, options.threads, 2)
    context = context_for(header, options.context_length)
    threads = options.threads or default_threads()
    choice = choose(header, options)
    per_token = kv_bytes_per_token(header)
    weights, cache, buffers = header.tensor_bytes, None if per_token is None else per_token * context, None
    behind = cache
    if choice.runtime == "native":
        from slipstream.runtime.native import chosen_instruction_set, memory_of, read_behind

        weights, cache, buffers = memory_of(header, context_length=context, threads=threads)
        behind = read_behind(header, context)
        reason = "The native runtime can run it: a few tokens are checked for little more than the price of one."
        reason += _tokenizer(header)
        computes_on = f"CPU, {threads} threads, {chosen_instruction_set()}"
        on_cpu = True
    else:
        here = binding.installed()
        found = devices() if here and options.gpu_layers != 0 else []
        on_cpu = not found
        reason = choice.notice or ("There is a GPU." if found else "llama.cpp was asked for.")
        reason += "" if here else f" It is not installed; run: {binding.INSTALL}."
        computes_on = " and ".join([*found, "CPU"]) if found else f"CPU, {threads} threads"
    read = _read_per_token(header)
    return Explanation(
        name=header.path.name,
        path=str(header.path),
        architecture=header.architecture,
        sizes=_sizes(header),
        formats=bytes_by_type(header.tensors),
        fallen_back=fallen_back(header),
        copies=_copies(header),
        runtime=choice.runtime,
        reason=reason,
        computes_on=computes_on,
        context=context,
        weights=weights,
        kv_cache=cache,
        buffers=buffers,
        free=available_memory(),
        read=read,
        read_behind=behind,
        read_rate=_read_rate(read, threads) if on_cpu else None,
        head=_head(header, context, threads) if choice.runtime == "native" else 0,
    )


def _head(header: GgufHeader, context: int, threads: int) -> int:
    """Bytes of the head that drafts where nothing else is asked for; 0 where there is none that can be used."""
    from slipstream.runtime.native.head import head_memory

    try:
        head = shipped_head(header)
        return 0 if head is None else sum(head_memory(head, header, context_length=context, threads=threads))
    except SlipstreamError:
        return 0


def _copies(header: GgufHeader) -> list[LowBitCopy]:
    """Copies that are there, and the one that `--draft lowbit` would make."""
    if not is_worth_a_copy(header):
        return []
    copies = []
    for kind, path in copies_of(header).items():
        copy = read_model_header(path)
        copies.append(LowBitCopy(kind, True, bytes_by_type(copy.tensors), fallen_back(copy)))
    if DEFAULT_KIND not in [one.type for one in copies] and unreadable_type(header) is None:
        copies.append(LowBitCopy(DEFAULT_KIND, False, planned_types(header), planned_to_fall_back(header)))
    return sorted(copies, key=lambda one: (one.type != DEFAULT_KIND, one.type))


def _tokenizer(header: GgufHeader) -> str:
    """What has to be said of the file's tokenizer, if anything."""
    try:
        Specification.from_header(header)
    except ModelFileError as refusal:
        needed = "" if binding.installed() else f" It is not installed; run: {binding.INSTALL}."
        return f" Texts become tokens by llama.cpp. {refusal}{needed}"
    return ""


def _sizes(header: GgufHeader) -> dict[str, int]:
    found = {name: header.integer(f"{header.architecture}.{key}") for name, key in SIZES.items()}
    vocabulary = header.metadata.get("tokenizer.ggml.tokens")
    known = {name: size for name, size in found.items() if size is not None}
    return known | ({"vocabulary": len(vocabulary)} if isinstance(vocabulary, PackedStrings) else {})


def _read_per_token(header: GgufHeader) -> int:
    """Bytes of weights that a token needs: all but embeddings that serve for nothing else, and its experts only."""
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    used = header.integer(f"{header.architecture}.expert_used_count") or 0
    experts = header.integer(f"{header.architecture}.expert_count") or 0
    total = 0.0
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight" and not tied:
            continue
        share = used / experts if "_exps" in tensor.name and 0 < used <= experts else 1.0
        total += share * tensor.nbytes
    return round(total)


def _read_rate(read: int, threads: int) -> float | None:
    """Bytes per second at which threads read as much memory again and again.

    None without the extension, and where there is so little memory that what is left must be spared.
    """
    try:
        from slipstream.runtime.native import measure_read
    except ImportError:
        return None
    free = available_memory()
    nbytes = min(max(read, LEAST_READ), MOST_READ if free is None else min(MOST_READ, free // 4))
    if nbytes < LEAST_READ:
        return None
    try:
        return 1e9 * measure_read(threads, nbytes // 1_000_000)
    except MemoryError:
        return None
