"""Runtimes: what loads a model file and computes its logits. Each implements `core.protocols.Model`.

Importing this package loads no inference library; the first `load` or `load_*` call does.
"""

from slipstream.runtime.llamacpp import devices, load_llamacpp, requantize
from slipstream.runtime.selection import Choice, LoadOptions, RuntimeName, choose, load, runtime_named

__all__ = [
    "Choice",
    "LoadOptions",
    "RuntimeName",
    "choose",
    "devices",
    "load",
    "load_llamacpp",
    "requantize",
    "runtime_named",
]
