"""Writing into our cache without ever leaving half a file: locks, staging directories, clear errors."""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.errors import StorageError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
CACHE_ELSEWHERE = "set SLIPSTREAM_CACHE_DIR to another directory"
"""What helps where our cache cannot be written."""
STAGING_SUFFIX = ".part"
POLL_SECONDS = 0.1


@contextmanager
def storage_errors(place: Path, elsewhere: str = CACHE_ELSEWHERE) -> Iterator[None]:
    """Turn what the system says about the disk into StorageError; arguments as for `storage_sentence`."""
    try:
        yield
    except BrokenPipeError:  # somebody stopped reading what a progress callback prints: not the disk
        raise
    except OSError as error:
        raise StorageError(storage_sentence(error.errno, place, error.strerror or str(error), elsewhere)) from error


def storage_sentence(number: int | None, place: Path, detail: str, elsewhere: str = CACHE_ELSEWHERE) -> str:
    """One sentence for a failed write below `place`.

    elsewhere: how to have it written to another place, an order without a full stop
    """
    if number in FULL:
        return f"The disk is full at {place}; free some space, or {elsewhere}."
    if number in DENIED:
        return f"There is no permission to write to {place}; {elsewhere}."
    return f"{place} cannot be written ({detail}); {elsewhere}."


def require_space(directory: Path, nbytes: int, what: str) -> None:
    """Raise StorageError unless `nbytes` are free where `directory` is."""
    free = shutil.disk_usage(directory).free
    if free < nbytes:
        raise StorageError(
            f"Fetching {what} needs {_megabytes(nbytes)} at {directory} and {_megabytes(free)} are free; "
            f"free some space, or {CACHE_ELSEWHERE}."
        )


@contextmanager
def exclusive(lock: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold `lock` across processes; `waiting` is called now and then while somebody else holds it.

    The system frees the lock when its holder dies, however it dies. The empty lock file stays:
    deleting it would let two holders in.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _acquire(descriptor, waiting)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, waiting: Callable[[], None]) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waiting()
            time.sleep(POLL_SECONDS)
        except OSError as error:
            # Some network file systems have no locks. Names of staging directories are unique, so going
            # on costs a second download at worst.
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                return
            raise


@contextmanager
def staging(directory: Path, name: str) -> Iterator[Path]:
    """A temporary directory on the same file system as `directory`, gone afterwards whatever happens."""
    path = Path(tempfile.mkdtemp(prefix=f".{name}-", suffix=STAGING_SUFFIX, dir=directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_stale(directory: Path, name: str) -> None:
    """Delete what a killed process left behind. Call it only while holding the lock for `name`."""
    for path in directory.glob(f".{name}-*{STAGING_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)


def publish(finished: Path, destination: Path) -> None:
    """Move a complete file to its place, so that readers see all of it or nothing, even after a power cut."""
    with finished.open("rb") as file:
        os.fsync(file.fileno())
    finished.replace(destination)
    descriptor = os.open(destination.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.0f} MB"
