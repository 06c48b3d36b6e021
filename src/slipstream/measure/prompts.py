"""Prompts for measurements: those that come with Slipstream, and files of one's own (docs/bench.md)."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from slipstream.engine import Message, Prompt
from slipstream.errors import StorageError, UsageError

KINDS = ("chat", "code", "code-editing", "summary", "translation", "maths", "retrieval", "json", "prose")
"""Kinds of the prompts that come with Slipstream, in the order of reports."""

OWN_KIND = "own"
"""The kind of a prompt whose file names none."""

_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt of a kind. Either messages for the model's chat template, or text that is continued as it is."""

    id: str
    kind: str
    messages: tuple[Message, ...] = ()
    text: str | None = None

    def for_model(self, *, has_template: bool = True) -> Prompt:
        """What `Engine.stream` takes; a model without a chat template continues the messages' text."""
        if self.text is not None:
            return self.text
        return list(self.messages) if has_template else "\n\n".join(message["content"] for message in self.messages)


def shipped_prompts(kinds: Iterable[str] | None = None, per_kind: int | None = None) -> list[BenchPrompt]:
    """The prompts in `data/prompts.jsonl`; all kinds, all prompts of each where nothing else is asked for."""
    text = files("slipstream.measure").joinpath("data/prompts.jsonl").read_text(encoding="utf-8")
    return select(_parse(text, "prompts.jsonl"), kinds, per_kind)


def read_prompts(path: Path) -> list[BenchPrompt]:
    """The prompts in a file: JSON lines (ours or Spec-Bench's), or plain text with an empty line between prompts.

    A file is JSON lines if its name ends in .jsonl or its first character is a brace. Raises UsageError with the
    number of the line that is damaged, StorageError for a file that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 text (byte {error.start + 1}); convert it, for example with iconv."
        ) from None
    except OSError as error:
        raise StorageError(f"The prompts in {path} cannot be read: {error.strerror}.") from error
    prompts = _parse(text, str(path)) if _is_json_lines(path, text) else _paragraphs(text)
    if not prompts:
        raise UsageError(f"{path} holds no prompts; docs/bench.md describes the formats.")
    return prompts


def select(
    prompts: Sequence[BenchPrompt], kinds: Iterable[str] | None = None, per_kind: int | None = None
) -> list[BenchPrompt]:
    """The prompts of these kinds, the first `per_kind` of each. Raises UsageError for a kind that there is not."""
    there = list(dict.fromkeys(prompt.kind for prompt in prompts))
    wanted = there if kinds is None else list(kinds)
    for kind in wanted:
        if kind not in there:
            nearest = difflib.get_close_matches(kind, there, 1, 0.4)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(there)}."
            raise UsageError(f"No prompt is of the kind {kind!r}; {hint}")
    of_kind = {kind: [prompt for prompt in prompts if prompt.kind == kind][:per_kind] for kind in wanted}
    return [prompt for chosen in of_kind.values() for prompt in chosen]


def _is_json_lines(path: Path, text: str) -> bool:
    if path.suffix.lower() in (".txt", ".md"):
        return False
    return path.suffix.lower() in (".jsonl", ".ndjson") or text.lstrip().startswith("{")


def _paragraphs(text: str) -> list[BenchPrompt]:
    parts = [part.strip("\n") for part in re.split(r"\n[ \t]*(?:\n[ \t]*)+", text.replace("\r\n", "\n"))]
    texts = [part for part in parts if part.strip()]
    return [BenchPrompt(f"{OWN_KIND}-{number}", OWN_KIND, _user(text)) for number, text in enumerate(texts, 1)]


def _parse(text: str, source: str) -> list[BenchPrompt]:
    """JSON lines. A line that is empty separates nothing; ids that are missing are made of kind and number."""
    prompts: dict[str, BenchPrompt] = {}
    seen: dict[str, int] = {}
    for number, item in _objects(text, source):
        kind = _kind(item)
        seen[kind] = seen.get(kind, 0) + 1
        name = str(item.get("id", item.get("question_id", f"{kind}-{seen[kind]}")))
        where = f"Line {number} of {source}"
        if name in prompts:
            raise UsageError(f"{where} has the id {name!r}, which an earlier line has; give each prompt its own.")
        prompts[name] = _prompt(name, kind, item, where)
    return list(prompts.values())


def _objects(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            raise UsageError(f"Line {number} of {source} is not JSON; mend it or take it out.") from None
        if not isinstance(item, dict):
            raise UsageError(
                f'Line {number} of {source} is no JSON object such as {{"kind": "chat", "prompt": "..."}}.'
            )
        if _HALF.search(json.dumps(item, ensure_ascii=False)):
            raise UsageError(f"Line {number} of {source} has half a character (\\ud800 to \\udfff alone); mend it.")
        yield number, item


def _kind(item: dict[str, Any]) -> str:
    kind = item.get("kind", item.get("category"))
    """On one line, because tables have it in one cell."""
    return (" ".join(kind.split()) if isinstance(kind, str) else "") or OWN_KIND


def _prompt(name: str, kind: str, item: dict[str, Any], where: str) -> BenchPrompt:
    """One line: our `prompt`, `messages` or `text`, or Spec-Bench's `turns`, of which the first is asked."""
    if "messages" in item:
        return BenchPrompt(name, kind, _checked_messages(item["messages"], where))
    if "turns" in item:
        turns = item["turns"]
        if not isinstance(turns, list) or not turns:
            raise UsageError(f"{where} has no turns; it must be a list whose first entry is the question.")
        return BenchPrompt(name, kind, _user(_checked_text(turns[0], "turns", where)))
    if "text" in item:
        return BenchPrompt(name, kind, text=_checked_text(item["text"], "text", where))
    if "prompt" in item:
        return BenchPrompt(name, kind, _user(_checked_text(item["prompt"], "prompt", where)))
    raise UsageError(f"{where} has none of prompt, messages, text and turns, one of which must hold the question.")


def _checked_messages(messages: Any, where: str) -> tuple[Message, ...]:
    good = isinstance(messages, list) and messages and all(map(_is_message, messages))
    if not good:
        raise UsageError(f'{where} must have messages as a list of {{"role": "user", "content": "..."}}.')
    return tuple(messages)


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _checked_text(text: Any, key: str, where: str) -> str:
    if not isinstance(text, str) or not text.strip():
        given = "nothing" if isinstance(text, str) else type(text).__name__
        raise UsageError(f"{where} must have text in {key}, not {given}.")
    return text


def _user(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)
