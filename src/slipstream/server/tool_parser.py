"""Tool calls found in a model's text as it comes."""

import json
import math
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from slipstream.server.tool_formats import ToolFormat

MOST_LEVELS = 100
"""Objects and lists within each other in the JSON of a call."""
MOST_HEADER = 200
"""Characters between the opening and the arguments, where the name stands there."""

_HEADER = re.compile(r"\s*([\w.-]+?)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*")
_CLOSERS = {"{": "}", "[": "]"}
_OUTSIDE_STRINGS = frozenset('{}[],:"+-.0123456789eE \t\r\nabdeflnrstu')
"""Characters of JSON outside of strings; the letters are those of true, false and null, and a few more."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in OpenAI's terms. arguments: a JSON object as text; index: its number in the answer, from 0."""

    index: int
    id: str
    name: str
    arguments: str

    def as_message(self) -> dict[str, Any]:
        """As an entry of a message's `tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    def as_delta(self) -> dict[str, Any]:
        """As an entry of a streamed delta's `tool_calls`."""
        return {"index": self.index, **self.as_message()}


class Parsed(NamedTuple):
    """What a piece of text came to: content that may be shown, and calls that are complete."""

    content: str
    calls: list[ToolCall]

    def deltas(self) -> list[dict[str, Any]]:
        """As deltas of streamed chunks; none where there is nothing to say yet."""
        deltas: list[dict[str, Any]] = [{"content": self.content}] if self.content else []
        return [*deltas, {"tool_calls": [call.as_delta() for call in self.calls]}] if self.calls else deltas


def make_id() -> str:
    """Nine letters and digits, which Mistral's templates insist on and all others take."""
    return secrets.token_hex(5)[:9]


class ToolCallParser:
    """Tells calls from content, however the text is cut into pieces.

    A call is given out when it is complete, because what looked like one and turns out not to be (broken JSON, a
    function that nobody offered) is content, as it stands. White space before and after a call belongs to neither.

    names: functions that were offered; without any, all text is content
    calls: those so far
    """

    def __init__(self, tool_format: ToolFormat, names: Collection[str], make_id: Callable[[], str] = make_id) -> None:
        self._format = tool_format
        self._names = frozenset(names)
        self._make_id = make_id
        self.calls: list[ToolCall] = []
        self._text = ""  # not decided yet
        self._before = ""  # of the call in `_text`: white space and opening, which come back if it is none
        self._json: _Json | None = None  # the call in `_text`, None between calls
        self._after_call = False
        self._only_content = not self._names

    def push(self, text: str) -> Parsed:
        """The next piece of the text."""
        return self._parsed(text, final=False)

    def finish(self) -> Parsed:
        """What was held back, when the text is over. A call that was cut short is content."""
        return self._parsed("", final=True)

    def _parsed(self, text: str, *, final: bool) -> Parsed:
        self._text += text
        content: list[str] = []
        known = len(self.calls)
        while self._step(content, final=final):
            pass
        return Parsed("".join(content), self.calls[known:])

    def _step(self, content: list[str], *, final: bool) -> bool:
        """Decide about a part of the text; False where nothing more can be decided yet."""
        if self._only_content:
            content.append(self._take(len(self._text)))
            return False
        if self._json is not None:
            return self._step_inside(self._json, content, final=final)
        return self._step_bare(content, final=final) if self._format.bare else self._step_marked(content, final=final)

    # --- between calls

    def _step_marked(self, content: list[str], *, final: bool) -> bool:
        """Content up to an opening, which may stand anywhere."""
        if self._after_call:
            self._text = self._text.lstrip()
            self._after_call = not self._text
        found = self._text.find(self._format.opening)
        if found >= 0:
            start = len(self._text[:found].rstrip())
            content.append(self._take(start))
            self._open(self._take(found - start + len(self._format.opening)))
            return True
        held = 0 if final else _overlap(self._text, self._format.opening)
        shown = self._text[: len(self._text) - held]
        content.append(self._take(len(shown if final else shown.rstrip())))
        return False

    def _step_bare(self, content: list[str], *, final: bool) -> bool:
        """Only at the beginning, or behind another call, may a call begin."""
        rest = self._text.lstrip(" \t\r\n;" if self.calls else " \t\r\n")
        if self.calls:
            self._text = rest
        start = len(self._text) - len(rest)
        if rest.startswith(self._format.opening):
            self._open(self._take(start + len(self._format.opening)))
            return True
        if rest.startswith("{"):
            self._open(self._take(start))
            return True
        if not final and (not rest or self._format.opening.startswith(rest)):
            return False
        self._only_content = True
        return True

    def _open(self, before: str) -> None:
        self._before, self._json = before, _Json(headed=self._format.headed)

    # --- inside of one

    def _step_inside(self, scanner: "_Json", content: list[str], *, final: bool) -> bool:
        end = scanner.end(self._text)
        if end is None:
            if final:
                self._give_up(len(self._text), content)
            return final
        found = None if scanner.broken else self._read(self._text[:end], scanner.start)
        if found is None:
            self._give_up(end, content)
            return True
        rest = self._text[end:].lstrip()
        closing = self._format.closing
        if closing and not final and len(rest) < len(closing) and closing.startswith(rest):
            return False
        cut = final and closing.startswith(rest)  # the text ended within the closing
        self._text = "" if cut else rest.removeprefix(closing)
        self._json, self._after_call = None, True
        for name, arguments in found:
            self.calls.append(ToolCall(len(self.calls), self._make_id(), name, arguments))
        return True

    def _give_up(self, length: int, content: list[str]) -> None:
        """It is no call."""
        content.append(self._before + self._take(length))
        self._json, self._after_call = None, False
        self._only_content |= self._format.bare

    def _take(self, length: int) -> str:
        taken, self._text = self._text[:length], self._text[length:]
        return taken

    def _read(self, text: str, start: int) -> list[tuple[str, str]] | None:
        """(name, arguments) of the calls in a complete JSON value, None if that is not what it is."""
        try:
            value = _loaded(text[start:])
        except ValueError:
            return None
        if self._format.headed:
            header = _HEADER.fullmatch(text[:start])
            value = {"name": header and header[1], "arguments": value}
        calls = [self._call(one) for one in (value if isinstance(value, list) else [value])]
        found = [call for call in calls if call is not None]
        return found if found and len(found) == len(calls) else None

    def _call(self, value: object) -> tuple[str, str] | None:
        if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
            value = value["function"]
        name = value.get("name") if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(name, str) or name not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):  # JSON within JSON
            try:
                arguments = _loaded(arguments or "{}")
            except (ValueError, RecursionError):
                return None
        return (name, _as_json(arguments)) if isinstance(arguments, dict) else None


class _Json:
    """Looks for the end of a JSON object or list at the beginning of a text that grows.

    start:  where the value begins, once that is known
    broken: it is none; `end` then says how much of the text that was seen in
    headed: a function's name stands before it
    """

    def __init__(self, *, headed: bool) -> None:
        self.start, self.broken = -1, False
        self._headed = headed
        self._at = 0
        self._ended = False
        self._closers: list[str] = []
        self._in_string = self._escaped = False

    def end(self, text: str) -> int | None:
        """Where the value ends, None if that has not come yet. Call it with the same text or a longer one."""
        while not self._ended and self._at < len(text):
            character = text[self._at]
            if self.start < 0:
                self._seek(character)
            elif self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            else:
                self._follow(character)
            self._at += not self.broken
            self._ended = self.broken or (self.start >= 0 and not self._closers)
        return self._at if self._ended else None

    def _seek(self, character: str) -> None:
        """Before the value."""
        if character == "{" or (character == "[" and not self._headed):
            self.start = self._at
            self._closers.append(_CLOSERS[character])
        elif self._headed:
            known = character.isspace() or character.isalnum() or character in "_-.[]"
            self.broken = not known or self._at > MOST_HEADER
        else:
            self.broken = not character.isspace()

    def _follow(self, character: str) -> None:
        """Within the value, outside of strings."""
        if character in _CLOSERS:
            self._closers.append(_CLOSERS[character])
            self.broken = len(self._closers) > MOST_LEVELS
        elif character in "}]":
            self.broken = self._closers.pop() != character
        else:
            self._in_string = character == '"'
            self.broken = character not in _OUTSIDE_STRINGS


def _overlap(text: str, opening: str) -> int:
    """Length of the longest beginning of the opening that ends the text."""
    return next((size for size in range(min(len(opening), len(text)), 0, -1) if text.endswith(opening[:size])), 0)


def _loaded(text: str) -> Any:
    """A JSON value, line breaks within strings forgiven. Raises ValueError for what JSON cannot express."""
    return json.loads(text, strict=False, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    """A number that JSON can express again. Raises ValueError for others (1e999)."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _as_json(value: dict[str, Any]) -> str:
    """Readable where it can be; escaped where it holds half a surrogate pair, which UTF-8 cannot express."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or not re.search("[\ud800-\udfff]", text) else json.dumps(value)
