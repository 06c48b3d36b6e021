"""The report as one HTML file that needs nothing else: no network, no script; the plots are inline SVG."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from slipstream.core.stats import PHASES
from slipstream.measure import plots
from slipstream.measure.curves import acceptance_by_position, measured_costs, rounds_of, time_split, verify_times
from slipstream.measure.ratios import Ratio
from slipstream.measure.records import Bench
from slipstream.measure.report_text import cells, describe, interval
from slipstream.measure.summary import Row, Summary, summarise

NUMBERS = ("configuration", "tok/s", "speed-up", "95 % interval", "accepted", "tokens/round")
PHASE_WORDS = {"draft": "drafting", "verify": "target's forward", "sample": "choosing tokens", "other": "the rest"}

ROWS_SHOWN = 16
"""Costs of more rows than this are shown only if rounds had as many: the interesting part is on the left."""


def page(benches: Sequence[Bench]) -> str:
    """The whole document, one section for each run."""
    style = files("slipstream.measure").joinpath("data/report.css").read_text(encoding="utf-8")
    body = "\n".join(_section(bench) for bench in benches)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # An icon that is there: a browser would ask a server for one and complain.
        '<link rel="icon" href="data:,">\n'
        f"<title>Slipstream benchmark</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        "<h1>Slipstream benchmark</h1>\n"
        '<p class="lead">Speed-ups are ratios to plain decoding on the same prompt in the same repeat; '
        "above 1 is faster. Intervals hold with 95 % confidence.</p>\n"
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def _section(bench: Bench) -> str:
    summary = summarise(bench)
    title = escape(str(bench.header.get("target", {}).get("name", "Run")))
    facts = "".join(f"<li>{escape(line)}</li>" for line in describe(bench.header))
    remarks = "".join(
        f'<li class="{remark.level}"><strong>{remark.level.capitalize()}:</strong> {escape(remark.sentence)}</li>'
        for remark in summary.remarks
    )
    figures = "\n".join(figure for figure in _figures(bench, summary) if figure)
    return (
        f'<section>\n<h2>{title}</h2>\n<ul class="facts">{facts}</ul>\n'
        + (f'<ul class="remarks">{remarks}</ul>\n' if remarks else "")
        + f'{_glance(summary)}\n<div class="figures">\n{figures}\n</div>\n{_table(summary)}\n</section>'
    )


def _glance(summary: Summary) -> str:
    """One tile for each configuration: its speed-up over all prompts."""
    tiles = []
    for place, name in enumerate(summary.configurations):
        ratio = summary.rows[-1].cells[name].ratio if summary.rows else None
        if ratio is not None:
            value = f'<b class="{_verdict(ratio)}">{ratio.value:.2f}x</b>'
            tiles.append(f"<li>{_swatch(place)}{escape(name)}<br>{value} <small>{interval(ratio)}</small></li>")
    return f'<ul class="glance">{"".join(tiles)}</ul>' if tiles else ""


def _table(summary: Summary) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in NUMBERS)
    bodies = "".join(_body(row, summary.configurations) for row in summary.rows)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="All numbers">'
        f'<table class="numbers"><thead><tr>{heads}</tr></thead>{bodies}</table></div>'
    )


def _body(row: Row, names: Sequence[str]) -> str:
    count = f"{row.prompts} prompt{'s' if row.prompts != 1 else ''}"
    head = f'<th colspan="{len(NUMBERS)}" scope="rowgroup">{escape(row.kind)} <small>{count}</small></th>'
    lines = "".join(_line(name, place, row) for place, name in enumerate(names))
    return f'<tbody><tr class="kind">{head}</tr>{lines}</tbody>'


def _line(name: str, place: int, row: Row) -> str:
    speed, value, span, accepted, length = cells(row.cells[name])
    style = _verdict(row.cells[name].ratio)
    numbers = f'<td>{speed}</td><td class="{style}">{value}</td>' + "".join(
        f"<td>{text}</td>" for text in (span, accepted, length)
    )
    return f'<tr><th scope="row">{_swatch(place)}{escape(name)}</th>{numbers}</tr>'


def _verdict(ratio: Ratio | None) -> str:
    if ratio is None or not ratio.is_certain:
        return "open"
    return "faster" if ratio.value > 1 else "slower"


def _figures(bench: Bench, summary: Summary) -> Iterable[str]:
    yield _speed_ups(summary)
    yield _acceptance(bench, summary)
    yield _times(bench, summary)
    yield _costs(bench)


def _speed_ups(summary: Summary) -> str:
    groups = {
        row.kind: {
            name: plots.Interval(cell.ratio.value, cell.ratio.low, cell.ratio.high)
            for name, cell in row.cells.items()
            if cell.ratio is not None
        }
        for row in summary.rows
    }
    groups = {kind: values for kind, values in groups.items() if values}
    if not groups:
        return ""
    used = [name for name in summary.configurations if any(name in values for values in groups.values())]
    return _figure(
        "Speed-up by kind of prompt",
        "Against plain decoding, with 95 % intervals. Right of the dashed line is faster.",
        plots.intervals("Speed-up by kind of prompt", groups, summary.configurations),
        _legend(used, summary.configurations),
        "speed-up",
    )


def _acceptance(bench: Bench, summary: Summary) -> str:
    curves = {name: acceptance_by_position(rounds_of(bench.answers, name)) for name in summary.configurations}
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return ""
    places = [summary.configurations.index(name) for name in curves]
    svg = plots.lines(
        "Acceptance by position",
        curves,
        x_label="position in the draft",
        y_label="accepted, of those tested",
        y_high=1.0,
        places=places,
        percent=True,
    )
    text = "How often the first, second, ... drafted token was right, where the ones before it were."
    return _figure("Acceptance by position", text, svg, _legend(curves, summary.configurations), "acceptance")


def _times(bench: Bench, summary: Summary) -> str:
    splits = {name: time_split(rounds_of(bench.answers, name)) for name in summary.configurations}
    there = {name: split for name, split in splits.items() if split is not None}
    if not there:
        return ""
    notes = {
        name: f"{one.tokens:.2f} tokens, {one.total / one.tokens:.2f} ms each"
        for name, one in there.items()
        if one.tokens
    }
    bars = {name: split.phases for name, split in there.items()}
    svg = plots.stacks("Time of a round", bars, PHASES, unit="milliseconds a round", notes=notes)
    legend = "".join(
        f'<li><span class="key p{place}"></span>{PHASE_WORDS[phase]}</li>' for place, phase in enumerate(PHASES)
    )
    return _figure(
        "Time of a round", "Means; a round gives one token or more.", svg, f'<ul class="legend">{legend}</ul>', "times"
    )


def _costs(bench: Bench) -> str:
    seen = verify_times(bench)
    curves: dict[str, Sequence[tuple[float, float]]] = {"seen in rounds (median)": seen} if seen else {}
    most = max([ROWS_SHOWN, *(rows for rows, _ in seen)])
    if loaded := [(rows, milliseconds) for rows, milliseconds in measured_costs(bench) if rows <= most]:
        curves["measured at load"] = loaded
    if not curves:
        return ""
    one = next((points[0][1] for points in curves.values() if points[0][0] == 1), None)
    svg = plots.lines("Cost of verifying", curves, x_label="rows of a forward", y_label="milliseconds", ideal=one)
    text = "What a forward of the target costs by its rows. If rows cost nothing, it would stay on the dashed line."
    return _figure("Cost of verifying", text, svg, _legend(curves, list(curves)), "costs")


def _figure(title: str, text: str, svg: str, legend: str, name: str) -> str:
    return (
        f'<figure id="{name}"><figcaption><h3>{escape(title)}</h3><p>{escape(text)}</p></figcaption>'
        f"{legend}{svg}</figure>"
    )


def _legend(names: Iterable[str], order: Sequence[str]) -> str:
    items = "".join(f"<li>{_swatch(order.index(name))}{escape(name)}</li>" for name in names)
    return f'<ul class="legend">{items}</ul>'


def _swatch(place: int) -> str:
    return f'<svg class="swatch" viewBox="0 0 12 12" aria-hidden="true">{plots.mark(6, 6, place)}</svg>'
