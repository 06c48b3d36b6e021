"""Low-bit copies of targets, made once and kept in Slipstream's cache (ML-SpecQD, arXiv 2503.13565)."""

from collections.abc import Callable
from math import prod
from pathlib import Path

from slipstream.engine.copies import kept_copies, kept_copy
from slipstream.errors import UsageError
from slipstream.models import GgufHeader
from slipstream.models.low_bit import write_low_bit
from slipstream.runtime import requantize
from slipstream.runtime.threads import default_threads

DEFAULT_KIND = "q4_0"
"""What our own quantiser makes; other types are llama.cpp's."""
LEAST_BITS = 8.0
"""A weight of a target that is worth a copy: verification has to be a good deal slower than drafting."""


def low_bit_copy(header: GgufHeader, kind: str, report: Callable[[float], None]) -> Path:
    """The copy's path; makes it unless it is there. Interrupted work leaves nothing behind.

    kind:   "q4_0" or one of llama.cpp's file types
    report: called with the fraction that is made

    Raises UsageError (a target of too few bits, an unknown type), UnsupportedModelError, StorageError, and
    RuntimeUnavailableError where llama.cpp is needed and not installed.
    """
    kind = kind.lower() or DEFAULT_KIND
    if not is_worth_a_copy(header):
        raise UsageError(
            f"{header.path.name} has {bits_per_weight(header):.1f} bits a weight, and a low-bit copy pays for models "
            "of 8 or more; use --draft suffix or a smaller model."
        )

    def write(finished: Path) -> None:
        if kind == DEFAULT_KIND:
            write_low_bit(header, finished, report, default_threads())
        else:
            requantize(header.path, finished, kind)

    what = f"a low-bit copy of {header.path.name}"
    return kept_copy(header, kind, what, header.tensor_bytes, write, report)


def is_worth_a_copy(header: GgufHeader) -> bool:
    """Whether a target has so many bits a weight that a copy in fewer is a good deal faster."""
    return bits_per_weight(header) >= LEAST_BITS


def copies_of(header: GgufHeader) -> dict[str, Path]:
    """The low-bit copies of a target that have been made, by type. Raises ModelFileError where it cannot be read."""
    return {kind: path for kind, path in kept_copies(header).items() if kind.isidentifier()}


def bits_per_weight(header: GgufHeader) -> float:
    """Of all tensors together."""
    return 8 * header.tensor_bytes / max(sum(prod(tensor.shape) for tensor in header.tensors), 1)
