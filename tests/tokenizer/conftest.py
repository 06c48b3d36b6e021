"""Vocabularies of real models: of the catalogue's, and those that llama.cpp tests its own tokenizer with."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.peer import PACKAGE, PeerError, fetch_source
from slipstream.errors import DownloadError
from slipstream.models import cache_directory, pull
from slipstream.models.storage import exclusive
from tests.conftest import model_is_required


@pytest.fixture(scope="session")
def gemma() -> Path:
    """Gemma 3 270M, for its vocabulary of 262,144 tokens."""
    try:
        return pull("gemma3-270m")
    except DownloadError as error:
        return _missing(f"Gemma could not be fetched: {error}")


@pytest.fixture(scope="session")
def peer_vocabularies() -> Path:
    """llama.cpp's own: `ggml-vocab-*.gguf`, and texts with their tokens. From the sources of the installed version."""
    folder = cache_directory() / "benchmarks" / f"vocabularies-{version(PACKAGE)}"
    with exclusive(folder.with_name(f"{folder.name}.lock"), lambda: None):
        if not folder.exists():
            try:
                _fetch_vocabularies(folder)
            except (PeerError, subprocess.SubprocessError) as error:
                return _missing(f"llama.cpp's sources could not be fetched: {error}")
    return folder


def _fetch_vocabularies(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as work, (Path(work) / "log").open("w") as log:
        part = Path(work) / "part"
        part.mkdir()
        for path in (fetch_source(Path(work), log) / "models").glob("ggml-vocab-*"):
            shutil.move(path, part)
        part.rename(folder)


def _missing(reason: str) -> Path:
    if model_is_required():
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenizers are built by the code that is tested, not read from what an earlier one left."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slipstream.tokenizer.cache.cache_directory", lambda: folder)
        yield
