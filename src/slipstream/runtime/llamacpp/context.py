"""Loads weights and makes a context: the two calls of llama.cpp that can fail for many reasons."""

import os
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.errors import (
    ModelFileError,
    RuntimeUnavailableError,
    SlipstreamError,
    UnsupportedModelError,
    UsageError,
)
from slipstream.models.gguf import GgufHeader
from slipstream.runtime.llamacpp import binding
from slipstream.runtime.llamacpp.amx import amx_is_broken
from slipstream.runtime.llamacpp.options import FLASH_ATTENTION, KV_TYPES, Options
from slipstream.runtime.llamacpp.vocabulary import NO_VOCABULARY

_LOADING = threading.Lock()  # the library's log is one for the process, and we read it after each step
_BUFFER = re.compile(
    r"(?P<name>\S+) +(?:\S+ )?(?P<kind>KV|RS|state|compute|output) buffer size = +(?P<size>[\d.]+) MiB"
)
_CACHES = ("KV", "RS", "state")
_OUT_OF_MEMORY = re.compile(r"alloc|out of memory|OOM|bad_alloc|memory", re.IGNORECASE)
UPDATE = "update it with pip install --upgrade llama-cpp-python"
_UNKNOWN_ARCHITECTURE = re.compile(r"unknown model architecture: '(.*)'")
_UNKNOWN_VOCABULARY = re.compile(r"unknown (?:pre-)?tokenizer")


class Handles(NamedTuple):
    """What the library gave us, and the bytes it took."""

    model: Any
    context: Any
    memory: dict[str, int]


def load(llama: Any, header: GgufHeader, options: Options, context_length: int) -> Handles:
    """Load the weights and make a context for all sessions.

    Raises UnsupportedModelError for models that llama.cpp does not know or that do not generate text,
    ModelFileError for damaged ones, RuntimeUnavailableError where memory or a device is missing.
    """
    with _LOADING:
        model = _load_weights(llama, header, options)
        try:
            _check_generates(llama, model, header.path.name)
            context = _make_context(llama, model, header, options, context_length)
        except BaseException:
            llama.llama_model_free(model)
            raise
        return Handles(model, context, _memory(llama, model))


def free(llama: Any, handles: Handles) -> None:
    """Give context and weights back."""
    llama.llama_free(handles.context)
    llama.llama_model_free(handles.model)


def check_header(header: GgufHeader) -> None:
    """Raise UnsupportedModelError for files that say of themselves that they do not generate text."""
    name, architecture = header.path.name, header.architecture
    pooling = header.integer(f"{architecture}.pooling_type") or 0
    if header.flag(f"{architecture}.attention.causal") is False or pooling > 0:
        raise UnsupportedModelError(f"{name} is an embedding model and generates no text; choose another.")


def _load_weights(llama: Any, header: GgufHeader, options: Options) -> Any:
    params = llama.llama_model_default_params()
    params.n_gpu_layers = options.gpu_layers_for(binding.supports_gpu())
    params.use_extra_bufts = not amx_is_broken(llama)  # loses other repacked layouts too; no switch is finer
    binding.log.clear()
    model = llama.llama_model_load_from_file(os.fsencode(header.path), params)
    if not model:
        raise _load_error(llama, header.path, binding.log.reason())
    return model


def _load_error(llama: Any, path: Path, reason: str) -> SlipstreamError:
    """What a failed load means for the person who asked for it."""
    version = getattr(llama, "__version__", "")
    if match := _UNKNOWN_ARCHITECTURE.search(reason):
        return UnsupportedModelError(
            f"{path.name} has the architecture {match[1]!r}, which the installed llama.cpp does not know "
            f"(llama-cpp-python {version}); {UPDATE}, or choose another model."
        )
    if _UNKNOWN_VOCABULARY.search(reason):
        return UnsupportedModelError(
            f"{path.name} has a vocabulary that the installed llama.cpp does not know "
            f"(llama-cpp-python {version}: {reason}); {UPDATE}, or choose another model."
        )
    if _OUT_OF_MEMORY.search(reason):
        return RuntimeUnavailableError(
            f"There is not enough memory for {path.name} ({reason}); "
            "choose a smaller model or put fewer layers on the GPU."
        )
    return ModelFileError(f"llama.cpp cannot load {path}: {reason}; download or convert the file again.")


def _check_generates(llama: Any, model: Any, name: str) -> None:
    """Raise UnsupportedModelError for models that are not decoders of text, one token after the other."""
    if llama.llama_model_has_encoder(model):
        raise UnsupportedModelError(f"{name} is an encoder-decoder model; only decoder-only ones can be run.")
    if llama.llama_model_is_diffusion(model):
        raise UnsupportedModelError(f"{name} is a diffusion model; only autoregressive ones can be run.")
    vocabulary = llama.llama_model_get_vocab(model)
    if llama.llama_vocab_type(vocabulary) == NO_VOCABULARY or llama.llama_vocab_n_tokens(vocabulary) < 1:
        raise UnsupportedModelError(f"{name} has no vocabulary; convert the model again with its tokenizer.")


def _make_context(llama: Any, model: Any, header: GgufHeader, options: Options, context_length: int) -> Any:
    params = llama.llama_context_default_params()
    _set_sizes(llama, model, params, options, context_length)
    params.n_threads, params.n_threads_batch = options.thread_counts()
    params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
    params.type_k, params.type_v = KV_TYPES[options.kv_type_k], KV_TYPES[options.kv_type_v]
    # A cache of window size would have lost the keys that a rollback brings back into the window.
    params.swa_full = True
    context = llama.llama_init_from_model(model, params)
    if not context:
        raise _context_error(header.path.name, options, context_length, binding.log.reason())
    try:
        _check_context(llama, context, options, context_length, header.path.name)
    except BaseException:
        llama.llama_free(context)
        raise
    return context


def _set_sizes(llama: Any, model: Any, params: Any, options: Options, context_length: int) -> None:
    """`context_length` tokens for each session.

    In one unified cache all sessions' rows go through the weights together. Split by session, the library
    computes only as many rows of each as the shortest has, and then once more: drafts of different
    lengths would pay for the weights several times. But a unified cache hands cells that are outside
    the sliding window of one sequence to another, and a rollback would miss them; so such models get
    one cache per session.
    """
    params.n_ctx = context_length * options.max_sequences
    params.kv_unified = llama.llama_model_n_swa(model) == 0
    if not params.kv_unified:  # the library divides and then pads
        params.n_ctx = _pad(context_length) * options.max_sequences
    params.n_seq_max = options.max_sequences
    params.n_batch = params.n_ubatch = options.max_rows
    params.n_outputs_max = 0  # any row of a batch may be read


def _pad(length: int) -> int:
    return -(-length // 256) * 256


def _context_error(name: str, options: Options, context_length: int, reason: str) -> SlipstreamError:
    if "cache type" in reason or "V cache" in reason:
        return UsageError(
            f"{name} cannot have a KV cache of {options.kv_type_k} keys and {options.kv_type_v} values "
            f"({reason}); use f16."
        )
    if _OUT_OF_MEMORY.search(reason):
        return RuntimeUnavailableError(
            f"There is not enough memory for a context of {context_length} tokens for each of "
            f"{options.max_sequences} sequence(s) of {name} ({reason}); choose a shorter context."
        )
    return RuntimeUnavailableError(f"llama.cpp cannot make a context for {name}: {reason}.")


def _check_context(llama: Any, context: Any, options: Options, context_length: int, name: str) -> None:
    """What we set must have arrived where we meant it to: the second half of `binding.check_layout`."""
    if not llama.llama_get_memory(context):
        raise UnsupportedModelError(f"{name} is an encoder and generates no text; choose a language model.")
    sequences, each = llama.llama_n_seq_max(context), llama.llama_n_ctx_seq(context)
    if sequences != options.max_sequences or each < context_length:
        wanted = f"{options.max_sequences} sequences of {context_length} tokens"
        raise binding.layout_error(llama, f"{wanted} became {sequences} of {each}")


def _memory(llama: Any, model: Any) -> dict[str, int]:
    """Bytes of weights, cache and buffers. The last two as the library logs them: no C function gives them."""
    sizes: dict[tuple[str, str], float] = {}
    for line in binding.log.lines():
        for found in _BUFFER.finditer(line):
            key = (found["name"], found["kind"])
            # Compute buffers are planned several times and the last counts; caches of kinds of layers add up.
            before = sizes.get(key, 0.0) if found["kind"] in _CACHES else 0.0
            sizes[key] = before + float(found["size"]) * 2**20
    cache = sum(size for (_, kind), size in sizes.items() if kind in _CACHES)
    buffers = sum(sizes.values()) - cache
    return {"weights": int(llama.llama_model_size(model)), "kv_cache": int(cache), "buffers": int(buffers)}
