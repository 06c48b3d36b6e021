"""Which runtime a file gets, and what is said about it."""

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.errors import RuntimeUnavailableError, SlipstreamError, UnsupportedModelError, UsageError
from slipstream.models import GgufHeader, read_model_header
from slipstream.runtime import Choice, LoadOptions, choose, load
from tests import fake_native
from tests.fake_native import FakeNative

REASON = "its architecture 'gemma2' is not known to it"


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> FakeNative:
    """A native runtime that runs all but window.gguf."""
    return fake_native.install(monkeypatch, {"window.gguf": REASON})


@pytest.fixture
def llama(files: dict[str, Path]) -> GgufHeader:
    return read_model_header(files["llama"])


@pytest.fixture
def window(files: dict[str, Path]) -> GgufHeader:
    return read_model_header(files["window"])


@pytest.fixture(params=[False, True], ids=["no GPU", "a GPU"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr("slipstream.runtime.selection.binding.supports_gpu", lambda: request.param)
    return bool(request.param)


def options(**given: object) -> LoadOptions:
    return LoadOptions(**given)  # type: ignore[arg-type]


def test_auto_is_native_where_no_gpu_would_be_used(native: FakeNative, llama: GgufHeader, gpu: bool) -> None:
    assert choose(llama, options()) == Choice("llamacpp" if gpu else "native")


@pytest.mark.parametrize("layers", ["all", 1, 99])
def test_layers_that_were_asked_for_on_a_gpu_need_llamacpp(
    native: FakeNative, llama: GgufHeader, gpu: bool, layers: int | str
) -> None:
    assert choose(llama, options(gpu_layers=layers)) == Choice("llamacpp"), "which says so if there is no GPU"


def test_without_gpu_layers_nobody_looks_for_a_gpu(
    native: FakeNative, llama: GgufHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("slipstream.runtime.selection.binding.supports_gpu")
    assert choose(llama, options(gpu_layers=0)) == Choice("native")
    assert choose(llama, options(runtime="llamacpp")) == Choice("llamacpp")


def test_where_llamacpp_is_not_installed_nobody_asks_it_for_a_gpu(
    native: FakeNative, llama: GgufHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.delattr("slipstream.runtime.selection.binding.supports_gpu")
    assert choose(llama, options()) == Choice("native")


def test_a_gpu_is_reason_enough(native: FakeNative, window: GgufHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.runtime.selection.binding.supports_gpu", lambda: True)
    assert choose(window, options(kv_type="q8_0")) == Choice("llamacpp")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kv_type": "q8_0"}, "KV cache is always f16 and q8_0 was asked for"),
        ({"flash_attention": "off"}, "attention is always fused and flash attention was asked to be off"),
    ],
)
def test_an_option_that_only_llamacpp_has(
    native: FakeNative, llama: GgufHeader, given: dict[str, object], says: str
) -> None:
    """The option is the obstacle, not the file."""
    notice = f"llama.gguf runs on llama.cpp, because the native runtime's {says}."
    assert choose(llama, options(gpu_layers=0, **given)) == Choice("llamacpp", notice)
    with pytest.raises(UsageError, match=f"^The native runtime's {says}; leave .*runtime auto or llamacpp for it"):
        choose(llama, options(runtime="native", **given))


@pytest.mark.parametrize("value", ["auto", "on"])
def test_fused_attention_is_what_the_native_runtime_has(native: FakeNative, llama: GgufHeader, value: str) -> None:
    assert choose(llama, options(gpu_layers=0, flash_attention=value)) == Choice("native")


def test_a_file_that_the_native_runtime_cannot_run(native: FakeNative, window: GgufHeader) -> None:
    notice = f"window.gguf runs on llama.cpp; the native runtime cannot run it: {REASON}."
    assert choose(window, options(gpu_layers=0)) == Choice("llamacpp", notice)
    with pytest.raises(UnsupportedModelError) as caught:
        choose(window, options(runtime="native"))
    sentence = f"The native runtime cannot run window.gguf: {REASON}; choose the runtime auto or llamacpp for it."
    assert str(caught.value) == sentence


@pytest.mark.parametrize("layers", ["all", 5])
def test_native_with_gpu_layers_is_a_contradiction(native: FakeNative, llama: GgufHeader, layers: int | str) -> None:
    with pytest.raises(UsageError, match=f"{layers} layers were asked for on a GPU; leave them at auto or 0"):
        choose(llama, options(runtime="native", gpu_layers=layers))


def test_native_on_a_machine_with_a_gpu_computes_on_the_cpu(native: FakeNative, llama: GgufHeader, gpu: bool) -> None:
    assert choose(llama, options(runtime="native")) == Choice("native")


def test_an_extension_that_is_not_there(llama: GgufHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_native.uninstall(monkeypatch)
    choice = choose(llama, options(gpu_layers=0))
    assert choice.runtime == "llamacpp"
    notice = "llama.gguf runs on llama.cpp, because the native runtime is not built for this Python ("
    assert str(choice.notice).startswith(notice)
    with pytest.raises(RuntimeUnavailableError, match="reinstall slipstream-decoding"):
        choose(llama, options(runtime="native"))


def test_an_extension_that_is_found_missing_late(
    native: FakeNative, llama: GgufHeader, window: GgufHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise ImportError("no _native.so")

    monkeypatch.setattr(native, "default_instruction_set", missing)
    assert "not built for this Python (no _native.so)" in str(choose(llama, options(gpu_layers=0)).notice)
    assert REASON in str(choose(window, options(gpu_layers=0)).notice), "reinstalling would not help this one"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("nativ", "did you mean native?"), ("llama.cpp", "did you mean llamacpp?"), ("AUTO", "did you mean auto?")],
)
def test_an_unknown_runtime_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        options(runtime=name)
    assert str(caught.value) == f"runtime must be auto, native or llamacpp, not {name!r}; {hint}"


@pytest.mark.parametrize("name", ["vulkan", "", None, 5])
def test_what_is_near_to_nothing_is_told_what_there_is(name: object) -> None:
    with pytest.raises(UsageError, match=r"must be auto, native or llamacpp, not .*\.$"):
        options(runtime=name)


def test_the_chosen_runtime_loads_with_the_options(native: FakeNative, files: dict[str, Path]) -> None:
    seen: list[float] = []
    given = options(context_length=128, max_sequences=2, threads=1)
    with_native = load(files["llama"], Choice("native"), given, progress=seen.append)
    assert with_native.runtime == "native"
    assert native.loaded == [("llama.gguf", {"context_length": 128, "max_sequences": 2, "threads": 1})]
    assert seen == [0.0, 0.5, 1.0]
    with_llamacpp = load(files["llama"], Choice("llamacpp"), given, progress=seen.append)
    assert (with_llamacpp.runtime, with_llamacpp.context_length) == ("llamacpp", 128)
    assert len(native.loaded) == 1
    with_llamacpp.close()


@pytest.mark.parametrize("given", [{"kv_type": "q9"}, {"flash_attention": "maybe"}, {"gpu_layers": "some"}])
def test_impossible_values_reach_a_runtime_that_refuses_them(
    native: FakeNative, llama: GgufHeader, given: dict[str, object]
) -> None:
    with pytest.raises(SlipstreamError, match="must be one of"):
        load(llama.path, choose(llama, options(**given)), options(**given))


def test_importing_the_runtimes_loads_none_of_them() -> None:
    code = (
        "import sys, slipstream.runtime; "
        "sys.exit(any(name in sys.modules for name in ('llama_cpp', 'slipstream.runtime.native')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
