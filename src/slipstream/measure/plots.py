"""Plots as SVG text. Colours come from the page's style sheet, so that they follow its scheme.

Each is drawn 400 units wide with text of 12, which stays readable on a telephone; heights follow the content. Series
differ in colour and in the shape of their marks. Every plot has a title and a description for those who cannot see it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from slipstream.measure.report_text import shorten

WIDTH = 400
MARKS = ("circle", "square", "diamond", "triangle")

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and how far it may be off; `low` and `high` equal to it draw no whisker."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places on the page."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers inside, at most so many."""
        raw = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def intervals(title: str, groups: Mapping[str, Mapping[str, Interval]], series: Sequence[str]) -> str:
    """One block of lines for each group, a mark with its interval for each series; 1 is marked."""
    names = {group: [name for name in series if name in values] for group, values in groups.items()}
    values = [value for group in groups.values() for value in group.values()]
    low, high = min(1.0, *(one.low for one in values)), max(1.0, *(one.high for one in values))
    room = 0.06 * (high - low or 1)
    x = Scale(max(low - room, 0), high + room, 96, WIDTH - 12)
    parts: list[str] = []
    y = 18.0
    for group, present in names.items():
        height = 14 * max(len(present), 1)
        parts.append(_text(90, y + height / 2 + 4, shorten(group, 14), "end"))
        for name in present:
            parts += _whisker(groups[group][name], x, y + 7, series.index(name), f"{group}, {name}")
            y += 14
        y += 10
        parts.append(_line(8, y - 5, WIDTH - 8, y - 5, "grid"))
    bottom = y - 4
    one = _line(x(1), 12, x(1), bottom, "ideal")
    grid = [_line(x(tick), 12, x(tick), bottom, "grid") for tick in x.ticks()]
    labels = [_text(x(tick), bottom + 16, f"{tick:g}x", "middle") for tick in x.ticks()]
    words = "; ".join(
        f"{group}: " + ", ".join(f"{name} {groups[group][name].value:.2f}" for name in names[group]) for group in names
    )
    return _svg(title, words, bottom + 24, [*grid, one, *parts, *labels])


def _whisker(one: Interval, x: Scale, y: float, place: int, label: str) -> list[str]:
    text = f"{label}: {one.value:.2f} ({one.low:.2f} to {one.high:.2f})"
    whisker = _line(x(one.low), y, x(one.high), y, f"whisker s{place % 8}") if one.high > one.low else ""
    return [whisker, mark(x(one.value), y, place, text)]


def lines(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x_label: str,
    y_label: str,
    y_high: float | None = None,
    ideal: float | None = None,
    places: Sequence[int] | None = None,
    percent: bool = False,
) -> str:
    """Points joined by lines. `ideal`: a flat dashed line; `places`: colours and marks, else counted from 0."""
    xs = [point[0] for points in series.values() for point in points]
    ys = [point[1] for points in series.values() for point in points]
    low, high = min(xs), max(xs)
    x = Scale(low - 0.5 * (low == high), high + 0.5 * (low == high), 46, WIDTH - 14)
    y = Scale(0, y_high or 1.08 * max(*ys, ideal or 0, 1e-9), 236, 32)
    form: Callable[[float], str] = (lambda value: f"{value:.0%}") if percent else (lambda value: f"{value:g}")
    parts = [_line(46, y(tick), WIDTH - 14, y(tick), "grid") for tick in y.ticks(5)]
    parts += [_text(40, y(tick) + 4, form(tick), "end") for tick in y.ticks(5)]
    parts += [_text(x(tick), 254, f"{tick:g}", "middle") for tick in x.ticks(8) if tick == int(tick)]
    parts += [_text((46 + WIDTH - 14) / 2, 274, x_label, "middle"), _text(4, 14, y_label, "start")]
    if ideal is not None:
        parts.append(_line(46, y(ideal), WIDTH - 14, y(ideal), "ideal"))
    for number, (name, points) in enumerate(series.items()):
        place = number if places is None else places[number]
        path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in points)
        parts.append(f'<polyline class="curve s{place % 8}" points="{path}"/>')
        parts += [mark(x(px), y(py), place, f"{name}, {px:g}: {form(round(py, 4))}") for px, py in points]
    words = "; ".join(
        f"{name}: " + ", ".join(f"{px:g} is {form(round(py, 3))}" for px, py in points)
        for name, points in series.items()
    )
    return _svg(title, words, 282, parts)


def stacks(
    title: str, bars: Mapping[str, Mapping[str, float]], parts_of: Sequence[str], *, unit: str, notes: Mapping[str, str]
) -> str:
    """One bar for each name, made of parts; `notes` stand above the bars beside the names."""
    longest = max(sum(bar.values()) for bar in bars.values()) or 1.0
    x = Scale(0, longest * 1.04, 8, WIDTH - 14)
    shapes: list[str] = []
    y = 14.0
    for name, bar in bars.items():
        shapes += [_text(8, y, shorten(name, 24), "start"), _text(WIDTH - 14, y, notes.get(name, ""), "end", "quiet")]
        begin = 0.0
        for place, part in enumerate(parts_of):
            size = bar.get(part, 0.0)
            box = f'x="{x(begin):.1f}" y="{y + 5:.1f}" width="{x(size) - x(0):.1f}" height="18"'
            label = escape(f"{name}, {part}: {size:.2f} {unit}")
            shapes.append(f'<rect class="phase p{place}" {box}><title>{label}</title></rect>')
            begin += size
        y += 46
    bottom = y - 16
    shapes += [_line(x(tick), bottom - 4, x(tick), bottom, "axis") for tick in x.ticks()]
    shapes += [_text(x(tick), bottom + 12, f"{tick:g}", "middle") for tick in x.ticks()]
    shapes.append(_text((8 + WIDTH - 14) / 2, bottom + 30, unit, "middle"))
    words = "; ".join(
        f"{name}: " + ", ".join(f"{part} {bar.get(part, 0):.2f} {unit}" for part in parts_of)
        for name, bar in bars.items()
    )
    return _svg(title, words, bottom + 38, shapes)


def mark(x: float, y: float, place: int, label: str = "") -> str:
    """The mark of the series in this place, with a text for the pointer."""
    title = f"<title>{escape(label)}</title>" if label else ""
    style = f'class="mark s{place % 8}"'
    corners: tuple[Point, ...]
    match MARKS[place % len(MARKS)]:
        case "circle":
            return f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="4.2">{title}</circle>'
        case "square":
            return f'<rect {style} x="{x - 3.8:.1f}" y="{y - 3.8:.1f}" width="7.6" height="7.6">{title}</rect>'
        case "diamond":
            corners = (x, y - 5.4), (x + 5.4, y), (x, y + 5.4), (x - 5.4, y)
        case _:
            corners = (x, y - 5.2), (x + 5, y + 3.8), (x - 5, y + 3.8)
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in corners)
    return f'<polygon {style} points="{points}">{title}</polygon>'


def _svg(title: str, description: str, height: float, parts: Sequence[str]) -> str:
    head = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH} {height:.0f}" aria-label="{escape(title)}">{head}{"".join(parts)}</svg>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
