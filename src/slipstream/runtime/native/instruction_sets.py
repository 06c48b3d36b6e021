"""Which instruction set the arithmetic uses: the best this processor has, unless the environment says otherwise."""

import os
import platform
from pathlib import Path

from slipstream.errors import UsageError
from slipstream.runtime.native import _native

VARIABLE = "SLIPSTREAM_ISA"


def instruction_sets() -> tuple[str, ...]:
    """Names of the instruction sets that this build has and this processor runs, the fastest first."""
    return tuple(_native.instruction_sets())


def default_instruction_set() -> str:
    """The one that is used unless `SLIPSTREAM_ISA` asks for another."""
    return instruction_sets()[0]


def chosen_instruction_set() -> str:
    """`SLIPSTREAM_ISA` if it is set, else the default. Raises UsageError for a name that cannot be used here."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return default_instruction_set()
    if asked not in instruction_sets():
        raise UsageError(
            f"{VARIABLE}={asked} is not an instruction set that this build has and this machine runs; "
            f"choose one of {', '.join(instruction_sets())}, or unset it."
        )
    return asked


def slow_build() -> str | None:
    """A sentence where this build has nothing for this processor but portable code, and could have more."""
    if default_instruction_set() != "portable" or platform.machine() not in ("x86_64", "AMD64") or not _has_avx2():
        return None
    return (
        "This build of the native runtime was made for another processor and computes slowly on this one; "
        "run scripts/setup again here, or reinstall slipstream-decoding."
    )


def _has_avx2() -> bool:
    """As Linux tells; elsewhere nobody knows."""
    try:
        return " avx2 " in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
