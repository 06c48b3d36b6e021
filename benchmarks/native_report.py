"""What the records of `native.py` say: ratios, time over the roofline, and the targets.

`report` makes all of it; nothing here measures.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from benchmarks.records import Record, Target, describe, markdown, target_table
from benchmarks.rig import GEMMA, SMALL

WIDE = "wide Q4_0"
RANDOM = "random Q4_0"
FILES = (SMALL, WIDE, "wide Q8_0", "wide F16", "wide Q4_K_M", "wide Q6_K", "wide Q2_K", GEMMA)
SHORT, LONG = 128, 4096
PROMPT = 512
OURS, THEIRS = "native", "llama.cpp"
FORCED = ("avx2", "avx2vnni")
"""Instruction sets that are measured for processors that have no better one."""
OURS_AVX2, OURS_AVX2VNNI = (f"native {name}" for name in FORCED)
THIN_FILES = ("thin 576", "thin 2048")
"""Widths of SmolLM2-135M and of the wide model."""


class Work(NamedTuple):
    """A forward of `rows` rows after `context` tokens."""

    rows: int
    context: int = SHORT

    @property
    def repeats(self) -> int:
        """Forwards in one turn; long ones need fewer."""
        return 1 if self.rows == PROMPT else 3 if self.rows > 8 else 5

    def __str__(self) -> str:
        if self.rows == PROMPT:
            return f"prefill of {PROMPT}"
        rows = f"{self.rows} row{'s' * (self.rows > 1)}"
        return rows if self.context == SHORT else f"{rows} after {self.context:,} tokens"


ONE, FOUR, EIGHT, SIXTEEN = Work(1), Work(4), Work(8), Work(16)
WHOLE_PROMPT = Work(PROMPT, 0)
DECODING = [Work(rows) for rows in (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)]


class Results:
    """Figures out of the records; None for what was not measured."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self._seconds: dict[tuple[Any, ...], list[float]] = defaultdict(list)
        for record in self.of("forward"):
            key = (record["part"], record["file"], record["worker"], record["rows"], record["context"], record["busy"])
            self._seconds[key] += record["seconds"]

    def of(self, kind: str, **values: Any) -> list[Record]:
        """Records of a kind that have these values."""
        wanted = {"kind": kind, **values}
        return [record for record in self.records if wanted.items() <= record.items()]

    def all_seconds(self, part: str, file: str, worker: str, work: Work, *, busy: bool = False) -> list[float]:
        return self._seconds.get((part, file, worker, *work, busy), [])

    def seconds(self, part: str, file: str, worker: str, work: Work) -> float | None:
        """Median time of a forward."""
        times = self.all_seconds(part, file, worker, work)
        return median(times) if times else None

    def against(self, part: str, file: str, work: Work, ours: str = OURS) -> float | None:
        """Time of ours over llama.cpp's."""
        return divide(self.seconds(part, file, ours, work), self.seconds(part, file, THEIRS, work))

    def within(self, part: str, file: str, work: Work, base: Work, ours: str = OURS) -> float | None:
        """Time of one kind of forward over another's, both ours."""
        return divide(self.seconds(part, file, ours, work), self.seconds(part, file, ours, base))

    def slowdown(self, file: str) -> float | None:
        """Mean time beside a busy process over the mean without; a mean, because stalls are rare and long."""
        quiet, busy = (self.all_seconds("busy", file, OURS, ONE, busy=busy) for busy in (False, True))
        return divide(mean(busy), mean(quiet)) if quiet and busy else None

    def randomness(self, work: Work) -> float | None:
        """Time with random weights over the time with the wide model's."""
        return divide(self.seconds("random", RANDOM, OURS, work), self.seconds("random", WIDE, OURS, work))

    def overhead(self, file: str) -> float | None:
        """Milliseconds of a thin model's forward without its output and a plain read of its layers' weights.

        Its layers have some work beyond that, so it is a bound.
        """
        runs = self.of("profile", file=file)
        reads = [record["layer_bytes"] / record["read"] / 1e9 for record in runs for _ in record["forwards"]]
        forwards = [forward for record in runs for forward in record["forwards"]]
        beyond = [1e3 * (f["wall"] - f["output"] - read) for f, read in zip(forwards, reads, strict=True)]
        return median(beyond) if beyond else None

    def limits(self, part: str, file: str, worker: str = OURS) -> tuple[float, float] | None:
        """GB/s read and 1e9 multiply-adds a second that the machine reached, of the kind this file needs."""
        measured = self.of("roofline", part=part, file=file, worker=worker)
        unit = "fma" if file.endswith("F16") else "dot"
        return (median(r["read"] for r in measured), median(r[unit] for r in measured)) if measured else None

    def roofline(self, part: str, file: str, work: Work, worker: str = OURS) -> float | None:
        """Seconds that a forward takes at least: reading the weights once or multiplying, whichever is longer.

        None for a prompt too, which leaves the output's product out.
        """
        limits = self.limits(part, file, worker)
        if limits is None or work.rows == PROMPT:
            return None
        sizes = self.of("roofline", part=part, file=file)[0]
        return float(max(sizes["bytes"] / limits[0], sizes["operations"] * work.rows / limits[1])) / 1e9

    def furthest_from_roofline(self, file: str) -> float | None:
        """The largest time over the roofline among the row counts."""
        over = [divide(self.seconds("rows", file, OURS, work), self.roofline("rows", file, work)) for work in DECODING]
        return max((times for times in over if times is not None), default=None)


def divide(one: float | None, other: float | None) -> float | None:
    """The quotient, None if a part of it was not measured."""
    return one / other if one is not None and other else None


# --- targets -------------------------------------------------------------------------------------------------------


def against(
    file: str, work: Work, limit: float, part: str = "rows", ours: str = OURS, note: str = ""
) -> Target[Results]:
    """At most this share of llama.cpp's time."""
    text = f"{file}, {work}: {ours} / llama.cpp{note}"
    return Target(text, "<=", limit, lambda results: results.against(part, file, work, ours))


def within(file: str, work: Work, base: Work, limit: float, part: str = "rows", ours: str = OURS) -> Target[Results]:
    """At most this multiple of another forward of ours."""
    text = f"{file}, {ours}: {work} / {base}"
    return Target(text, "<=", limit, lambda results: results.within(part, file, work, base, ours))


def busy(file: str) -> Target[Results]:
    """No barrier stalls."""
    text = f"{file}, 1 row with another busy process / without"
    return Target(text, "<=", 2.2, lambda results: results.slowdown(file))


def same_time(work: Work) -> Target[Results]:
    """The same within what two measurements of one model differ by."""
    return Target(f"{work}: random weights / wide model", "<=", 1.05, lambda results: results.randomness(work))


def near_roofline(file: str) -> Target[Results]:
    """A goal for every row count."""
    text = f"{file}, 1 to 32 rows: largest time / roofline (a goal)"
    return Target(text, "<=", 1.3, lambda results: results.furthest_from_roofline(file))


def overhead(file: str) -> Target[Results]:
    """A model of 30 layers of this width."""
    text = f"{file}, 1 row: ms beyond matrix products and attention, at most"
    return Target(text, "<=", 0.4, lambda results: results.overhead(file))


TARGETS = [
    against(WIDE, ONE, 0.78),
    against(WIDE, FOUR, 0.46),
    against(WIDE, EIGHT, 0.37),
    against(WIDE, SIXTEEN, 0.42),
    against(WIDE, WHOLE_PROMPT, 0.55, note=" (goal 0.45)"),
    within(WIDE, FOUR, ONE, 1.25),
    within(WIDE, EIGHT, ONE, 1.6),
    against("wide Q8_0", ONE, 0.85),
    against("wide Q8_0", EIGHT, 0.25),
    against("wide F16", ONE, 1.05),
    against("wide F16", EIGHT, 0.55),
    against("wide Q4_K_M", ONE, 0.85),
    against("wide Q4_K_M", FOUR, 0.45),
    against("wide Q4_K_M", EIGHT, 0.40),
    against("wide Q6_K", ONE, 0.9),
    against("wide Q6_K", EIGHT, 0.40),
    against("wide Q2_K", EIGHT, 0.5),
    against(SMALL, ONE, 0.50),
    against(SMALL, EIGHT, 0.22),
    against(GEMMA, ONE, 0.66),
    within(WIDE, Work(1, LONG), ONE, 1.5, "context"),
    within(WIDE, Work(8, LONG), Work(1, LONG), 2.4, "context"),
    within(SMALL, Work(1, LONG), ONE, 1.5, "context"),
    within(SMALL, Work(8, LONG), Work(1, LONG), 2.4, "context"),
    within(WIDE, EIGHT, ONE, 3.5, "avx2", OURS_AVX2),
    against(WIDE, FOUR, 1.0, "avx2", OURS_AVX2),
    against(WIDE, EIGHT, 1.0, "avx2", OURS_AVX2),
    within(WIDE, EIGHT, ONE, 2.4, "avx2vnni", OURS_AVX2VNNI),
    busy(WIDE),
    busy(SMALL),
    same_time(ONE),
    same_time(EIGHT),
    *map(overhead, THIN_FILES),
    *map(near_roofline, FILES),
]


# --- tables --------------------------------------------------------------------------------------------------------


def report(records: Sequence[Record]) -> list[str]:
    """All tables, Markdown lines."""
    results = Results(records)
    lines = [describe(record) for record in results.of("machine")]
    lines += ["", "## Loaded", "", *loading_table(results)]
    for part, ours in (("rows", OURS), ("avx2", OURS_AVX2), ("avx2vnni", OURS_AVX2VNNI)):
        for file in dict.fromkeys(record["file"] for record in results.of("roofline", part=part)):
            lines += ["", f"## {file}, {ours} against llama.cpp", "", *rows_table(results, part, file, ours)]
    if results.of("forward", part="context"):
        lines += ["", "## After few and many tokens", "", *context_table(results)]
    if results.of("profile"):
        lines += ["", "## Stages of a forward of one row", "", *profile_table(results)]
    return [*lines, "", "## Targets", "", *target_table(TARGETS, results)]


def loading_table(results: Results) -> list[str]:
    """What loading took, how much of it lies in huge pages, and how well the waiting runtimes slept."""
    heads = ("part", "file", "runtime", "seconds to load", "MB", "of them in huge pages", "instruction set")
    return markdown(heads, [_loading(record) for record in results.of("load")]) + [
        f"\n{record['part']}, {record['file']}: those that waited took {record['share']:.2%} of a processor."
        for record in results.of("idle")
    ]


def _loading(record: Record) -> tuple[str, ...]:
    huge = min(1.0, record["huge"] / record["memory"])
    figures = f"{record['seconds']:.1f}", f"{record['memory'] / 1e6:.0f}", f"{huge:.0%}"
    return record["part"], record["file"], record["worker"], *figures, record.get("instruction_set", "")


def rows_table(results: Results, part: str, file: str, ours: str) -> list[str]:
    """By row count: both times, their ratio, the cost relative to one row, and the roofline."""
    read, multiply = results.limits(part, file, ours) or (0.0, 0.0)
    limits = f"Plain read {read:.1f} GB/s, {multiply:.0f}e9 multiply-adds a second."
    heads = (
        "forward",
        f"{ours}, ms",
        "llama.cpp, ms",
        "ratio",
        "/ 1 row",
        "llama.cpp / 1 row",
        "roofline, ms",
        "over it",
    )
    measured = [work for work in (*DECODING, WHOLE_PROMPT) if results.seconds(part, file, ours, work) is not None]
    return [limits, "", *markdown(heads, [_row(results, part, file, ours, work) for work in measured])]


def _row(results: Results, part: str, file: str, ours: str, work: Work) -> tuple[str, ...]:
    mine, other = (results.seconds(part, file, worker, work) for worker in (ours, THEIRS))
    limit = results.roofline(part, file, work, ours)
    relative = [
        divide(results.seconds(part, file, worker, work), results.seconds(part, file, worker, ONE))
        for worker in (ours, THEIRS)
    ]
    return (
        str(work),
        milliseconds(mine),
        milliseconds(other),
        number(divide(mine, other)),
        *map(number, relative),
        milliseconds(limit),
        number(divide(mine, limit)),
    )


def context_table(results: Results) -> list[str]:
    """Times after few and many tokens."""
    heads = ("file", "runtime", "1 row, ms", "8 rows, ms", f"1 row after {LONG:,}", f"8 rows after {LONG:,}")
    works = ONE, EIGHT, Work(1, LONG), Work(8, LONG)
    files = dict.fromkeys(record["file"] for record in results.of("forward", part="context"))
    return markdown(
        heads,
        [
            (file, worker, *(milliseconds(results.seconds("context", file, worker, work)) for work in works))
            for file in files
            for worker in (OURS, THEIRS)
        ],
    )


def profile_table(results: Results) -> list[str]:
    """Median time of each stage."""
    rows = [row for record in results.of("profile") for row in _stages(record)]
    return markdown(("file", "stage", "ms"), rows)


def _stages(record: Record) -> Iterator[tuple[str, ...]]:
    for stage in record["forwards"][0] if record["forwards"] else ():
        times = [forward[stage] for forward in record["forwards"]]
        yield record["file"], stage, f"{1e3 * median(times):.3f}"


def milliseconds(seconds: float | None) -> str:
    """A table cell, empty for what was not measured."""
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def number(value: float | None) -> str:
    """A table cell, empty for what was not measured."""
    return "" if value is None else f"{value:.2f}"
