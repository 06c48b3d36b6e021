"""The native runtime: a CPU runtime built for verification.

A few rows cost little more than one, and a row's logits are the same bits in any company. The arithmetic is C++
(`native/` in the repository, the module `_native` here); `architectures/` describes models, one file each.
"""

from slipstream.runtime.native.instruction_sets import chosen_instruction_set, default_instruction_set, instruction_sets
from slipstream.runtime.native.loading import unsupported
from slipstream.runtime.native.measure import huge_page_bytes, measure_dot, measure_fma, measure_read
from slipstream.runtime.native.model import NativeModel, load_native, memory_of, read_behind

__all__ = [
    "NativeModel",
    "chosen_instruction_set",
    "default_instruction_set",
    "huge_page_bytes",
    "instruction_sets",
    "load_native",
    "measure_dot",
    "measure_fma",
    "measure_read",
    "memory_of",
    "read_behind",
    "unsupported",
]
