import xml.etree.ElementTree as ElementTree
from xml.etree.ElementTree import Element

import pytest

from slipstream.measure import plots
from slipstream.measure.plots import Interval, Scale

NAMES = ["off", "<suffix>", "model & more"]


def parsed(svg: str) -> Element:
    return ElementTree.fromstring(svg)


def numbers(element: Element, name: str) -> list[float]:
    return [float(child.attrib[name]) for child in element.iter() if name in child.attrib]


def inside(svg: Element) -> bool:
    """Everything is within the picture."""
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    xs = [value for name in ("x", "x1", "x2", "cx") for value in numbers(svg, name)]
    ys = [value for name in ("y", "y1", "y2", "cy") for value in numbers(svg, name)]
    return 0 <= min(xs) <= max(xs) <= width and 0 <= min(ys) <= max(ys) <= height


def intervals() -> Element:
    groups = {
        "chat": {"<suffix>": Interval(1.5, 1.4, 1.6), "model & more": Interval(0.5, 0.5, 0.5)},
        "code": {"<suffix>": Interval(3.0, 2.0, 4.0)},
    }
    return parsed(plots.intervals("Speed-up", groups, NAMES))


def lines() -> Element:
    series = {"<suffix>": [(1, 0.5), (2, 1.0)], "model & more": [(1, 0.25)]}
    return parsed(plots.lines("Acceptance", series, x_label="x", y_label="y", ideal=0.5, places=[1, 2]))


def stacks() -> Element:
    bars = {"off": {"verify": 9.0, "sample": 1.0}, "<suffix>": {"draft": 2.0, "verify": 10.0}}
    notes = {"off": "plain"}
    return parsed(plots.stacks("Time", bars, ["draft", "verify", "sample"], unit="ms", notes=notes))


@pytest.mark.parametrize("plot", [intervals, lines, stacks])
def test_every_plot_is_well_formed_described_and_within_its_frame(plot: object) -> None:
    assert callable(plot)
    svg = plot()
    assert svg.attrib["role"] == "img"
    title, description = svg.find("title"), svg.find("desc")
    assert title is not None
    assert description is not None
    assert title.text == svg.attrib["aria-label"]
    assert "<suffix>" in (description.text or "")
    assert inside(svg)


def test_marks_lie_between_the_ends_of_their_whiskers() -> None:
    svg = intervals()
    whiskers = [one for one in svg.iter("line") if "whisker" in one.attrib["class"]]
    assert len(whiskers) == 2  # none for an interval of a single pair
    [square, diamond, other] = [one for one in svg.iter() if one.attrib.get("class", "").startswith("mark")]
    assert (square.tag, diamond.tag, other.tag) == ("rect", "polygon", "rect")
    center = float(square.attrib["x"]) + float(square.attrib["width"]) / 2
    assert float(whiskers[0].attrib["x1"]) < center < float(whiskers[0].attrib["x2"])
    assert float(whiskers[0].attrib["x2"]) < float(whiskers[1].attrib["x1"])


def test_one_is_marked_in_speed_ups() -> None:
    svg = intervals()
    [one] = [line for line in svg.iter("line") if line.attrib["class"] == "ideal"]
    ticks = {text.text: float(text.attrib["x"]) for text in svg.iter("text")}
    assert float(one.attrib["x1"]) == pytest.approx(ticks["1x"], abs=0.2)


def test_colours_are_those_of_the_series_whatever_else_is_shown() -> None:
    assert [one.attrib["class"] for one in lines().iter("polyline")] == ["curve s1", "curve s2"]


def test_the_ideal_line_is_flat_at_its_value() -> None:
    svg = lines()
    [ideal] = [line for line in svg.iter("line") if line.attrib["class"] == "ideal"]
    assert ideal.attrib["y1"] == ideal.attrib["y2"]
    first = next(svg.iter("polyline")).attrib["points"].split()[0]
    assert float(first.split(",")[1]) == pytest.approx(float(ideal.attrib["y1"]))


def test_parts_of_a_bar_follow_each_other() -> None:
    rects = [one for one in stacks().iter("rect") if "p1" in one.attrib["class"] or "p2" in one.attrib["class"]]
    verify, sample = rects[:2]
    end = float(verify.attrib["x"]) + float(verify.attrib["width"])
    assert float(sample.attrib["x"]) == pytest.approx(end, abs=0.2)
    assert float(verify.attrib["width"]) == pytest.approx(9 * float(sample.attrib["width"]), rel=0.02)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0.7, 2.3, [1, 1.5, 2]), (0, 44, [0, 10, 20, 30, 40])],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert Scale(low, high, 0, 1).ticks() == pytest.approx(ticks)


def test_single_points_make_a_plot() -> None:
    assert inside(parsed(plots.lines("t", {"a": [(1, 0.0)]}, x_label="x", y_label="y")))
    assert inside(parsed(plots.intervals("t", {"k": {"off": Interval(1, 1, 1)}}, ["off"])))
    assert inside(parsed(plots.stacks("t", {"a": {}}, ["draft"], unit="ms", notes={})))


def test_long_names_are_cut_and_stay_apart() -> None:
    names = [f"model:SmolLM2-{size}M-Instruct.Q8_0.gguf" for size in (135, 360)]
    svg = parsed(plots.stacks("t", {name: {"draft": 1.0} for name in names}, ["draft"], unit="ms", notes={}))
    assert len(list(svg.iter("rect"))) == 2
    assert all(len(text.text or "") <= 24 for text in svg.iter("text"))
    groups = plots.intervals("t", {"k" * 40: {"off": Interval(1, 1, 1)}}, ["off"])
    assert all(len(text.text or "") <= 14 for text in parsed(groups).iter("text"))
