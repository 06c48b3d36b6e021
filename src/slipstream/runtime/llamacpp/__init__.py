"""The llama.cpp runtime: every architecture and every GPU backend that the installed library has.

All calls into the library are in this package, through `llama-cpp-python`'s low-level binding.
"""

from slipstream.runtime.llamacpp.binding import devices
from slipstream.runtime.llamacpp.model import LlamaCppModel, load_llamacpp
from slipstream.runtime.llamacpp.quantize import requantize

__all__ = ["LlamaCppModel", "devices", "load_llamacpp", "requantize"]
