import json
from pathlib import Path

import pytest

from slipstream.models import cache_directory, config_directory, models_directory, paths


def test_our_directories_follow_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(home / "c"))
    monkeypatch.setenv("SLIPSTREAM_CONFIG_DIR", "~/k")
    assert cache_directory() == home / "c"
    assert models_directory() == home / "c" / "models"
    assert config_directory() == home / "k"


def test_our_directories_follow_xdg(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "c"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "k"))
    if (home / "c") in cache_directory().parents:  # platforms other than Linux have their own places
        assert cache_directory() == home / "c" / "slipstream"
        assert config_directory() == home / "k" / "slipstream"
    assert home in cache_directory().parents


def test_an_empty_variable_counts_as_unset(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default = cache_directory()
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", "")
    assert cache_directory() == default


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("HF_HUB_CACHE", "x"),
        ("HUGGINGFACE_HUB_CACHE", "x"),
        ("HF_HOME", "x/hub"),
        ("XDG_CACHE_HOME", "x/huggingface/hub"),
        ("UNRELATED", ".cache/huggingface/hub"),
    ],
)
def test_hugging_face(home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, expected: str) -> None:
    monkeypatch.setenv(variable, str(home / "x"))
    assert paths.huggingface_directory() == home / expected


def test_ollama(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.ollama_directories() == [home / ".ollama" / "models"]
    monkeypatch.setattr("slipstream.models.paths.sys.platform", "linux")
    assert Path("/usr/share/ollama/.ollama/models") in paths.ollama_directories()
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "o"))
    assert paths.ollama_directories() == [home / "o"]


def test_lm_studio(home: Path) -> None:
    old = home / ".cache" / "lm-studio" / "models"
    assert paths.lmstudio_directories() == [home / ".lmstudio" / "models", old]
    (home / "elsewhere").mkdir()
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'elsewhere'}\n")
    (home / "elsewhere" / "settings.json").write_text(json.dumps({"downloadsFolder": str(home / "big")}))
    assert paths.lmstudio_directories() == [home / "big", home / "elsewhere" / "models", old]


@pytest.mark.parametrize("settings", ["{", "[]", '{"downloadsFolder": 3}', "[" * 100000])
def test_lm_studio_settings_that_make_no_sense(home: Path, settings: str) -> None:
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio" / "settings.json").write_text(settings)
    assert (home / ".lmstudio" / "models") in paths.lmstudio_directories()
