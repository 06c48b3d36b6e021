"""What is compared: a drafter, and how far it may go. `off` is plain decoding, what ratios are against."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slipstream.core.params import check_whole
from slipstream.errors import UsageError

PLAIN = "off"
KEYS = ("speculation", "n", "name")
FORM = "off, or a drafter as in --draft with ,n=4 or ,speculation=auto|on or ,name=LABEL behind it"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to decode.

    draft:            what `Engine.load` takes: "none", "suffix", a model, several with plus signs between them
    speculation:      "auto" (measured costs decide), "on" (a fixed length) or "off"
    num_draft_tokens: the fixed length, or the most that "auto" drafts; None leaves it to the engine
    """

    name: str
    draft: str = "none"
    speculation: Literal["auto", "on", "off"] = "off"
    num_draft_tokens: int | None = None

    @property
    def is_plain(self) -> bool:
        return self.speculation == "off"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "draft": self.draft,
            "speculation": self.speculation,
            "num_draft_tokens": self.num_draft_tokens,
        }


OFF = Configuration(PLAIN)


def parse_configuration(spec: str) -> Configuration:
    """`off`, `suffix`, `model:draft.gguf,n=4`, `suffix+model:draft.gguf,speculation=on,name=both`.

    `n=` is a fixed length, unless `speculation=auto` makes it the most that is drafted. `model:` may be left out.
    Raises UsageError.
    """
    draft, options = _split(spec)
    draft = re.sub(r"(^|\+)model:", r"\1", draft.strip())
    if not draft:
        raise UsageError(f"A configuration must be {FORM}; {spec!r} names no drafter.")
    if draft in ("off", "none"):
        if options:
            raise UsageError(f"The configuration {spec!r} drafts nothing, so nothing can follow; write off.")
        return OFF
    _check_spelling(draft, spec)
    length = _length(options["n"]) if "n" in options else None
    speculation = _speculation(options.get("speculation", "auto" if length is None else "on"))
    return Configuration(options.get("name", _short(spec)), draft, speculation, length)


def parse_configurations(specs: Iterable[str]) -> list[Configuration]:
    """All of them, plain decoding first whether or not it is named. Raises UsageError for a name that comes twice."""
    configurations = [OFF, *(one for one in map(parse_configuration, specs) if not one.is_plain)]
    names = [one.name for one in configurations]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"Two configurations are called {name!r}; tell them apart with ,name=LABEL.")
    return configurations


def _split(spec: str) -> tuple[str, dict[str, str]]:
    """The drafter and the options behind it. A path may have commas in it, but no `,word=`."""
    draft, *parts = re.split(r",(?=\s*\w+=)", spec)
    options: dict[str, str] = {}
    for part in parts:
        key, _, value = part.strip().partition("=")
        if key not in KEYS:
            nearest = difflib.get_close_matches(key, KEYS, 1, 0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(KEYS)}."
            raise UsageError(f"The configuration {spec!r} has an unknown option {key}; {hint}")
        if not value.strip():
            raise UsageError(f"The configuration {spec!r} has nothing after {key}=.")
        if key in options:
            raise UsageError(f"The configuration {spec!r} has {key}= twice; leave one of them out.")
        options[key] = value.strip()
    return draft, options


def _short(spec: str) -> str:
    """The specification without the directories of its files."""
    return re.sub(r"[^+:,]*/", "", spec.strip())


def _check_spelling(draft: str, spec: str) -> None:
    """Refuse slips of the pen; whether there is such a model is seen when it is loaded."""
    for part in [] if Path(draft).exists() else draft.split("+"):
        if part in ("off", "none"):
            raise UsageError(f"The configuration {spec!r} combines {part} with a drafter; leave one of them out.")
        meant = difflib.get_close_matches(part, ("off", "none", "suffix"), 1, 0.7)
        if meant and part != "suffix":
            raise UsageError(f"The configuration {spec!r} names no drafter {part}; did you mean {meant[0]}?")


def _length(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError(f"n must be a whole number from 1 to 64, not {text!r}.")
    check_whole("n", int(text), 1, 64)
    return int(text)


def _speculation(text: str) -> Literal["auto", "on"]:
    if text == "auto":
        return "auto"
    if text == "on":
        return "on"
    raise UsageError(
        f"A configuration has speculation=auto or speculation=on, not {text!r}; plain decoding is off alone."
    )
