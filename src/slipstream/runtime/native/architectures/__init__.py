"""The architectures that the native runtime knows, one declarative file each."""

from collections.abc import Callable

from slipstream.runtime.native.architectures.gemma3 import gemma3
from slipstream.runtime.native.architectures.llama import llama
from slipstream.runtime.native.architectures.qwen2 import qwen2
from slipstream.runtime.native.architectures.qwen3 import qwen3
from slipstream.runtime.native.modelfile import ModelFile
from slipstream.runtime.native.program import Decoder

ARCHITECTURES: dict[str, Callable[[ModelFile], Decoder]] = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma3": gemma3,
}
"""By `general.architecture`."""
