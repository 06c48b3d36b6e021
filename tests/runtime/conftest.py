"""Tiny models for the runtime's tests, loaded once."""

import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.runtime import load_llamacpp
from slipstream.runtime.llamacpp import LlamaCppModel
from slipstream.runtime.llamacpp.session import LlamaCppSession
from tests.tiny_models import tiny_llama, tiny_recurrent, tiny_sliding_window


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("tiny")
    return {
        "llama": tiny_llama(directory / "llama.gguf"),
        "window": tiny_sliding_window(directory / "window.gguf"),
        "recurrent": tiny_recurrent(directory / "recurrent.gguf"),
    }


@pytest.fixture(scope="session")
def models(files: dict[str, Path]) -> Iterator[dict[str, LlamaCppModel]]:
    """Each with three sessions of 256 tokens and at most 64 rows a forward."""
    loaded = {
        name: load_llamacpp(path, context_length=256, max_sequences=3, max_rows=64, threads=1)
        for name, path in files.items()
    }
    yield loaded
    for model in loaded.values():
        model.close()


@pytest.fixture
def model(models: dict[str, LlamaCppModel]) -> LlamaCppModel:
    return models["llama"]


@pytest.fixture(autouse=True)
def _sessions_end_with_their_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One failing test must not take its sessions from the next."""
    opened: list[weakref.ref[LlamaCppSession]] = []
    open_session = LlamaCppModel.open_session

    def recorded(model: LlamaCppModel) -> LlamaCppSession:
        session = open_session(model)
        opened.append(weakref.ref(session))
        return session

    monkeypatch.setattr(LlamaCppModel, "open_session", recorded)
    yield
    for reference in opened:
        if session := reference():
            session.close()
