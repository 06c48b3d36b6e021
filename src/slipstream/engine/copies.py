"""Files that draft for a target: made once, and kept in Slipstream's cache."""

from collections.abc import Callable
from pathlib import Path

from slipstream.models import GgufHeader, cache_directory, storage
from slipstream.models.fingerprint import fingerprint


def kept_copy(
    header: GgufHeader,
    kind: str,
    what: str,
    nbytes: int,
    write: Callable[[Path], object],
    report: Callable[[float], None],
) -> Path:
    """The path of a copy of a target; makes it unless it is there. Interrupted work leaves nothing behind.

    kind:   tells the copies of one target apart
    what:   it is, for people
    nbytes: that it takes at most
    write:  makes it
    report: called with the fraction that is made

    Raises StorageError, and what `write` raises.
    """
    return made_once("copies", f"{fingerprint(header.path)}-{kind}", what, nbytes, write, report)


def made_once(
    folder: str,
    name: str,
    what: str,
    nbytes: int,
    write: Callable[[Path], object],
    report: Callable[[float], None],
) -> Path:
    """The path of the file `name`.gguf in a folder of Slipstream's cache; arguments as for `kept_copy`."""
    directory = cache_directory() / folder
    path = directory / f"{name}.gguf"
    with storage.storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with storage.exclusive(directory / f"{name}.lock", lambda: report(0.0)):
            if path.exists():
                return path
            storage.remove_stale(directory, name)
            storage.require_space(directory, nbytes, what)
            with storage.staging(directory, name) as stage:
                finished = stage / path.name
                report(0.0)
                write(finished)
                storage.publish(finished, path)
    return path


def kept_copies(header: GgufHeader) -> dict[str, Path]:
    """The copies of a target that have been made, by kind. Raises ModelFileError where it cannot be read."""
    made = sorted((cache_directory() / "copies").glob("*.gguf"))
    start = f"{fingerprint(header.path)}-" if made else ""
    return {path.stem.removeprefix(start): path for path in made if path.stem.startswith(start)}
