"""The check that binding and library are of one version, with real structures and with broken ones."""

import ctypes
import importlib
import os
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest

from slipstream.errors import RuntimeUnavailableError
from slipstream.runtime.llamacpp import binding
from slipstream.runtime.llamacpp.log import LibraryLog

DEFAULTS = ["llama_model_default_params", "llama_context_default_params", "llama_model_quantize_default_params"]


def fake_library(**replaced: Any) -> SimpleNamespace:
    real = {name: getattr(llama_cpp, name) for name in (*DEFAULTS, "llama_version", "__version__")}
    return SimpleNamespace(**(real | replaced))


def shifted(structure: type[ctypes.Structure], field: str, insert: bool) -> type[ctypes.Structure]:
    """The structure with one field more or one fewer: what a binding of another version looks like."""
    fields: list[Any] = []
    for name, kind in structure._fields_:
        if name == field and insert:
            fields.append(("new_field", ctypes.c_int32))
        if name != field or insert:
            fields.append((name, kind))
    return type("shifted", (ctypes.Structure,), {"_fields_": fields})


def read_through(structure: type[ctypes.Structure], params: Any) -> Any:
    """What the library wrote, read through another structure (with rubbish after the end)."""
    raw = bytes(params) + b"\xaa" * ctypes.sizeof(structure)
    return structure.from_buffer_copy(raw[: ctypes.sizeof(structure)])


def test_the_installed_library_fits() -> None:
    binding.check_layout(llama_cpp)


@pytest.mark.parametrize("insert", [True, False])
@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("llama_model_default_params", "n_gpu_layers"),
        ("llama_model_default_params", "lazy_mode"),
        ("llama_context_default_params", "n_ctx"),
        ("llama_context_default_params", "n_rs_seq"),
        ("llama_context_default_params", "ctx_type"),
        ("llama_context_default_params", "rope_freq_base"),
        ("llama_context_default_params", "cb_eval"),
        ("llama_model_quantize_default_params", "nthread"),
    ],
)
def test_a_shifted_field_is_noticed(function: str, field: str, insert: bool) -> None:
    params = getattr(llama_cpp, function)()
    structure = shifted(type(params), field, insert)
    library = fake_library(**{function: lambda: read_through(structure, params)})
    with pytest.raises(RuntimeUnavailableError) as raised:
        binding.check_layout(library)
    message = str(raised.value)
    assert function in message
    assert f"llama-cpp-python {llama_cpp.__version__}" in message
    assert llama_cpp.llama_version().decode() in message
    assert "pip install --force-reinstall" in message


def test_a_library_from_elsewhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "/elsewhere")
    assert "unset LLAMA_CPP_LIB_PATH (now /elsewhere)" in str(binding.layout_error(fake_library(), "x = 1"))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ModuleNotFoundError("No module named 'llama_cpp'", name="llama_cpp"), "not installed; run: pip install"),
        (ModuleNotFoundError("No module named 'diskcache'", name="diskcache"), "misses 'diskcache'"),
        (RuntimeError("Failed to load shared library"), "Failed to load shared library"),
        (AttributeError("undefined symbol: llama_new"), "undefined symbol: llama_new"),
    ],
)
def test_an_import_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception, says: str) -> None:
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(RuntimeUnavailableError, match=says):
        binding._import()


def test_the_log_joins_continued_lines_and_finds_the_reason() -> None:
    log = LibraryLog()
    log.write(4, b"llama_model_load: error loading model: unknown ")
    log.write(5, b"thing\n")
    log.write(1, b"a detail ")
    log.write(5, b"goes on\n")
    log.write(4, b"llama_model_load_from_file_impl: failed to load model\n")
    assert log.reason() == "unknown thing"
    assert log.lines() == ["error loading model: unknown thing", "failed to load model"]
    log.clear()
    assert log.reason() == "it gives no reason"


def test_the_library_is_silent(files: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    from slipstream.runtime import load_llamacpp

    load_llamacpp(files["llama"], context_length=64, threads=1).close()
    assert capfd.readouterr() == ("", "")


def fake_backend(*devices: tuple[str, int]) -> SimpleNamespace:
    """`ggml_backend_dev_*` for devices of these names and types."""

    def memory(_: int, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = 1 << 30, 139 << 30

    return SimpleNamespace(
        ggml_backend_dev_count=lambda: len(devices),
        ggml_backend_dev_get=lambda index: index,
        ggml_backend_dev_type=lambda device: devices[device][1],
        ggml_backend_dev_name=lambda device: devices[device][0].encode(),
        ggml_backend_dev_description=lambda _: b"NVIDIA H200",
        ggml_backend_dev_memory=memory,
    )


def test_devices_are_those_that_hold_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = fake_backend(("CUDA0", 1), ("CPU", 0), ("BLAS", 3), ("Vulkan0", 2))
    monkeypatch.setattr(binding, "_backend_functions", lambda _: backend)
    assert binding.devices() == ["CUDA0: NVIDIA H200 (139 GiB)", "Vulkan0: NVIDIA H200 (139 GiB)"]


def test_spinning_is_bounded_while_the_library_loads_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with binding._bounded_spinning():
        assert os.environ["GOMP_SPINCOUNT"] == "1000"
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_who_set_the_spinning_keeps_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv(name, "7")
    with binding._bounded_spinning():
        assert os.environ.get("GOMP_SPINCOUNT") == ("7" if name == "GOMP_SPINCOUNT" else None)
    assert os.environ[name] == "7"
