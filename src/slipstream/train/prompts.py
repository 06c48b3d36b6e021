"""What the target is asked: prompts and documents of the user's, or the shipped set.

The shipped set has two parts. Most prompts the target writes itself, continuing the beginning of a user's turn
(Xu et al. 2024, arXiv 2406.08464): `data/openings.json` says how they begin. The others are made from the standard
library of the Python that runs this. What is asked for a text is a function of the recipe's seed and the text's number.
"""

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.errors import StorageError, UsageError
from slipstream.measure.prompts import BenchPrompt, read_prompts
from slipstream.train import library

PROMPT_FILES = (".jsonl", ".ndjson")
CODE_FILES = (
    ".py",
    ".js",
    ".ts",
    ".c",
    ".h",
    ".cpp",
    ".hpp",
    ".java",
    ".go",
    ".rs",
    ".rb",
    ".sh",
    ".sql",
    ".css",
    ".lua",
)
TEXT_FILES = (".txt", ".md", ".rst", ".html", ".csv", ".json", ".xml", ".tex")
MOST_DOCUMENT = 1 << 22
"""Characters of one document that are used."""
PASSAGE = 1400
"""Characters of a piece of a document."""
REPEATS = 4
"""Answers to one prompt of the user's: each is sampled anew, the first at temperature 0."""
HELD_BACK = 10
"""One of so many of the user's prompts is held back, to measure with."""

TEXT_TASKS = (
    "Summarise the following text in two sentences:\n\n{}",
    "What are the main points of this text?\n\n{}",
    "Explain the following passage in simple words:\n\n{}",
    "Continue this text:\n\n{}",
    "Write three questions about this text and answer them:\n\n{}",
)
CODE_TASKS = (
    "Explain what this code does:\n\n```\n{}\n```",
    "Write a test for this code:\n\n```\n{}\n```",
    "Print this code again with a comment on every function:\n\n```\n{}\n```",
    "Continue this code:\n\n```\n{}\n```",
    "Find possible mistakes in this code:\n\n```\n{}\n```",
)


class Ask(NamedTuple):
    """What the target is asked for one text.

    content: the user's message
    opening: its beginning, which the target is to finish, where there is no content
    plain:   a text that is read as it stands, without an answer
    """

    kind: str
    content: str | None = None
    opening: str = ""
    plain: str | None = None
    messages: Sequence[Any] = ()


class Source(NamedTuple):
    """Where prompts come from.

    key:      "shipped", or a digest of the user's files
    ask:      what is asked for the text with this number
    texts:    how many there are, None for no end
    held_out: what is never trained on
    note:     about sources and licences, for the recipe
    """

    key: str
    ask: Callable[[int], Ask]
    texts: int | None
    held_out: list[BenchPrompt]
    note: str


SHIPPED_NOTE = (
    "Prompts: written by the target itself from the beginnings in slipstream/train/data/openings.json (Apache-2.0), "
    "and "
    "made from docstrings and functions of Python's standard library (PSF-2.0). Answers: the target's own. Held out: "
    "slipstream/train/data/held_out.jsonl."
)


def shipped_source(seed: int) -> Source:
    """The set that comes with Slipstream; it has no end."""
    return Source("shipped", lambda number: _shipped_ask(seed, number), None, _held_out(), SHIPPED_NOTE)


def own_source(paths: Sequence[Path], seed: int) -> Source:
    """Prompts (.jsonl), documents and code of the user's; folders are searched. One in ten is held back.

    Raises UsageError where there is nothing to train on, StorageError for files that cannot be read.
    """
    prompts: list[BenchPrompt] = []
    passages: list[tuple[str, str]] = []
    digest = hashlib.sha256()
    for path in _found(paths):
        digest.update(path.name.encode())
        if path.suffix.lower() in PROMPT_FILES:
            prompts += read_prompts(path)
            digest.update(path.read_bytes())
        else:
            text = _document(path)
            digest.update(text.encode())
            kind = "code" if path.suffix.lower() in CODE_FILES else "text"
            passages += [(kind, passage) for passage in cut(text)]
    if not prompts and not passages:
        raise UsageError(
            "The files hold no prompts and no text; give .jsonl prompts (docs/bench.md), documents or code."
        )
    order = random.Random(f"{seed} order")
    asks = [Ask(one.kind, None if one.messages else "", plain=one.text, messages=one.messages) for one in prompts]
    asks += [_task(kind, passage, order) for kind, passage in passages]
    order.shuffle(asks)
    held, kept = asks[::HELD_BACK], [ask for number, ask in enumerate(asks) if number % HELD_BACK]
    if not kept:
        raise UsageError("One prompt is too few to train on; give at least two, better hundreds.")
    kept = [ask for _ in range(REPEATS) for ask in kept] + [
        Ask(kind, plain=passage) for kind, passage in passages if not _is_held(passage, held)
    ]
    held_out = [
        BenchPrompt(f"held-{number}", ask.kind, tuple(messages_of(ask)), ask.plain) for number, ask in enumerate(held)
    ]
    key = digest.hexdigest()[:16]
    return Source(key, kept.__getitem__, len(kept), held_out, "Prompts: the user's own files.")


def messages_of(ask: Ask) -> list[dict[str, Any]]:
    """The conversation that an ask comes to; none where a text is read as it stands."""
    if ask.messages:
        return [dict(message) for message in ask.messages]
    return [] if ask.content is None else [{"role": "user", "content": ask.content}]


def cut(text: str) -> list[str]:
    """Pieces of about `PASSAGE` characters, at ends of paragraphs or lines where there are any."""
    pieces, current = [], ""
    for line in text[:MOST_DOCUMENT].splitlines(keepends=True):
        for start in range(0, len(line), PASSAGE):
            part = line[start : start + PASSAGE]
            if current and len(current) + len(part) > PASSAGE:
                pieces.append(current)
                current = ""
            current += part
        if not line.strip() and len(current) > PASSAGE * 2 // 3:
            pieces.append(current)
            current = ""
    pieces.append(current)
    return [piece.strip("\n") for piece in pieces if len(piece.strip()) > 40]


def _is_held(passage: str, held: Sequence[Ask]) -> bool:
    return any(passage in (ask.content or "") for ask in held)


def _task(kind: str, passage: str, order: random.Random) -> Ask:
    task = order.choice(CODE_TASKS if kind == "code" else TEXT_TASKS)
    return Ask(kind, task.format(passage))


def _found(paths: Sequence[Path]) -> Iterator[Path]:
    """The files that are named, and those of the folders that are, in the order of their names."""
    for path in paths:
        if path.is_dir():
            wanted = (*PROMPT_FILES, *CODE_FILES, *TEXT_FILES)
            yield from sorted(one for one in path.rglob("*") if one.is_file() and one.suffix.lower() in wanted)
        elif path.is_file():
            yield path
        else:
            raise UsageError(
                f"There is no file or folder {path}; give prompts, documents, code files or folders of them."
            )


def _document(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")[:MOST_DOCUMENT]
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 text (byte {error.start + 1}); convert it, for example with iconv."
        ) from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error


def _shipped_ask(seed: int, number: int) -> Ask:
    chance = random.Random(f"{seed} {number}")
    kinds = _openings()
    draw = chance.random()
    for kind, entry in kinds.items():
        draw -= entry["share"]
        if draw < 0:
            return Ask(kind, opening=chance.choice(entry["openings"]))
    return _library_ask(chance)


def _library_ask(chance: random.Random) -> Ask:
    """About a docstring or a function of the standard library."""
    if chance.random() < 0.6:
        return Ask("summary", chance.choice(TEXT_TASKS[:3]).format(chance.choice(library.passages())))
    return Ask("code", chance.choice(CODE_TASKS).format(chance.choice(library.functions())))


@cache
def _openings() -> dict[str, Any]:
    text = files("slipstream.train").joinpath("data/openings.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _held_out() -> list[BenchPrompt]:
    text = files("slipstream.train").joinpath("data/held_out.jsonl").read_text(encoding="utf-8")
    items = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [BenchPrompt(item["id"], item["kind"], ({"role": "user", "content": item["prompt"]},)) for item in items]


def plain_text(text: str) -> str:
    """What a prompt is compared by: letters and digits alone."""
    return re.sub(r"[\W_]+", " ", text.lower()).strip()
