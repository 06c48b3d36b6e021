"""Runtimes: what loads a model file and computes its logits. Each implements `core.protocols.Model`.

Importing this package loads no inference library; the first `load_*` call does.
"""

from slipstream.runtime.llamacpp import devices, load_llamacpp, requantize

__all__ = ["devices", "load_llamacpp", "requantize"]
