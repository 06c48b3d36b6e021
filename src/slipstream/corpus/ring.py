"""Texts on disk: segments of records, appended to under a lock, the oldest segment given up when the bound is reached.

A segment is `MAGIC` and records; a record is its number of tokens, checksums, its scope and its tokens of 32 bits each,
all little endian. It is written in one piece at a file's end. Whoever dies while writing leaves half a record there,
which readers pass over and the next writer cuts off. All that is done with files is done under the lock of the folder,
which the system frees when its holder dies.
"""

import hashlib
import os
import struct
import time
import zlib
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from slipstream.models.storage import exclusive, storage_errors

MAGIC = b"SLIPCOR1"
HEAD = struct.Struct("<III16s")
"""Tokens, checksum of scope and tokens, checksum of these two numbers, scope."""
MOST_TOKENS = 1 << 24
"""Of a ring, by default: 64 MiB on disk."""
SEGMENTS = 8
"""Files that a full ring has, about: one of so many parts is forgotten at a time."""
LONGEST = 1 << 16
"""Tokens of a record; longer texts are several."""
TOKEN_BYTES = 4
SUFFIX = ".tokens"
ELSEWHERE = "name another folder with --corpus, or do without by --corpus off"
"""What helps where a ring cannot be written."""
CLEARED = "cleared"
"""A file that says by its content when the ring was emptied on purpose, so that other processes forget, too."""

Tokens = NDArray[np.uint32]


class Record(NamedTuple):
    """A text, or a part of one. scope: whose it is, as `scope_key` has it."""

    scope: bytes
    tokens: Tokens


class News(NamedTuple):
    """What happened to a ring since it was last looked at. cleared: all that was there before is to be forgotten."""

    cleared: bool
    records: list[Record]


class _Damaged(Exception):
    """A file that is not what was written."""


def scope_key(scope: str) -> bytes:
    """16 bytes that tell scopes apart and do not say what they are called."""
    return hashlib.sha256(b"slipstream corpus\0" + scope.encode()).digest()[:16]


class Ring:
    """The texts in one folder, shared with other processes.

    folder:      made with the first record, readable by its owner only
    most_tokens: bound of all segments together, about: heads of records are counted as tokens

    Every method takes the lock, and raises StorageError for what the system says about the disk.
    """

    def __init__(self, folder: Path, most_tokens: int = MOST_TOKENS) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        """Sentences about damaged files, for whoever shows them and empties the list."""
        self._segment_bytes = max(TOKEN_BYTES * most_tokens // SEGMENTS, 1 << 10)
        self._most_bytes = TOKEN_BYTES * most_tokens
        self._longest = min(LONGEST, (self._segment_bytes - len(MAGIC) - HEAD.size) // TOKEN_BYTES)
        self._read_to: dict[str, int] = {}
        self._cleared = self._clearing()

    def news(self, wanted: Container[bytes] | None = None) -> News:
        """What was appended since the last call, by anybody; at first all that there is.

        wanted: scopes whose records are of interest; None is all
        """
        if not self.folder.is_dir():
            return News(False, [])
        with self._locked():
            return self._news(wanted)

    def append(self, records: Iterable[Record], wanted: Container[bytes] | None = None) -> News:
        """Write records; returns what others have written since the last look, without these, as `news` does."""
        self._make_folder()
        with self._locked():
            news = self._news(wanted)
            for record in records:
                for part in self.parts(record.tokens):
                    self._write(record.scope, part)
            return news

    def parts(self, tokens: Tokens) -> list[Tokens]:
        """A text as the records that it makes."""
        return [tokens[start : start + self._longest] for start in range(0, len(tokens), self._longest)]

    def is_there(self) -> bool:
        """Whether the folder is one of a ring."""
        return (self.folder / "lock").exists()

    def visit(self, take: Callable[[Record], None], scope: bytes | None = None) -> None:
        """Hand out all records that are there now, oldest first, one at a time: of one scope, or of all."""
        if not self.folder.is_dir():
            return
        with self._locked():
            for path in self._segments():
                self._scan(path, 0, lambda one: take(one) if scope in (None, one.scope) else None)

    def texts(self, scope: bytes | None = None) -> list[Record]:
        """What `visit` hands out."""
        records: list[Record] = []
        self.visit(records.append, scope)
        return records

    def size(self) -> int:
        """Bytes of all segments."""
        found = 0
        for path in self._segments():
            with suppress(FileNotFoundError):  # given up by another process this moment
                found += path.stat().st_size
        return found

    def clear(self) -> int:
        """Delete everything, damaged files too; returns how many bytes that were."""
        if not self.folder.is_dir():
            return 0
        with self._locked():
            # first, so that nobody goes on with what is not there any more
            _write_private(self.folder / CLEARED, uuid4().hex.encode(), os.O_TRUNC)
            paths = [*self._segments(), *self.folder.glob(f"*{SUFFIX}.damaged*")]
            freed = sum(path.stat().st_size for path in paths)
            for path in paths:
                path.unlink()
            self._news(())
        return freed

    # --- under the lock

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with storage_errors(self.folder, ELSEWHERE):
            lock = self.folder / "lock"
            if not lock.exists():
                _write_private(lock, b"", 0)
            with exclusive(lock, lambda: None):
                yield

    def _news(self, wanted: Container[bytes] | None) -> News:
        clearing = self._clearing()
        cleared, self._cleared = clearing != self._cleared, clearing
        if cleared:
            self._read_to = {}
        records: list[Record] = []
        ends: dict[str, int | None] = {}

        def take(record: Record) -> None:
            if wanted is None or record.scope in wanted:
                records.append(record)

        for path in self._segments():
            ends[path.name] = self._scan(path, self._read_to.get(path.name, 0), take)
        self._read_to = {name: end for name, end in ends.items() if end is not None}
        return News(cleared, records)

    def _clearing(self) -> bytes:
        try:
            return (self.folder / CLEARED).read_bytes()
        except OSError:
            return b""

    def _segments(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.folder.glob(f"*{SUFFIX}"))

    def _scan(self, path: Path, start: int, take: Callable[[Record], None]) -> int | None:
        """Read records from a place in a segment on; returns where the last whole one ends, None for a damaged file."""
        size = path.stat().st_size
        if size == start or size < len(MAGIC):
            return start  # nothing new, or its writer died at once
        with path.open("rb") as file:
            file.seek(start)
            end = start
            try:
                for record in _records(file, size):
                    take(record)
                    end = file.tell()
            except _Damaged:
                self._set_aside(path)
                return None
            return max(end, len(MAGIC))

    def _set_aside(self, path: Path) -> None:
        """Rename a file that is not what was written, most likely by a fault of the disk."""
        other = path.with_name(f"{path.name}.damaged")
        path.replace(other)
        self.warnings.append(
            f"{path} was damaged and is now {other.name}; nothing is drafted from what it held. "
            "`slipstream corpus clear` deletes it."
        )

    def _write(self, scope: bytes, tokens: Tokens) -> None:
        """One record, at the end of the newest segment or in a new one. `_news` has been called."""
        data = _record(scope, tokens)
        segments = self._segments()
        newest = segments[-1] if segments else None
        end = 0 if newest is None else self._read_to.get(newest.name, 0)
        if newest is None or end + len(data) > self._segment_bytes:
            newest, end = self._new_segment(newest), 0
        if newest.exists() and newest.stat().st_size > end:
            os.truncate(newest, end)  # half a record of somebody who died
        if end == 0:
            data = MAGIC + data
        _write_private(newest, data, os.O_APPEND)
        self._read_to[newest.name] = end + len(data)
        self._forget_oldest()

    def _new_segment(self, newest: Path | None) -> Path:
        """Named after the time; a name never comes again."""
        least = 0 if newest is None else int(newest.name.removesuffix(SUFFIX)) + 1
        return self.folder / f"{max(time.time_ns(), least):020d}{SUFFIX}"

    def _forget_oldest(self) -> None:
        segments = self._segments()
        sizes = [path.stat().st_size for path in segments]
        while len(segments) > 1 and sum(sizes) > self._most_bytes:
            oldest = segments.pop(0)
            sizes.pop(0)
            oldest.unlink()
            self._read_to.pop(oldest.name, None)

    def _make_folder(self) -> None:
        with storage_errors(self.folder, ELSEWHERE):
            for folder in (self.folder.parent, self.folder):
                if not folder.is_dir():
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    with suppress(FileExistsError):  # somebody else was faster
                        folder.mkdir(mode=0o700)


def _records(file: BinaryIO, size: int) -> Iterator[Record]:
    """Whole records from where a segment's file is. Raises _Damaged."""
    if file.tell() == 0 and file.read(len(MAGIC)) != MAGIC:
        raise _Damaged
    while size - file.tell() >= HEAD.size:
        head = file.read(HEAD.size)
        count, body, own, scope = HEAD.unpack(head)
        if zlib.crc32(head[:8]) != own:
            if any(head) or any(file.read()):
                raise _Damaged
            return  # zeros: the disk had no time for it
        left = size - file.tell() - TOKEN_BYTES * count
        if left < 0:
            return  # half a record
        tokens = file.read(TOKEN_BYTES * count)
        if zlib.crc32(tokens, zlib.crc32(scope)) != body:
            if left:
                raise _Damaged
            return
        yield Record(scope, np.frombuffer(tokens, "<u4"))


def _record(scope: bytes, tokens: Tokens) -> bytes:
    body = scope + tokens.astype("<u4").tobytes()
    head = struct.pack("<II", len(tokens), zlib.crc32(body))
    return head + struct.pack("<I", zlib.crc32(head)) + body


def _write_private(path: Path, data: bytes, flags: int) -> None:
    """Write to a file that is its owner's only."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)
