"""Files of a work folder that are whole or not there, and say so when they are damaged."""

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, Final

from slipstream.models import storage

_HEAD: Final = struct.Struct("<8sIQ44x")
_MAGIC: Final = b"SLIPTRN1"
HEAD_BYTES: Final = _HEAD.size
"""What stands before a file's payload; a multiple of what any number has to be aligned to."""


class DamagedFileError(Exception):
    """A file of a work folder that is not what was written; it is made again."""


def write_checked(path: Path, payload: bytes) -> None:
    """Write a file with its checksum: readers see all of it or nothing, even after a power cut.

    Raises StorageError where the disk is full or may not be written to.
    """
    with storage.storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + storage.STAGING_SUFFIX)
        with partial.open("wb") as file:
            file.write(_HEAD.pack(_MAGIC, zlib.crc32(payload), len(payload)))
            file.write(payload)
        storage.publish(partial, path)


def read_checked(path: Path) -> bytes:
    """The payload. Raises DamagedFileError if it is not what was written, OSError where there is no file."""
    data = path.read_bytes()
    if len(data) < HEAD_BYTES:
        raise DamagedFileError
    magic, checksum, length = _HEAD.unpack_from(data)
    payload = data[HEAD_BYTES:]
    if magic != _MAGIC or length != len(payload) or checksum != zlib.crc32(payload):
        raise DamagedFileError
    return payload


def is_whole(path: Path) -> bool:
    """Whether a file is there and is what was written, read in pieces."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            if len(head) < HEAD_BYTES:
                return False
            magic, checksum, length = _HEAD.unpack(head)
            if magic != _MAGIC or os.fstat(file.fileno()).st_size != HEAD_BYTES + length:
                return False
            found = 0
            while piece := file.read(1 << 24):
                found = zlib.crc32(piece, found)
            return bool(found == checksum)
    except FileNotFoundError:
        return False


def write_json(path: Path, value: Any) -> None:
    """As `write_checked`."""
    write_checked(path, json.dumps(value, indent=1).encode())


def read_json(path: Path) -> Any:
    """What `write_json` wrote; None where there is nothing, or nothing that can be used."""
    try:
        return json.loads(read_checked(path))
    except (FileNotFoundError, DamagedFileError, ValueError):
        return None
