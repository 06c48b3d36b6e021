"""What a benchmark found, as numbers: for each kind of prompt and each configuration, and remarks on them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from slipstream.measure.configurations import PLAIN
from slipstream.measure.looping import LOOPING
from slipstream.measure.ratios import Ratio, differing, is_looping, paired, speed_up, tokens_per_second
from slipstream.measure.records import Answer, Bench

ALL = "all"
"""The row over all kinds."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration on prompts of one kind; None where nothing was measured.

    acceptance:       accepted / tested draft tokens; accepted / drafted for servers, which tell no more
    tokens_per_round: the recovered or bonus token included
    """

    tokens_per_second: float | None
    ratio: Ratio | None
    acceptance: float | None
    tokens_per_round: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """All configurations on prompts of one kind."""

    kind: str
    prompts: int
    cells: dict[str, Cell]


class Remark(NamedTuple):
    """A sentence about a run. An error is one that makes its numbers worth nothing."""

    level: Literal["error", "warning", "note"]
    sentence: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that reports show of a run besides plots."""

    configurations: list[str]
    rows: list[Row]
    remarks: list[Remark]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"remarks": [remark._asdict() for remark in self.remarks]}


def summarise(bench: Bench) -> Summary:
    """The rows of all kinds, then one over all if there are several."""
    names = bench.configurations
    rows = [_row(kind, [one for one in bench.answers if one.kind == kind], names) for kind in bench.kinds]
    if len(rows) > 1:
        rows.append(_row(ALL if ALL not in bench.kinds else f"{ALL} kinds", bench.answers, names))
    return Summary(names, rows, remarks(bench))


def _row(kind: str, answers: Sequence[Answer], names: Iterable[str]) -> Row:
    return Row(kind, len({answer.prompt for answer in answers}), {name: _cell(answers, name) for name in names})


def _cell(answers: Sequence[Answer], name: str) -> Cell:
    own = [answer for answer in answers if answer.configuration == name and not is_looping(answer)]
    ratio = None if name == PLAIN else speed_up(paired(answers, name))
    return Cell(tokens_per_second(own), ratio, acceptance(own), tokens_per_round(own))


def acceptance(answers: Iterable[Answer]) -> float | None:
    """Accepted / tested draft tokens; accepted / drafted where there are no rounds. None if nothing was drafted."""
    accepted = tested = 0
    for answer in answers:
        if answer.rounds:
            tested += sum(one.tested for one in answer.rounds)
            accepted += sum(one.accepted for one in answer.rounds)
        elif answer.drafted and answer.accepted is not None:
            tested += answer.drafted
            accepted += answer.accepted
    return accepted / tested if tested else None


def tokens_per_round(answers: Iterable[Answer]) -> float | None:
    """Committed tokens a round; None where no rounds were seen."""
    rounds = [one for answer in answers for one in answer.rounds]
    return sum(one.committed for one in rounds) / len(rounds) if rounds else None


def remarks(bench: Bench) -> list[Remark]:
    """What a reader of the numbers must know, the worst first."""
    found = [*_failures(bench), *_differences(bench), *_loops(bench), *_gaps(bench)]
    return sorted(found, key=lambda remark: ("error", "warning", "note").index(remark.level))


def _failures(bench: Bench) -> Iterable[Remark]:
    for failure in bench.failures:
        who = [failure.configuration, failure.prompt and f"prompt {failure.prompt}"]
        prefix = ", ".join(part for part in who if part)
        yield Remark("warning", f"{prefix}: {failure.sentence}" if prefix else failure.sentence)


def _differences(bench: Bench) -> Iterable[Remark]:
    """The same seed must give the same ids where rows are bit-exact; elsewhere near-ties may fall otherwise."""
    others = differing(bench.answers)
    exact = bool(bench.header.get("target", {}).get("bit_exact"))
    for name in dict.fromkeys(answer.configuration for answer in others):
        own = [answer for answer in others if answer.configuration == name]
        of = sum(answer.configuration == name for answer in bench.answers)
        said = f"{len(own)} of {of} answers of {name} have other token ids than plain decoding"
        where = f"({_some(answer.prompt for answer in own)})"
        if exact:
            yield Remark("error", f"{said} {where}, which must not happen on this runtime; please report it.")
        else:
            yield Remark("note", f"{said} {where}; slipstream verify tells near-ties from mistakes.")


def _loops(bench: Bench) -> Iterable[Remark]:
    loops = [answer for answer in bench.answers if is_looping(answer)]
    if loops:
        where = _some(answer.prompt for answer in loops)
        yield Remark(
            "note",
            f"{len(loops)} of {len(bench.answers)} answers repeat themselves (over {LOOPING:.0%} of their 4-grams) "
            f"and are left out of all figures ({where}).",
        )


def _gaps(bench: Bench) -> Iterable[Remark]:
    yield from (Remark("warning", note) for note in bench.notes)
    if not bench.complete:
        yield Remark("note", "The run was ended before its end; these are the answers until then.")
    most = max((answer.repeat for answer in bench.answers), default=0) + 1
    prompts = len({answer.prompt for answer in bench.answers})
    if bench.answers and prompts * most < 6:
        yield Remark("note", "So few answers say little: intervals are honest from about six prompts or repeats.")


def _some(names: Iterable[str], most: int = 4) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:most]) + (", ..." if len(unique) > most else "")
