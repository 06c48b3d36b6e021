"""The door to llama.cpp: imports llama-cpp-python once and checks that binding and library fit.

The binding describes C structures in Python by hand. A library of another version lays them out
differently, and then every option silently means something else; so before anything is loaded the
library's own default parameters are read through the binding and each field must be plausible.
"""

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from slipstream.errors import RuntimeUnavailableError
from slipstream.runtime.llamacpp.log import LibraryLog

INSTALL = "pip install 'slipstream-decoding[llamacpp]', or scripts/setup --llamacpp in a checkout"
REINSTALL = "pip install --force-reinstall --no-cache-dir 'llama-cpp-python>=0.3.36'"

GPU_DEVICES = (1, 2)
"""`ggml_backend_dev_type`: GPU with its own memory, integrated GPU. 0 is the CPU, 3 a library such as BLAS."""

log = LibraryLog()

Plausible = Callable[[Any], bool]


def _among(*values: object) -> Plausible:
    return lambda value: value in values


def _between(low: float, high: float) -> Plausible:
    return lambda value: low <= value <= high


# Default of every numeric field, as wide as versions of llama.cpp have differed or may, and no wider.
# Pointers must be NULL and booleans 0 or 1 whatever their name is.
PLAUSIBLE: dict[str, dict[str, Plausible]] = {
    "llama_model_default_params": {
        "n_gpu_layers": _between(-1, 999),
        "split_mode": _between(0, 3),
        "load_mode": _between(-1, 4),
        "lazy_mode": _among(1, 2),
        "main_gpu": _among(0),
    },
    "llama_context_default_params": {
        "n_ctx": _between(0, 8192),
        "n_batch": _among(512, 1024, 2048, 4096),
        "n_ubatch": _among(256, 512, 1024, 2048),
        "n_seq_max": _among(1),
        "n_rs_seq": _among(0),
        "n_outputs_max": _between(0, 4096),
        "n_outputs_max_per_seq": _between(0, 4096),
        "n_threads": _between(1, 1024),
        "n_threads_batch": _between(1, 1024),
        "ctx_type": _among(0),
        "rope_scaling_type": _among(-1),
        "pooling_type": _among(-1),
        "attention_type": _among(-1),
        "flash_attn_type": _between(-1, 1),
        "rope_freq_base": _among(0.0),
        "rope_freq_scale": _among(0.0),
        "yarn_ext_factor": _among(-1.0),
        "yarn_attn_factor": _among(-1.0, 1.0),
        "yarn_beta_fast": _among(-1.0, 32.0),
        "yarn_beta_slow": _among(-1.0, 1.0),
        "yarn_orig_ctx": _among(0),
        "defrag_thold": _between(-1.0, 1.0),
        "type_k": _among(1),
        "type_v": _among(1),
        "n_samplers": _among(0),
    },
    "llama_model_quantize_default_params": {
        "nthread": _between(0, 1024),
        "ftype": _between(0, 63),
        "output_tensor_type": _between(30, 127),  # GGML_TYPE_COUNT: "not set"
        "token_embedding_type": _between(30, 127),
        "max_buf_size": _between(0, 1 << 48),
    },
}


def installed() -> bool:
    """Whether llama-cpp-python is there, in whatever state; imports nothing."""
    return importlib.util.find_spec("llama_cpp") is not None


@cache
def library() -> Any:
    """The checked `llama_cpp` module, its backend started and its log ours.

    Raises RuntimeUnavailableError if it is not installed, does not load or does not fit.
    """
    llama = _import()
    check_layout(llama)
    llama._slipstream_log = llama.llama_log_callback(_write_log)  # kept there: it must outlive the library's use
    llama.llama_log_set(llama._slipstream_log, None)
    llama.llama_backend_init()
    return llama


def _import() -> Any:
    try:
        with _bounded_spinning():
            return importlib.import_module("llama_cpp")
    except ModuleNotFoundError as error:
        if error.name != "llama_cpp":
            raise RuntimeUnavailableError(
                f"llama-cpp-python cannot be imported: it misses {error.name!r}; run: {REINSTALL}"
            ) from error
        raise RuntimeUnavailableError(f"The llama.cpp runtime is not installed; run: {INSTALL}") from None
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        # AttributeError: the library has no function of a name that the binding expects.
        problem = f"llama-cpp-python cannot be loaded ({error}); run: {REINSTALL}"
        raise RuntimeUnavailableError(problem) from error


@contextmanager
def _bounded_spinning() -> Iterator[None]:
    """Let the library's threads wait for each other by spinning briefly, then asleep.

    GNU OpenMP, which reads the variable when it is loaded, spins for milliseconds by default. With any other
    process at work a thread then burns the time slice that the one it waits for needs, and a forward takes 20 to 40
    times as long (figures, also of what a quiet machine pays, in docs/llamacpp.md). Who set either variable knows
    better.
    """
    if any(name in os.environ for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")):
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


def _write_log(level: int, text: bytes, _: object) -> None:
    log.write(level, text)


def check_layout(llama: Any) -> None:
    """Raise RuntimeUnavailableError unless the library's defaults make sense when read through the binding."""
    for function, plausible in PLAUSIBLE.items():
        wrong = next(implausible_fields(getattr(llama, function)(), plausible), None)
        if wrong:
            raise layout_error(llama, f"{function} gives {wrong}")


def layout_error(llama: Any, evidence: str) -> RuntimeUnavailableError:
    """The error for a binding and a library of different versions."""
    override = os.environ.get("LLAMA_CPP_LIB_PATH")
    remedy = f"unset LLAMA_CPP_LIB_PATH (now {override})" if override else f"run: {REINSTALL}"
    return RuntimeUnavailableError(
        f"llama-cpp-python {_version(llama)} and the llama.cpp library it found ({_library_version(llama)}) "
        f"do not fit together ({evidence}); {remedy}"
    )


def implausible_fields(params: Any, plausible: dict[str, Plausible]) -> Iterator[str]:
    """`name = value` of every field of a structure of default parameters that cannot be right."""
    raw = bytes(params)
    for name, kind in params._fields_:
        value = getattr(params, name)
        if kind is ctypes.c_bool:
            value = raw[getattr(type(params), name).offset]  # ctypes would turn any garbage into True
            good = value in (0, 1)
        elif name in plausible:
            good = plausible[name](value)
        else:  # a pointer; an integer that we do not know may be anything
            good = isinstance(value, int | float) or not value
        if not good:
            yield f"{name} = {value}"


def _version(llama: Any) -> str:
    return str(getattr(llama, "__version__", "of unknown version"))


def _library_version(llama: Any) -> str:
    try:
        return str(llama.llama_version().decode(errors="replace"))
    except (AttributeError, OSError):
        return "of unknown version"


def address_function(llama: Any, name: str) -> Any:
    """A function of the library of (context) that returns an address as a number.

    The binding's own returns a pointer object, which costs more to make and to read than a number.
    """
    function = llama.llama_cpp._lib[name]  # by index: a function object of our own
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
    return function


def supports_gpu() -> bool:
    """Whether the library was built with a GPU backend and that backend found a device."""
    return bool(library().llama_supports_gpu_offload()) and bool(devices())


def devices() -> list[str]:
    """Devices besides the CPU that can hold layers, such as `CUDA0: NVIDIA H200 (139 GiB)`.

    Raises RuntimeUnavailableError if the library is missing or does not fit.
    """
    ggml = _backend_functions(library())
    found = [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]
    return [_describe(ggml, device) for device in found if ggml.ggml_backend_dev_type(device) in GPU_DEVICES]


def _describe(ggml: Any, device: int) -> str:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    name = ggml.ggml_backend_dev_name(device).decode(errors="replace")
    description = ggml.ggml_backend_dev_description(device).decode(errors="replace")
    return f"{name}: {description} ({total.value / 2**30:.0f} GiB)"


@cache
def _backend_functions(llama: Any) -> Any:
    """`ggml_backend_dev_*` of the loaded library, which llama-cpp-python does not declare."""
    ggml: Any = llama.llama_cpp._lib
    pointer, size = ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
    for name, arguments, result in (
        ("count", [], ctypes.c_size_t),
        ("get", [ctypes.c_size_t], pointer),
        ("type", [pointer], ctypes.c_int),
        ("name", [pointer], ctypes.c_char_p),
        ("description", [pointer], ctypes.c_char_p),
        ("memory", [pointer, size, size], None),
    ):
        function = getattr(ggml, f"ggml_backend_dev_{name}")
        function.argtypes, function.restype = arguments, result
    return ggml
