"""What `slipstream layers` found, as lines for people."""

from collections.abc import Sequence

from slipstream.measure.layer_search import Finding
from slipstream.measure.layers import LayerReport
from slipstream.models.layer_sets import spelled

HEADS = (
    "",
    "layers that draft",
    "of all",
    "a step costs",
    "right at 0",
    "right at 1",
    "drafts",
    "predicted",
    "checked",
)
NOTHING = "-"


def lines(report: LayerReport) -> list[str]:
    """All of it."""
    rows = [_row(name, one, report.count) for name, one in _named(report)]
    return [
        f"{report.target}: {report.count} layers, {report.evaluated} subsets looked at{_before(report)}.",
        *([""] if rows else []),
        *(_table([HEADS, *rows]) if rows else []),
        "",
        _verdict(report),
    ]


def _named(report: LayerReport) -> list[tuple[str, Finding]]:
    found = [("found" if number == 0 else f"also {number}", one) for number, one in enumerate(report.subsets)]
    return [*found, *([("default", report.default)] if report.default is not None else [])]


def _row(name: str, one: Finding, count: int) -> tuple[str, ...]:
    rates = [NOTHING if (rate := one.rates.get(temperature)) is None else f"{rate:.0%}" for temperature in (0.0, 1.0)]
    return (
        name,
        spelled(one.layers),
        f"{len(one.layers)}/{count}",
        f"{one.cost:.2f}",
        *rates,
        " ".join(str(length) for _, length in sorted(one.lengths.items())),
        f"{one.speedup:.2f}x",
        NOTHING if one.checked is None else f"{one.checked:.2f}x",
    )


def _before(report: LayerReport) -> str:
    return f", {report.resumed} of them by an earlier search" if report.resumed else ""


def _verdict(report: LayerReport) -> str:
    if not report.subsets:
        more = "run it again to search on" if report.partial else "give a larger --budget"
        return f"Nothing was looked at yet; {more}."
    best = report.subsets[0]
    ratio = best.speedup if best.checked is None else min(best.speedup, best.checked)
    rest = "There is nothing better near by." if report.complete else "Run it again to search on."
    if round(ratio, 2) <= 1.0:
        said = f"Layers do not pay for this model here: no gain is predicted ({ratio:.2f}x)"
        works = "--draft layers works with the best that was found, and --speculation auto leaves it off"
        return f"{said}; {works}. {rest}"
    return f"--draft layers uses what was found; {ratio:.2f}x is predicted. {rest}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
