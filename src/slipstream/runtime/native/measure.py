"""What this machine reaches at most: the limits that benchmarks hold a forward's time against."""

from slipstream.runtime.native import _native
from slipstream.runtime.native.instruction_sets import chosen_instruction_set


def measure_read(threads: int, megabytes: int) -> float:
    """GB/s at which the threads read this much memory, in order and with nothing else to do."""
    return _native.measure_read(threads, megabytes * 1_000_000)


def measure_dot(threads: int) -> float:
    """1e9 8-bit multiply-adds a second on data in registers, with the chosen instruction set."""
    return _native.measure_dot(threads, chosen_instruction_set())


def measure_fma(threads: int) -> float:
    """The same for 32-bit float multiply-adds."""
    return _native.measure_fma(threads, chosen_instruction_set())


def huge_page_bytes() -> int:
    """Bytes of this process that lie in transparent huge pages."""
    return _native.huge_page_bytes()
