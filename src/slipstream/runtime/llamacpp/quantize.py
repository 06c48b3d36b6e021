"""Make a smaller copy of a model with llama.cpp's quantiser, for use as a draft model."""

import ctypes
import difflib
import os
import tempfile
from pathlib import Path
from typing import Any

from slipstream.errors import ModelFileError, StorageError, UsageError
from slipstream.models.gguf import read_model_header
from slipstream.runtime.llamacpp import binding
from slipstream.runtime.threads import default_threads

_PREFIXES = ("LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_")


def requantize(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    file_type: str,
    *,
    threads: int | None = None,
) -> Path:
    """Write `source` with its matrices in `file_type` (such as `Q4_0`) to `destination`, which is replaced.

    Already quantised matrices are quantised again, which loses more than starting from f16. Where a
    matrix's width is no multiple of a type's block (256 for K-quants) llama.cpp takes a wider type
    instead; `models.gguf.read_header(...).tensors` shows the types it chose.

    Raises UsageError for an unknown type, ModelFileError for a source that cannot be read, StorageError
    where the destination cannot be written; nothing half-written stays.
    """
    llama = binding.library()
    source, destination = Path(source), Path(destination)
    read_model_header(source)
    params = llama.llama_model_quantize_default_params()
    params.ftype = _file_type(llama, file_type)
    params.nthread = threads or default_threads()
    params.allow_requantize = True
    partial = _reserve(destination)
    try:
        _quantize(llama, source, partial, params)
        partial.replace(destination)
    except OSError as error:
        raise StorageError(f"{destination} cannot be written: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return destination


def _quantize(llama: Any, source: Path, partial: Path, params: Any) -> None:
    binding.log.clear()
    if llama.llama_model_quantize(os.fsencode(source), os.fsencode(partial), ctypes.byref(params)):
        reason = binding.log.reason()
        if "write" in reason or "iostream" in reason or "space" in reason:
            raise StorageError(f"The copy of {source.name} cannot be written ({reason}); is the disk full?")
        raise ModelFileError(f"llama.cpp cannot quantise {source}: {reason}.")


def _reserve(destination: Path) -> Path:
    """An empty file beside the destination, so that the final rename stays within one file system."""
    if destination.is_dir():
        raise StorageError(f"{destination} is a directory; give a file name.")
    try:
        handle, name = tempfile.mkstemp(".partial", f".{destination.name}.", destination.parent)
    except OSError as error:
        raise StorageError(f"{destination.parent} cannot be written to: {error.strerror}.") from error
    os.close(handle)
    return Path(name)


def _file_type(llama: Any, name: str) -> int:
    """`llama_ftype` of a name such as `q4_k_m`."""
    known = {
        constant.removeprefix(prefix): getattr(llama, constant)
        for prefix in _PREFIXES
        for constant in dir(llama)
        if constant.startswith(prefix)
    }
    if name.upper() not in known:
        near = difflib.get_close_matches(name.upper(), known, n=3, cutoff=0.0)
        raise UsageError(f"{name!r} is no file type of llama.cpp; the nearest are {', '.join(near)}.")
    return int(known[name.upper()])
