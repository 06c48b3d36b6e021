"""Target and draft model each get their own runtime, and people hear why."""

from pathlib import Path

import pytest

from slipstream import Engine, ModelOptions
from slipstream.draft import OtherTokenizerDrafter
from slipstream.engine import loading
from slipstream.errors import UnsupportedModelError, UsageError
from tests import fake_native
from tests.fake_native import FakeNative
from tests.tiny_models import sentencepiece, tiny_llama

REASON = "its tensors are of type Q2_K, which is not known to it"
NOTICE = f"small.gguf runs on llama.cpp; the native runtime cannot run it: {REASON}."


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> FakeNative:
    """A native runtime that runs large.gguf, not small.gguf; no GPU."""
    monkeypatch.setattr("slipstream.runtime.selection.binding.supports_gpu", lambda: False)
    return fake_native.install(monkeypatch, {"small.gguf": REASON})


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("large") / "large.gguf")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("small") / "small.gguf", noise=0.3)


def runtimes(engine: Engine) -> tuple[str, str]:
    [model] = engine.draft_models
    return engine.target.runtime, model.runtime


def test_a_draft_model_follows_what_its_own_file_allows(native: FakeNative, large: Path, small: Path) -> None:
    options = ModelOptions(threads=1)
    with Engine.load(large, draft=str(small), options=options) as engine:
        assert runtimes(engine) == ("native", "llamacpp")
        assert engine.notices == [NOTICE]
    with Engine.load(small, draft=f"suffix+{large}", options=options) as engine:
        assert runtimes(engine) == ("llamacpp", "native")
        assert engine.notices == [NOTICE]
    assert [name for name, _ in native.loaded] == ["large.gguf", "large.gguf"]


@pytest.mark.parametrize(("one", "other"), [("native", "llamacpp"), ("llamacpp", "native"), ("llamacpp", "llamacpp")])
def test_each_runtime_can_be_asked_for(native: FakeNative, large: Path, one: str, other: str) -> None:
    options = ModelOptions(runtime=one, draft_runtime=other, threads=1)  # type: ignore[arg-type]
    with Engine.load(large, draft=str(large), options=options) as engine:
        assert runtimes(engine) == (one, other)
        assert engine.notices == []


def test_what_cannot_be_is_refused_before_any_weights_are_loaded(native: FakeNative, large: Path, small: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="The native runtime cannot run small"):
        Engine.load(large, draft=str(small), options=ModelOptions(draft_runtime="native"))
    assert native.loaded == []


def test_gpu_layers_are_each_model_s_own(native: FakeNative, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.runtime.selection.binding.supports_gpu", lambda: True)
    with Engine.load(large, draft=str(large), options=ModelOptions(draft_gpu_layers=0, threads=1)) as engine:
        assert runtimes(engine) == ("llamacpp", "native")


def test_options_reach_both_models_and_the_draft_s_context_is_the_target_s(native: FakeNative, large: Path) -> None:
    options = ModelOptions(context_length=300, max_sequences=3, threads=1)
    with Engine.load(large, draft=str(large), options=options) as engine:
        length = engine.target.context_length
    assert [given for _, given in native.loaded] == [
        {"context_length": context, "max_sequences": 3, "threads": 1} for context in (300, length)
    ]


def test_progress_names_the_model(native: FakeNative, large: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    other = tiny_llama(tmp_path / "other.gguf")
    options = ModelOptions(threads=1)
    Engine.load(large, draft=str(other), options=options, progress=lambda *step: seen.append(step)).close()
    assert seen == [(name, fraction) for name in ("large.gguf", "other.gguf") for fraction in (0.0, 0.5, 1.0)]


@pytest.mark.parametrize("option", ["runtime", "draft_runtime"])
def test_an_unknown_runtime_is_refused_by_the_option_s_name(option: str) -> None:
    with pytest.raises(
        UsageError, match=f"^{option} must be auto, native or llamacpp, not 'natvie'; did you mean native?"
    ):
        ModelOptions(**{option: "natvie"})


def test_vocabularies_are_compared_whatever_the_runtime(native: FakeNative, large: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", vocabulary=sentencepiece())
    with Engine.load(large, draft=f"suffix+{other}", options=ModelOptions(threads=1)) as engine:
        [_, drafter] = engine.drafters
        assert isinstance(drafter, OtherTokenizerDrafter)
        [notice] = engine.notices
    assert notice.startswith("other.gguf has another vocabulary than large.gguf, so it drafts through the text: ")
    assert notice.endswith("99% of its tokens are tokens of the target, and 98% the other way round.")
    with Engine.load(large, draft=str(large), options=ModelOptions(threads=1)) as engine:
        assert engine.notices == []


def test_little_in_common_is_said(
    native: FakeNative, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_llama(tmp_path / "other.gguf", vocabulary=sentencepiece())
    monkeypatch.setattr(loading, "LITTLE_OVERLAP", 1.0)
    with Engine.load(large, speculation="off") as plain, plain.sharing(draft=str(other)) as engine:
        [notice] = engine.notices
    assert "That is little" in notice
