"""Slipstream: lossless speculative decoding for language models on your own machine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.core.params import SamplingParams
    from slipstream.engine import (
        Completion,
        Conversation,
        Engine,
        GenerationOptions,
        ModelOptions,
        Stream,
        Timings,
        Token,
    )
    from slipstream.errors import SlipstreamError

    __version__: str

# Where each public name lives. They are imported when they are first used, so that the command line, which is
# part of this package, can show its help without loading numpy and the rest of the engine.
_HOMES = {
    "Completion": "slipstream.engine",
    "Conversation": "slipstream.engine",
    "Engine": "slipstream.engine",
    "GenerationOptions": "slipstream.engine",
    "ModelOptions": "slipstream.engine",
    "SamplingParams": "slipstream.core.params",
    "SlipstreamError": "slipstream.errors",
    "Stream": "slipstream.engine",
    "Timings": "slipstream.engine",
    "Token": "slipstream.engine",
}

__all__ = [
    "Completion",
    "Conversation",
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


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("slipstream-decoding")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
