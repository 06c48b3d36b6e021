import os
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own, so that no test sees or touches the user's caches."""
    for variable in list(os.environ):
        if variable.startswith(("HF_", "HUGGINGFACE_", "XDG_", "OLLAMA_", "SLIPSTREAM_")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    # The service's directories exist on some machines; the user's alone are under test.
    monkeypatch.setattr("slipstream.models.paths.sys.platform", "test")
    return tmp_path
