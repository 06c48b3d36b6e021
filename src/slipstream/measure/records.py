"""The file that a benchmark writes, one JSON object a line: a header, then answers and failures (docs/bench.md).

Each line is flushed as it is written, so whatever ends a run, what was measured stays. The reader takes a last
line that is cut short for what it is.
"""

import errno
import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.core.stats import RoundRecord
from slipstream.errors import StorageError, UsageError

FORMAT = "slipstream-bench"
VERSION = 1
LARGEST, SHORTEST, MOST_DRAFTED = 1e12, 1e-9, 10_000
"""No count and no time in a file is as large, no answer takes fewer seconds, and no draft is longer."""


class Round(NamedTuple):
    """One round of an answer; a list in the file, whose header names the fields.

    context:  tokens committed before the round
    drafted:  draft nodes that were verified; the forward had one row more
    steps:    draft steps that were made
    The last four are seconds by phase, whole microseconds in the file.
    """

    context: int
    drafted: int
    tested: int
    accepted: int
    committed: int
    steps: int
    drafter: str
    draft: float
    verify: float
    sample: float
    other: float

    @classmethod
    def of(cls, record: RoundRecord) -> "Round":
        counts = record.drafted, record.tested, record.accepted, record.committed
        seconds = (record.seconds[phase] for phase in ("draft", "verify", "sample", "other"))
        return cls(record.context, *counts, record.steps, record.drafter, *seconds)

    @property
    def seconds(self) -> float:
        return self.draft + self.verify + self.sample + self.other

    def as_list(self) -> list[Any]:
        return [*self[:7], *(round(value * 1e6) for value in self[7:])]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> "Round":
        context, drafted, tested, accepted, committed, steps, drafter, *times = values
        draft, verify, sample, other = (time / 1e6 for time in times)
        counts = int(context), int(drafted), int(tested), int(accepted), int(committed), int(steps)
        return cls(*counts, str(drafter), draft, verify, sample, other)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one configuration. Who answered what is filled in by the runner.

    tokens, seconds:   what was decoded, and in how long; reading the prompt is `prompt_seconds`
    ids_hash:          of the token ids; "" where a server does not tell them
    looping:           share of repeated 4-grams
    drafted, accepted: draft tokens; None where a server does not tell
    order:             its place among the configurations' answers to this prompt, 0 is first
    """

    tokens: int
    seconds: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    finish_reason: str = ""
    ids_hash: str = ""
    text_hash: str = ""
    looping: float = 0.0
    drafted: int | None = None
    accepted: int | None = None
    rounds: list[Round] = field(default_factory=list)
    configuration: str = ""
    prompt: str = ""
    kind: str = ""
    repeat: int = 0
    order: int = 0
    seed: int = 0

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.tokens

    def as_dict(self) -> dict[str, Any]:
        return {"answer": asdict(self) | {"rounds": [one.as_list() for one in self.rounds]}}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there are no answers: of a configuration, of a prompt, or of one to the other; None is all of them."""

    sentence: str
    configuration: str | None = None
    prompt: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"failure": asdict(self)}


Record = Answer | Failure


@dataclass(frozen=True, slots=True)
class Bench:
    """A file, read.

    header:   the first line's object
    notes:    sentences about what could not be read
    complete: the run came to its end
    """

    header: dict[str, Any]
    answers: list[Answer]
    failures: list[Failure]
    notes: list[str] = field(default_factory=list)
    complete: bool = True

    @property
    def configurations(self) -> list[str]:
        """Names in the order of the command line, those alone that answered anything."""
        answered = {answer.configuration for answer in self.answers}
        named = [one.get("name", "") for one in self.header.get("configurations", [])]
        return [name for name in dict.fromkeys([*named, *sorted(answered)]) if name in answered]

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(answer.kind for answer in sorted(self.answers, key=self._place)))

    def _place(self, answer: Answer) -> int:
        order = list(self.header.get("kinds", []))
        return order.index(answer.kind) if answer.kind in order else len(order)


class Writer:
    """Writes records to a file: `begin`, then `add`, then `end`; a context manager.

    Raises StorageError for what cannot be written, the place itself included, before anything is measured. What
    was written before a disk was full is whole lines: a part of one is taken back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_new = not path.exists()
        self._file = self._opened()
        if self._is_new:  # whatever ends the program while models load, no empty file is left
            self._file.close()
            path.unlink(missing_ok=True)

    def _opened(self) -> FileIO:
        try:
            return self._path.open("ab", buffering=0)
        except OSError as error:
            raise StorageError(
                f"{self._path} cannot be written: {error.strerror}; choose another place with --out."
            ) from error

    def begin(self, header: dict[str, Any]) -> None:
        """The first line: what is measured, where and how. Now, not earlier, the place of an older file is taken."""
        if self._is_new:
            self._file = self._opened()
        with suppress(OSError):  # a device
            self._file.truncate(0)
        self._write({"format": FORMAT, "version": VERSION, "round_fields": list(Round._fields), **header})

    def end(self, *, stopped: bool) -> None:
        """The last line of a run that was not broken off. `stopped`: the user ended it early."""
        self._write({"end": {"stopped": stopped}})

    def add(self, record: Record) -> None:
        self._write(record.as_dict())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, value: dict[str, Any]) -> None:
        # names of files need not be UTF-8; what such a name has instead of characters is escaped
        line = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        whole = self._file.seek(0, os.SEEK_END) if self._file.seekable() else None
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            if whole is not None:
                self._take_back(whole)
            raise StorageError(self._sentence(error)) from error

    def _take_back(self, length: int) -> None:
        with suppress(OSError):  # a device; the reader copes with half a line
            self._file.truncate(length)

    def _sentence(self, error: OSError) -> str:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else error.strerror or str(error)
        return f"{self._path} cannot be written any more: {reason}; what it holds can be read with slipstream report."


def read_bench(path: Path) -> Bench:
    """A file that `slipstream bench` wrote. A last line that was cut short is left out, and said in `notes`.

    Raises UsageError for files of another kind and for damage, with the number of the line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    header = _object(lines[0])
    if header is None or header.get("format") != FORMAT:
        raise UsageError(f"{path} is not a file that slipstream bench --out wrote.")
    if header.get("version") != VERSION:
        raise UsageError(
            f"{path} has version {header.get('version')!r} of the format and this program reads {VERSION}."
        )
    if not _is_header(header):
        raise UsageError(f"Line 1 of {path} is damaged, which says what was measured; measure again.")
    answers: list[Answer] = []
    failures: list[Failure] = []
    notes: list[str] = []
    complete = False
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        record = _record(line)
        if isinstance(record, Answer):
            answers.append(record)
        elif isinstance(record, Failure):
            failures.append(record)
        elif isinstance(record, dict):
            complete = record.get("stopped") is False
        elif number < len(lines):
            raise UsageError(f"Line {number} of {path} is damaged; take it out to read the others.")
        else:
            notes.append(f"The last line of {path} was cut short and is left out.")
    return Bench(header, answers, failures, notes, complete)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _record(line: bytes) -> Record | dict[str, Any] | None:
    """What a line holds, the end's object for the last one; None if it is damaged."""
    value = _object(line) or {}
    try:
        if "answer" in value:
            fields = dict(value["answer"])
            rounds = [Round.from_list(one) for one in fields.pop("rounds", [])]
            return _checked(Answer(**fields, rounds=rounds))
        if "failure" in value:
            return _checked_failure(Failure(**value["failure"]))
        return dict(value["end"]) if "end" in value else None
    except (TypeError, ValueError, OverflowError):
        return None


def _is_header(header: dict[str, Any]) -> bool:
    """Whether what reports read of a header has the types that they expect."""
    objects = [header.get(name, {}) for name in ("target", "machine", "sampling", "costs")]
    if not all(isinstance(one, dict) for one in objects):
        return False
    *_, sampling, costs = objects
    configurations, kinds = header.get("configurations", []), header.get("kinds", [])
    return (
        all(map(_is_number, sampling.values()))
        and all(rows.isdecimal() and _is_number(seconds) for rows, seconds in costs.items())
        and isinstance(configurations, list)
        and all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in configurations)
        and isinstance(kinds, list)
        and all(isinstance(kind, str) for kind in kinds)
    )


def _is_number(value: object, least: float = -math.inf) -> bool:
    """Whether it is finite, not less than `least`, and no larger than anything that is counted or timed."""
    return isinstance(value, int | float) and abs(value) < LARGEST and value >= least


def _checked(answer: Answer) -> Answer:
    """The same answer. Raises ValueError for values that no run can have written."""
    texts = answer.configuration, answer.prompt, answer.kind, answer.ids_hash, answer.text_hash
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("names are text")
    if not (_is_number(answer.tokens, 1) and _is_number(answer.seconds) and answer.seconds >= SHORTEST):
        raise ValueError("an answer has tokens that took time")
    counts = answer.repeat, answer.prompt_seconds, answer.looping, answer.drafted or 0, answer.accepted or 0
    numbers = [*counts, *(value for one in answer.rounds for value in (*one[:6], *one[7:]))]
    if not all(_is_number(number, 0) for number in numbers):
        raise ValueError("counts and times are numbers from 0")
    if not all(one.accepted <= one.tested <= MOST_DRAFTED for one in answer.rounds):
        raise ValueError("what was accepted was tested")
    return answer


def _checked_failure(failure: Failure) -> Failure:
    """The same failure. Raises ValueError unless all of it is text."""
    if not isinstance(failure.sentence, str):
        raise ValueError("a sentence is text")
    if not all(isinstance(name, str | None) for name in (failure.configuration, failure.prompt)):
        raise ValueError("names are text")
    return failure


def hash_ids(tokens: Sequence[int]) -> str:
    """Equal for equal token ids."""
    return hash_text(" ".join(map(str, tokens)))


def hash_text(text: str) -> str:
    """16 hexadecimal digits; equal for equal texts."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
