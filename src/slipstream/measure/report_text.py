"""The report as text: a table for terminals, and Markdown."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from slipstream.measure.ratios import Ratio
from slipstream.measure.records import Bench
from slipstream.measure.summary import Cell, Summary, summarise

HEADS = ("kind", "configuration", "tok/s", "speed-up", "95 % interval", "accepted", "tokens/round")
NOTHING = "-"
NEUTRAL = {
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
}
"""Sampling parameters that do nothing are not worth mentioning."""


def describe(header: dict[str, Any]) -> list[str]:
    """What was measured, as sentences."""
    target, machine = header.get("target", {}), header.get("machine", {})
    lines = []
    if target:
        exact = "rows bit-exact" if target.get("bit_exact") else "rows not bit-exact"
        computes = ", ".join(
            str(part) for part in (target.get("runtime"), target.get("instruction_set"), exact) if part
        )
        lines.append(f"Target: {target.get('name')} ({computes}).")
    if machine:
        lines.append(f"Machine: {machine.get('cpu')}, {machine.get('threads')} threads.")
    sampling = header.get("sampling", {})
    parts = [f"{name.replace('_', '-')} {value:g}" for name, value in sampling.items() if value != NEUTRAL.get(name)]
    parts += [f"seed {header['seed']}"] if "seed" in header else []
    parts += [f"at most {header['max_tokens']} tokens an answer"] if "max_tokens" in header else []
    parts += [f"{header['repeats']} repeats"] if "repeats" in header else []
    if parts:
        lines.append(f"Sampling: {', '.join(parts)}.")
    made = [f"slipstream {header['slipstream']}" if "slipstream" in header else "", str(header.get("created", ""))]
    return [*lines, f"Made with {', '.join(part for part in made if part)}."] if any(made) else lines


def cells(cell: Cell) -> tuple[str, str, str, str, str]:
    """tok/s, speed-up, interval, accepted, tokens a round."""
    speed = NOTHING if cell.tokens_per_second is None else f"{cell.tokens_per_second:.1f}"
    value = NOTHING if cell.ratio is None else f"{cell.ratio.value:.2f}x"
    accepted = NOTHING if cell.acceptance is None else f"{cell.acceptance:.0%}"
    length = NOTHING if cell.tokens_per_round is None else f"{cell.tokens_per_round:.2f}"
    return speed, value, interval(cell.ratio), accepted, length


def interval(ratio: Ratio | None) -> str:
    """The interval of a speed-up; a single pair has none."""
    return NOTHING if ratio is None or ratio.pairs < 2 else f"{ratio.low:.2f} to {ratio.high:.2f}"


def table(summary: Summary, columns: int | None = None) -> list[str]:
    """Lines of equal columns; long names of configurations are cut where `columns` are too few."""
    rows = [HEADS, *_rows(summary)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADS))]
    excess = 0 if columns is None else sum(widths) + 2 * (len(HEADS) - 1) - columns
    widths[1] = max(widths[1] - max(excess, 0), min(widths[1], 12))
    return [_line(row, widths) for row in rows]


def listing(summary: Summary, columns: int) -> list[str]:
    """The same for terminals that are too narrow for a table: a block of lines for each configuration."""
    lines = []
    for row in summary.rows:
        lines.append(row.kind)
        for name in summary.configurations:
            speed, value, span, accepted, length = cells(row.cells[name])
            lines.append(f"  {shorten(name, columns - 2)}")
            parts = (f"{speed} tok/s", f"{value} ({span})", f"{accepted} accepted", f"{length} tokens/round")
            known = [part for part in parts if not part.startswith(NOTHING)]
            lines += wrap(", ".join(known), columns, initial_indent="    ", subsequent_indent="    ")
    return lines


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Texts to the left, numbers to the right."""
    texts = [shorten(text, width) for text, width in zip(row, widths, strict=True)]
    padded = [
        text.ljust(width) if place < 2 else text.rjust(width)
        for place, (text, width) in enumerate(zip(texts, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def shorten(text: str, width: int) -> str:
    """The text with its middle left out if it is longer."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _rows(summary: Summary) -> list[tuple[str, ...]]:
    """The kind stands in front of its first configuration alone."""
    rows: list[tuple[str, ...]] = []
    for row in summary.rows:
        for place, name in enumerate(summary.configurations):
            rows.append((row.kind if place == 0 else "", name, *cells(row.cells[name])))
    return rows


def markdown(benches: Sequence[Bench]) -> str:
    """One section for each run."""
    sections = ["# Benchmark\n"]
    for bench in benches:
        summary = summarise(bench)
        title = bench.header.get("target", {}).get("name", "Run")
        rows = [HEADS, ("---", "---", *["---:"] * (len(HEADS) - 2)), *_rows(summary)]
        lines = [f"| {' | '.join(map(_escape, row))} |" for row in rows]
        remarks = [f"- {remark.level}: {_escape(remark.sentence)}" for remark in summary.remarks]
        parts = [
            f"## {_escape(title)}",
            "\n".join(map(_escape, describe(bench.header))),
            "\n".join(lines),
            "\n".join(remarks),
        ]
        sections.append("\n\n".join(part for part in parts if part) + "\n")
    return "\n".join(sections)


def _escape(text: str) -> str:
    """As Markdown shows it: names may have bars, stars and brackets in them."""
    for character in "\\|*_`[]<>":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
