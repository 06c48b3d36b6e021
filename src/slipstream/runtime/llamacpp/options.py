"""What a caller may ask of the llama.cpp runtime, checked before the library sees it."""

from dataclasses import dataclass

from slipstream.errors import RuntimeUnavailableError, UsageError
from slipstream.models.gguf import GgufHeader
from slipstream.runtime.checks import check_choice, check_range, check_sizes, context_for
from slipstream.runtime.threads import default_threads

FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
"""`llama_flash_attn_type`."""

KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}
"""`ggml_type` of the keys or values in the cache."""

ALL_LAYERS = -1


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options; None means the default for this model and machine."""

    context_length: int | None = None
    max_sequences: int = 1
    threads: int | None = None
    batch_threads: int | None = None
    gpu_layers: int | str = "auto"
    flash_attention: str = "auto"
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    max_rows: int = 512

    def __post_init__(self) -> None:
        """Raise UsageError for values that cannot be, whatever the model."""
        check_sizes(self.context_length, self.max_sequences, self.threads, self.max_rows)
        check_range("number of batch threads", self.batch_threads, 1, 512)
        check_choice("flash attention", self.flash_attention, FLASH_ATTENTION)
        check_choice("KV cache type for keys", self.kv_type_k, KV_TYPES)
        check_choice("KV cache type for values", self.kv_type_v, KV_TYPES)
        if self.flash_attention == "off" and self.kv_type_v.startswith("q"):
            raise UsageError(
                f"A {self.kv_type_v} KV cache for values needs flash attention; set it to auto or on, or use f16."
            )
        if isinstance(self.gpu_layers, str):
            check_choice("number of GPU layers", self.gpu_layers, ("auto", "all"))
        else:
            check_range("number of GPU layers", self.gpu_layers, 0, 1 << 20)

    def context_for(self, header: GgufHeader) -> int:
        """Tokens a session holds. Raises UsageError for more than the model was trained to attend to."""
        return context_for(header, self.context_length)

    def gpu_layers_for(self, has_gpu: bool) -> int:
        """Layers to put on the GPU, `ALL_LAYERS` for all. Raises RuntimeUnavailableError where there is none."""
        if has_gpu:
            return ALL_LAYERS if isinstance(self.gpu_layers, str) else self.gpu_layers
        if self.gpu_layers not in ("auto", 0):
            raise RuntimeUnavailableError(
                "The installed llama.cpp library sees no GPU, so no layers can be put on one; leave GPU layers "
                "at auto or 0, or reinstall llama-cpp-python with a GPU backend (CMAKE_ARGS=-DGGML_CUDA=on)."
            )
        return 0

    def thread_counts(self) -> tuple[int, int]:
        """Threads for a forward of one row, and for one of more rows."""
        threads = self.threads or default_threads()
        return threads, self.batch_threads or threads
