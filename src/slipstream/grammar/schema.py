"""What in a JSON schema would hang or crash the library, found before the library sees it.

What the schema means is not checked here: the library says what it does not support.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from slipstream.errors import UsageError

MOST_CHARACTERS = 1 << 18
"""Of a schema as JSON."""
MOST_LEVELS = 64
"""Objects and lists within each other."""
MOST_MEMBERS = 1000
"""Of one object: the time to compile optional properties grows with the square of their number."""
MOST_LEVELS_WITH_REFERENCES = 256
"""Of the schema and of all that it refers to, together. The library follows references by recursion: a chain of 2,100
levels ended the process on a stack of 8 MiB, and threads have less."""
MOST_INTERSECTED = 6
"""Patterns and formats that one string must have all of. Time doubles with each: 14 took nine seconds."""

EXACT = 1 << 53
"""Up to here every whole number is one in double precision, which the library reads: 2**63 became ...776000."""
_WIDEST = 1 << 63
"""The library cuts whole bounds to 64 bits."""

LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
"""JSON on one line, as `json.dumps` writes it: the library's own extension of schemas. With any white space allowed
little is forced, so little is drafted for free, and small models are known to go on with line breaks for ever."""

Schema = Mapping[str, Any]
_STRING = ("pattern", "format")
_ANY = ("anyOf", "oneOf")
_LEAST = ("minimum", "exclusiveMinimum")
_GREATEST = ("maximum", "exclusiveMaximum")
_TOLD = ("default", "example", "examples")
"""Only tell a reader something."""
_INDEX_DIGITS = 9
"""Of a place in a list: Python refuses to read a number of thousands, and no list here is that long."""


def checked_json(schema: Schema) -> str:
    """The schema as JSON for the library. Raises UsageError for what JSON cannot express and for what is too much."""
    if not isinstance(schema, Mapping):
        raise UsageError(f"A JSON schema must be an object, not {type(schema).__name__}.")
    _check_size(schema)
    _check_numbers(schema)
    try:
        text = json.dumps({**schema, "x-guidance": LINE})
    except ValueError as error:
        raise UsageError(f"The JSON schema cannot be written as JSON: {error}.") from None
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"The JSON schema has {len(text)} characters; at most {MOST_CHARACTERS} are supported.")
    heights: dict[int, int] = {}
    levels = _height(schema, heights)
    levels += sum(MOST_LEVELS if target is None else heights[id(target)] for target in _targets(schema))
    if levels > MOST_LEVELS_WITH_REFERENCES:
        raise UsageError(
            "The JSON schema refers too far: all that is referred to has "
            f"{levels} levels together; at most {MOST_LEVELS_WITH_REFERENCES} are supported."
        )
    if _Intersections(schema).of(schema) > MOST_INTERSECTED:
        raise UsageError(
            f"The JSON schema joins more than {MOST_INTERSECTED} patterns and formats for one string; use fewer."
        )
    return text


def _check_size(value: object) -> None:
    """Without recursion, because depth is one of the things that are checked."""
    level: list[object] = [value]
    left = MOST_CHARACTERS  # every value takes a character at least
    for _ in range(MOST_LEVELS + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        left -= len(level)
        if left < 0:
            raise UsageError(f"The JSON schema is too large; at most {MOST_CHARACTERS} characters are supported.")
        if not level:
            return
    raise UsageError(f"The JSON schema is too deeply nested; at most {MOST_LEVELS} levels are supported.")


def _check_numbers(schema: Schema) -> None:
    """What the library would round: an answer by it would break the schema."""
    waiting: list[tuple[str, object]] = [("", schema)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.items()
        elif isinstance(value, list | tuple):
            waiting += [(key, one) for one in value]
        elif isinstance(value, int | float) and not _is_kept(key, value):
            raise UsageError(
                f"The JSON schema has a number as {key:.40} that cannot be held to; "
                f"whole numbers may be {-EXACT} to {EXACT}."
            )


def _is_kept(key: str, number: float) -> bool:
    """Whether the library holds to a number that stands for this keyword, or to something narrower."""
    if key in _LEAST:
        return number <= -_WIDEST or (number < _WIDEST and int(float(number)) == int(number))
    if key in _GREATEST:
        return number >= _WIDEST - 1 or (number > -_WIDEST and int(float(number)) == int(number))
    return key in _TOLD or not isinstance(number, int) or -EXACT <= number <= EXACT


def _inside(value: object) -> list[object]:
    """The values in an object or a list."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise UsageError("The keys of a JSON schema must be strings.")
        if len(value) > MOST_MEMBERS:
            raise UsageError(
                f"The JSON schema has an object of {len(value)} members; at most {MOST_MEMBERS} are supported."
            )
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    finite = not isinstance(value, float) or math.isfinite(value)
    if not (value is None or isinstance(value, str | int | float)) or not finite:
        raise UsageError(f"The JSON schema holds {value!r:.40}, which JSON cannot express.")
    return []


def _height(value: object, known: dict[int, int]) -> int:
    """Levels from here to the innermost value; notes those of all that is inside."""
    if id(value) not in known:
        known[id(value)] = max((1 + _height(inner, known) for inner in _inside(value)), default=0)
    return known[id(value)]


def _targets(schema: Schema) -> list[Schema | None]:
    """What the schema refers to, each once; None for what is not found by a plain pointer."""
    found: dict[str, Schema | None] = {}
    waiting: list[object] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping) and isinstance(value.get("$ref"), str):
            found.setdefault(value["$ref"], _resolved(schema, value["$ref"]))
        waiting += _inside(value)
    return list(found.values())


def _resolved(schema: Schema, reference: str) -> Schema | None:
    """The part of the schema that a reference such as `#/$defs/name` points to (RFC 6901)."""
    value: object = schema
    if reference != "#" and not reference.startswith("#/"):
        return None
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        is_index = key.isdecimal() and len(key) <= _INDEX_DIGITS
        if isinstance(value, list) and is_index and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            return None
    return value if isinstance(value, Mapping) else None


class _Intersections:
    """An upper bound of the patterns and formats that a single string of the schema must have all of."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[int, int] = {}

    def of(self, schema: object) -> int:
        """Of the strings in what this part describes. A part within itself adds nothing."""
        if not isinstance(schema, Mapping):
            return 0
        if id(schema) not in self._known:
            self._known[id(schema)] = 0
            self._known[id(schema)] = self._joined(schema)
        return self._known[id(schema)]

    def _joined(self, schema: Schema) -> int:
        joined = sum(key in schema for key in _STRING) + self._most(_parts(schema))
        for one in _listed(schema.get("allOf")):
            joined += self.of(one)
        for key in _ANY:
            joined += self._most(_listed(schema.get(key)))
        if isinstance(schema.get("$ref"), str):
            joined += self.of(_resolved(self._root, schema["$ref"]))
        return joined

    def _most(self, schemas: Iterable[object]) -> int:
        most = 0
        for one in schemas:
            most = max(most, self.of(one))
        return most


def _parts(schema: Schema) -> Iterator[object]:
    """Schemas of what is inside; merged with those of the same name where schemas are joined."""
    for key, value in schema.items():
        if key not in ("allOf", *_ANY, "$ref"):
            yield value
            if isinstance(value, Mapping):
                yield from value.values()
            yield from _listed(value)


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
