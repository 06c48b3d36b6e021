"""A tiny model on the native runtime, loaded once; sessions end with their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.session import NativeSession
from tests.tiny_models import GROUPED, tiny_llama


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama in F32: three layers, four heads on two key-value heads."""
    return tiny_llama(tmp_path_factory.mktemp("native") / "tiny.gguf", shape=GROUPED)


@pytest.fixture(scope="session")
def loaded(file: Path) -> Iterator[NativeModel]:
    model = load_native(file, context_length=256, max_sequences=3, max_rows=64, threads=1)
    yield model
    model.close()


@pytest.fixture
def model(loaded: NativeModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeModel]:
    """With three sessions of 256 tokens and at most 64 rows a forward; what a test leaves open is closed."""
    opened: list[NativeSession] = []
    adopt = loaded.adopt

    def recorded(number: int) -> NativeSession:
        session = adopt(number)
        opened.append(session)
        return session

    monkeypatch.setattr(loaded, "adopt", recorded)
    yield loaded
    for session in opened:
        session.close()
    assert loaded.native.free_blocks() == 3 * 256 // 64
