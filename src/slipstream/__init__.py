"""Slipstream: lossless speculative decoding for language models on your own machine."""

from slipstream.core.params import SamplingParams
from slipstream.engine import Completion, Engine, GenerationOptions, ModelOptions, Stream, Timings, Token
from slipstream.errors import SlipstreamError

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "Engine",
    "GenerationOptions",
    "ModelOptions",
    "SamplingParams",
    "SlipstreamError",
    "Stream",
    "Timings",
    "Token",
    "__version__",
]
