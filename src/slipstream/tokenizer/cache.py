"""Recipes of tokenizers, kept between programs: working out a large one takes seconds, reading it next to nothing.

A file is a line with the checksum of the rest. Losing one costs the working out; so a damaged file counts as absent,
and one that cannot be written is no error.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from slipstream.models.paths import cache_directory
from slipstream.tokenizer.recipe import Recipe

FORMAT = 1
"""To be raised when the same specification leads to another recipe."""

WORTH_KEEPING = 1 << 14
"""Tokens from which on reading a file is quicker than working it out again."""


def kept(key: str, size: int, make: Callable[[], Recipe]) -> Recipe:
    """The recipe that was kept under the key, or else what `make` gives.

    size: of the vocabulary
    """
    if size < WORTH_KEEPING:
        return make()
    path = cache_directory() / "tokenizers" / f"{key}-{FORMAT}"
    recipe = _read(path)
    if recipe is None:
        recipe = make()
        _write(path, recipe.encoded())
    return recipe


def _read(path: Path) -> Recipe | None:
    try:
        checksum, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return Recipe.decoded(content) if checksum == _checksum(content) else None


def _write(path: Path, content: bytes) -> None:
    """A reader sees the whole file or none."""
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(_checksum(content) + b"\n" + content)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
