"""Recordings of rounds: what a drafter proposes at every position of texts that a target wrote.

The text does not depend on drafts, so one recording tells what any policy would have seen. `record_rounds` makes them,
`simulation` plays them.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("recordings")
UNKNOWN = -1
"""Stands for a token that was not kept, because the text had left the main chain above it."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a draft: candidate tokens, the main chain's first, and the classes the drafter sorts them into."""

    tokens: list[int]
    buckets: list[int]


@dataclass(frozen=True, slots=True)
class Recording:
    """One answer, and at each of its positions the draft that a drafter proposes there.

    drafts: [len(tokens)] drafts of some levels; `drafts[t]` goes on from the first `t` tokens of the answer
    """

    kind: str
    temperature: float
    prompt: list[int]
    tokens: list[int]
    drafts: list[list[Level]]


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs: seconds of a forward by number of rows, and of a step of the draft model."""

    name: str
    target: dict[int, float]
    draft: dict[int, float]


def write(path: Path, recordings: list[Recording]) -> None:
    """Write recordings, one JSON line each, compressed and reproducible byte for byte."""
    lines = "".join(json.dumps(_packed(recording), separators=(",", ":")) + "\n" for recording in recordings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def read(path: Path) -> Iterator[Recording]:
    """What `write` wrote."""
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        value = json.loads(line)
        drafts = [[Level(*level) for level in draft] for draft in value.pop("drafts")]
        yield Recording(drafts=drafts, **value)


def _packed(recording: Recording) -> dict[str, object]:
    value = asdict(recording)
    value["drafts"] = [[[level.tokens, level.buckets] for level in draft] for draft in recording.drafts]
    return value


def write_costs(path: Path, costs: list[Costs]) -> None:
    """Write cost curves as readable JSON."""
    path.write_text(json.dumps([asdict(one) for one in costs], indent=1) + "\n", encoding="utf-8")


def read_costs(path: Path = FOLDER / "costs.json") -> list[Costs]:
    """The cost curves of this machine's rigs, as they were measured."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return [Costs(one["name"], _numbered(one["target"]), _numbered(one["draft"])) for one in values]


def _numbered(curve: dict[str, float]) -> dict[int, float]:
    return {int(rows): seconds for rows, seconds in curve.items()}
