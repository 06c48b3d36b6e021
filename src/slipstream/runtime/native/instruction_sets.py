"""Which instruction set the arithmetic uses: the best this processor has, unless the environment says otherwise."""

import os

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
            f"{VARIABLE}={asked} is not an instruction set of this machine; "
            f"choose one of {', '.join(instruction_sets())}, or unset it."
        )
    return asked
