"""Models that are split into several files, as llama.cpp's `llama-gguf-split` makes them.

NAME-00001-of-00003.gguf has all metadata and the first tensors; the others lie beside it and have tensors of their own.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from slipstream.models.gguf import GgufHeader, TensorInfo

NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def is_later_part(path: Path) -> bool:
    """Whether a file is named as a part that is not the first: nothing that a user would name."""
    match = NAME.fullmatch(path.name)
    return match is not None and int(match[2]) > 1


def part_names(name: str) -> list[str]:
    """Names of all files of the model whose first file, or only one, is called `name`; a later part's name alone."""
    match = NAME.fullmatch(name)
    if match is None or int(match[2]) != 1:
        return [name]
    return [f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1)]


def join(first: "GgufHeader", read: Callable[[Path], "GgufHeader"]) -> "GgufHeader":
    """The header of the whole model whose first file this is; of a model in one file, the same header.

    Raises UnsupportedModelError for another part than the first and for files with other names, ModelFileError for
    parts that are missing or belong to another model, and what `read` raises.
    """
    count = first.integer("split.count") or 0
    if count < 2:
        return first
    stem, parts = _stem(first, count), [first]
    for number in range(2, count + 1):
        path = first.path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf")
        parts.append(_part(first, path, number, count, read))
    tensors = tuple(_numbered(parts))
    _check_tensors(first, tensors)
    return replace(first, tensors=tensors, other_parts=tuple(part.path for part in parts[1:]))


def _stem(first: "GgufHeader", count: int) -> str:
    """What the names of all parts begin with."""
    match, stated = NAME.fullmatch(first.path.name), (first.integer("split.no") or 0) + 1
    if stated != 1:
        name = f", {match[1]}-00001-of-{count:05}.gguf," if match else ""
        raise UnsupportedModelError(
            f"{first.path} is part {stated} of a model split into {count} files; "
            f"name the first part{name} and the others are found beside it."
        )
    if match is None or (int(match[2]), int(match[3])) != (1, count):
        raise UnsupportedModelError(
            f"{first.path} is part 1 of a model split into {count} files, but its name does not end in "
            f"-00001-of-{count:05}.gguf; give all parts the names that they came with."
        )
    return match[1]


def _part(
    first: "GgufHeader", path: Path, number: int, count: int, read: Callable[[Path], "GgufHeader"]
) -> "GgufHeader":
    if not path.exists():
        raise ModelFileError(
            f"{path} is missing: {first.path.name} is split into {count} files, which must lie beside each other; "
            "download them all."
        )
    part = read(path)
    stated = (part.integer("split.no") or 0) + 1, part.integer("split.count") or 1
    if stated != (number, count):
        raise ModelFileError(
            f"{path} says that it is part {stated[0]} of {stated[1]}, and part {number} of {count} is needed; "
            "download all parts of one model."
        )
    return part


def _numbered(parts: list["GgufHeader"]) -> Iterator["TensorInfo"]:
    for number, part in enumerate(parts):
        yield from (replace(tensor, part=number) for tensor in part.tensors)


def _check_tensors(first: "GgufHeader", tensors: tuple["TensorInfo", ...]) -> None:
    expected = first.integer("split.tensors.count")
    if expected is not None and expected != len(tensors):
        raise ModelFileError(
            f"The parts of {first.path} hold {len(tensors)} tensors and it says {expected}; "
            "download all parts of one model."
        )
    name, times = Counter(tensor.name for tensor in tensors).most_common(1)[0] if tensors else ("", 0)
    if times > 1:
        raise ModelFileError(
            f"The parts of {first.path} hold the tensor {name[:80]!r} {times} times; download all parts of one model."
        )
