"""From what a user types to a file, and the list of what is there."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipstream.errors import ModelFileError, UnknownModelError
from slipstream.models.catalog import CATALOG, unknown_sentence
from slipstream.models.download import Progress, cached_path, pull
from slipstream.models.gguf import read_model_header
from slipstream.models.hub import cached_in_hub
from slipstream.models.paths import (
    huggingface_directory,
    lmstudio_directories,
    models_directory,
    ollama_directories,
)
from slipstream.models.split import is_later_part

Source = Literal["slipstream", "huggingface", "ollama", "lmstudio"]
OLLAMA_MODEL = "application/vnd.ollama.image.model"
DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}")
# Ollama's manifests have about a kilobyte.
MAX_MANIFEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Location:
    """A name that can be typed, and the file it stands for."""

    name: str
    path: Path
    source: Source


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model on this machine. `size` in bytes; `problem` says why it cannot be used, if it cannot."""

    name: str
    path: Path
    size: int
    source: Source
    architecture: str
    quantisation: str
    licence: str | None
    problem: str | None = None


def resolve(name: str | os.PathLike[str], *, fetch: bool = False, progress: Progress | None = None) -> Path:
    """The model file that `name` stands for.

    In this order: the path of an existing file; `hf:owner/repo/file.gguf`; a short name of the
    catalog; a name from `list_models` (with or without its prefix; a unique file name will do).
    With `fetch`, what is known but not here is downloaded; without, the error says how.

    Raises UnknownModelError, ModelFileError (a path without a usable file), and with `fetch` what
    `pull` raises. That the file is a model is checked by whoever reads it.
    """
    text = os.fspath(name)
    path = _expanded(text)
    if not text.strip():
        raise UnknownModelError("The model's name is empty; `slipstream models` lists what there is.")
    if _is_file(path):
        return path
    if text.startswith("hf:"):
        return cached_in_hub(text) or _fetched(text, fetch, progress)
    if entry := CATALOG.get(text.lower()):
        return cached_path(entry) or _fetched(entry.name, fetch, progress)
    locations = list(_locations())
    matches = _matching(text, locations)
    if len({location.path for location in matches}) == 1:
        return matches[0].path
    if matches:
        names = ", ".join(location.name for location in matches[:5])
        raise UnknownModelError(f"{text!r} can mean several models; give one of these in full: {names}.")
    if _looks_like_path(text):
        raise ModelFileError(_no_file(path))
    raise UnknownModelError(unknown_sentence(text, [*CATALOG, *_spellings(locations)]))


def list_models() -> list[FoundModel]:
    """Every model file in our cache and in those of Hugging Face, Ollama and LM Studio, in this order.

    Only reads. Files that cannot be used are listed with their `problem`; a model that is split into several
    files is its first.
    """
    return [_describe(location) for location in _locations() if not is_later_part(location.path)]


def _fetched(name: str, fetch: bool, progress: Progress | None) -> Path:
    if fetch:
        return pull(name, progress)
    raise UnknownModelError(f"{name} is not on this machine yet; fetch it with `slipstream pull {name}`.")


def _describe(location: Location) -> FoundModel:
    entry = CATALOG.get(location.name)
    size = 0
    try:
        size = location.path.stat().st_size
        header = read_model_header(location.path)
        size = sum(part.stat().st_size for part in header.parts)
    except (OSError, ModelFileError) as error:
        return FoundModel(location.name, location.path, size, location.source, "", "", None, str(error))
    return FoundModel(
        name=location.name,
        path=location.path,
        size=size,
        source=location.source,
        architecture=header.architecture,
        quantisation=header.quantisation,
        licence=entry.licence if entry else header.licence,
    )


def _locations() -> Iterator[Location]:
    yield from _ours()
    yield from _huggingface(huggingface_directory())
    for directory in ollama_directories():
        yield from _ollama(directory)
    for directory in lmstudio_directories():
        yield from _lmstudio(directory)


def _ours() -> Iterator[Location]:
    names = {entry.file_name: entry.name for entry in CATALOG.values()}
    for path in _sorted_glob(models_directory(), "*.gguf"):
        yield Location(names.get(path.name, path.stem), path, "slipstream")


def _huggingface(directory: Path) -> Iterator[Location]:
    """models--owner--repo/snapshots/<revision>/**/*.gguf; the revision that `main` names wins."""
    for repository in _sorted_glob(directory, "models--*--*"):
        owner_and_name = repository.name.removeprefix("models--").replace("--", "/", 1)
        current = _read_text(repository / "refs" / "main").strip()
        snapshots = _sorted_glob(repository / "snapshots", "*")
        snapshots.sort(key=lambda snapshot: snapshot.name != current)
        seen: set[str] = set()
        for snapshot in snapshots:
            for path in _sorted_glob(snapshot, "**/*.gguf"):
                file_name = path.relative_to(snapshot).as_posix()
                if file_name not in seen:
                    seen.add(file_name)
                    yield Location(f"hf:{owner_and_name}/{file_name}", path, "huggingface")


def _ollama(directory: Path) -> Iterator[Location]:
    """manifests/<host>/<namespace>/<model>/<tag> names a blob; the namespace "library" is left out."""
    for manifest in _sorted_glob(directory / "manifests", "*/*/*/*"):
        blob = _ollama_blob(directory, manifest)
        if blob is not None:
            namespace, model, tag = manifest.parts[-3:]
            prefix = "" if namespace == "library" else f"{namespace}/"
            yield Location(f"ollama:{prefix}{model}:{tag}", blob, "ollama")


def _ollama_blob(directory: Path, manifest: Path) -> Path | None:
    try:
        layers = json.loads(_read_text(manifest))["layers"]
        digests = [layer["digest"] for layer in layers if layer.get("mediaType") == OLLAMA_MODEL]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    # The digest becomes part of a path, so it must be nothing but a digest.
    if len(digests) != 1 or not isinstance(digests[0], str) or not DIGEST.fullmatch(digests[0]):
        return None
    blob = directory / "blobs" / digests[0].replace(":", "-")
    return blob if _is_file(blob) else None


def _lmstudio(directory: Path) -> Iterator[Location]:
    """<publisher>/<repository>/<file>.gguf."""
    for path in _sorted_glob(directory, "*/*/*.gguf"):
        yield Location(f"lmstudio:{path.relative_to(directory).as_posix()}", path, "lmstudio")


def _matching(text: str, locations: list[Location]) -> list[Location]:
    wanted = text.lower()
    exact = [location for location in locations if location.name.lower() == wanted]
    return exact or [location for location in locations if wanted in map(str.lower, _short_forms(location))]


def _short_forms(location: Location) -> Iterator[str]:
    """What a name may be shortened to."""
    bare = location.name.removeprefix("hf:").removeprefix("ollama:").removeprefix("lmstudio:")
    yield bare
    if location.source == "slipstream":
        yield location.path.name
    if location.source == "ollama":
        yield location.name.removesuffix(":latest")
        yield bare.removesuffix(":latest")
    else:
        yield Path(bare).name
        yield Path(bare).name.removesuffix(".gguf")


def _spellings(locations: list[Location]) -> list[str]:
    return [spelling for location in locations for spelling in (location.name, *_short_forms(location))]


def _looks_like_path(text: str) -> bool:
    return (
        text.lower().endswith(".gguf") or text.startswith((".", "~", os.sep)) or os.sep in text or Path(text).exists()
    )


def _no_file(path: Path) -> str:
    """Say what is wrong with a path, and which model files lie next to it."""
    folder = path if path.is_dir() else path.parent
    names = [candidate.name for candidate in _sorted_glob(folder, "*.gguf")]
    there = f"; {folder} holds {', '.join(names[:5])}" if names else ""
    if path.is_dir():
        return f"{path} is a directory; give the .gguf file in it{there}."
    if path.exists():
        return f"{path} is not a regular file; give a .gguf file."
    return f"There is no file {path}{there or '; check the path, or see `slipstream models`'}."


def _sorted_glob(directory: Path, pattern: str) -> list[Path]:
    """What matches, in order; nothing if the directory is missing or may not be read."""
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~somebody who does not exist
        return Path(text)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no permission on the way, or a zero byte in the name
        return False


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_MANIFEST)
    except (OSError, UnicodeDecodeError):
        return ""
