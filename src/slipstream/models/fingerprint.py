"""Telling model files apart without reading gigabytes."""

import hashlib
from pathlib import Path

from slipstream.errors import ModelFileError
from slipstream.models.split import part_names

_SAMPLE = 1 << 20
_SAMPLES = 8


def fingerprint(path: Path) -> str:
    """32 hex digits from a file's size and eight samples of a MiB, first and last bytes included.

    Files that differ in size, header or almost any of their weights have different fingerprints; it is no proof against
    somebody who means to forge one. Of a model that is split, all files that are there count. Raises ModelFileError if
    one cannot be read.
    """
    digest = hashlib.sha256()
    _sample(path, digest)
    for name in part_names(path.name)[1:]:
        if (other := path.with_name(name)).exists():
            _sample(other, digest)
    return digest.hexdigest()[:32]


def _sample(path: Path, digest: "hashlib._Hash") -> None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            digest.update(str(size).encode())
            for index in range(_SAMPLES):
                file.seek(max(size - _SAMPLE, 0) * index // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error
