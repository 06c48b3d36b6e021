"""Where Slipstream keeps its files and where other programs keep theirs.

Only our own cache is ever written to. Every function reads the environment when
it is called, so a changed variable takes effect at once.
"""

import json
import os
import sys
from pathlib import Path

import platformdirs


def cache_directory() -> Path:
    """Our cache: `$SLIPSTREAM_CACHE_DIR`, else the platform's (XDG on Linux). May not exist yet."""
    return _from_environment("SLIPSTREAM_CACHE_DIR") or platformdirs.user_cache_path("slipstream")


def config_directory() -> Path:
    """Our configuration: `$SLIPSTREAM_CONFIG_DIR`, else the platform's (XDG on Linux). May not exist yet."""
    return _from_environment("SLIPSTREAM_CONFIG_DIR") or platformdirs.user_config_path("slipstream")


def models_directory() -> Path:
    """Where fetched models live, inside our cache. May not exist yet."""
    return cache_directory() / "models"


def huggingface_directory() -> Path:
    """The Hugging Face hub cache, by the variables its own library reads."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if path := _from_environment(variable):
            return path
    if home := _from_environment("HF_HOME"):
        return home / "hub"
    return (_from_environment("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"


def ollama_directories() -> list[Path]:
    """Ollama's model directories: `$OLLAMA_MODELS` alone if set, else the user's and the service's."""
    if path := _from_environment("OLLAMA_MODELS"):
        return [path]
    homes = [Path.home()]
    if sys.platform == "linux":
        # The install script makes a service user with the first home; distributions package the second.
        homes += [Path("/usr/share/ollama"), Path("/var/lib/ollama")]
    return [home / ".ollama" / "models" for home in homes]


def lmstudio_directories() -> list[Path]:
    """LM Studio's model directories: the configured one, today's default and the one before 0.3."""
    home = _lmstudio_home()
    candidates = [_lmstudio_downloads(home), home / "models", Path.home() / ".cache" / "lm-studio" / "models"]
    return list(dict.fromkeys(path for path in candidates if path is not None))


def _lmstudio_home() -> Path:
    """LM Studio writes the place of its home into a pointer file when it is not the default."""
    try:
        pointer = (Path.home() / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        pointer = ""
    return Path(pointer) if pointer else Path.home() / ".lmstudio"


def _lmstudio_downloads(home: Path) -> Path | None:
    try:
        settings = json.loads((home / "settings.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    folder = settings.get("downloadsFolder") if isinstance(settings, dict) else None
    return Path(folder) if isinstance(folder, str) and folder else None


def _from_environment(variable: str) -> Path | None:
    """An empty variable counts as unset, as in the XDG specification."""
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None
