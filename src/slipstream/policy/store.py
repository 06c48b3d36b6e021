"""What policies have learned, kept between programs: cost tables, acceptance, what is in the bank.

One JSON file for each key in Slipstream's cache. Losing it costs two seconds of measuring; so damaged files count as
absent, and one that cannot be written is no error.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

FORMAT = 1


class Store:
    """A folder of small JSON files. None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, kind: str, key: str) -> dict[str, Any]:
        """What was kept under the key, {} if nothing."""
        if self._folder is None:
            return {}
        try:
            value = json.loads(self._path(kind, key).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        usable = isinstance(value, dict) and value.get("format") == FORMAT and value.get("key") == key
        return value if usable else {}

    def write(self, kind: str, key: str, value: dict[str, Any]) -> None:
        """Keep a value; a reader sees the old file or the new one, never half of it."""
        if self._folder is None:
            return
        path = self._path(kind, key)
        part = path.with_suffix(f".{uuid4().hex}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"format": FORMAT, "key": key, **value}), encoding="utf-8")
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink()

    def _path(self, kind: str, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
