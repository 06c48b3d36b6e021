"""The report in a real browser: Debian's chromium in continuous integration, any Chromium elsewhere."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.measure.report_html import page
from tests.measure import browser
from tests.measure.answers import full_bench
from tests.measure.browser import Browser

WIDTHS = (400, 1400)
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = browser.find()
    if program is None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail("continuous integration needs a browser here: apt-get install chromium")
        pytest.skip("there is no Chromium on this machine")
    with browser.running(program, tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page([full_bench()]), encoding="utf-8")
    return path


def channel_sum(colour: str) -> int:
    """Red, green and blue of a computed colour together."""
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_report_is_readable_without_network(chromium: Browser, report: Path, width: int, scheme: str) -> None:
    chromium.problems.clear()
    chromium.requests.clear()
    chromium.open(report, width=width, scheme=scheme)
    assert chromium.evaluate("innerWidth") == width
    sizes = chromium.evaluate(
        """[...document.querySelectorAll('figure > svg')].map(svg => svg.getBoundingClientRect())
           .map(box => [box.width, box.height])"""
    )
    assert len(sizes) == 4
    assert all(across >= 300 and down >= 80 for across, down in sizes)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    assert chromium.evaluate("document.querySelector('.scroll').scrollWidth") <= width
    smallest = chromium.evaluate(
        "Math.min(...[...document.querySelectorAll('figure > svg text')].map(t => t.getBoundingClientRect().height))"
    )
    assert smallest >= 10
    assert chromium.problems == []
    assert [address for address in chromium.requests if not address.startswith(("file:", "data:"))] == []


def test_text_does_not_leave_the_plots(chromium: Browser, report: Path) -> None:
    chromium.open(report, width=400, scheme="light")
    outside = chromium.evaluate(
        """[...document.querySelectorAll('figure > svg text')].filter(text => {
            const inner = text.getBoundingClientRect(), outer = text.closest('svg').getBoundingClientRect()
            return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1
        }).map(text => text.textContent)"""
    )
    assert outside == []


def test_dark_and_light_differ_and_both_have_contrast(chromium: Browser, report: Path) -> None:
    seen = {}
    for scheme in SCHEMES:
        chromium.open(report, width=1400, scheme=scheme)
        seen[scheme] = chromium.evaluate(
            """['body', 'figure > svg text', 'h1'].map(name => getComputedStyle(document.querySelector(name)))
               .flatMap(style => [style.backgroundColor, style.color, style.fill])"""
        )
        seen[scheme].append(chromium.screenshot())
    background, ink = (0, 5)  # of the body, and what plots write with
    assert channel_sum(seen["light"][background]) > 600 > 300 > channel_sum(seen["light"][ink])
    assert channel_sum(seen["dark"][background]) < 150 < 600 < channel_sum(seen["dark"][ink])
    assert seen["light"][-1] != seen["dark"][-1]


def test_the_browser_would_notice_problems(chromium: Browser, tmp_path: Path) -> None:
    """What these tests rely on: errors and requests are seen."""
    path = tmp_path / "bad.html"
    path.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("a"); undefined_name</script>')
    chromium.problems.clear()
    chromium.requests.clear()
    chromium.open(path, width=400, scheme="light")
    assert len(chromium.problems) >= 2
    assert "http://127.0.0.1:9/x.png" in chromium.requests
