from html.parser import HTMLParser

import pytest

from slipstream.measure.records import Failure
from slipstream.measure.report_html import page
from tests.measure.answers import answer, bench, full_bench

VOID = {"meta", "link", "br"}


class Outline(HTMLParser):
    """Checks that elements are closed in order; keeps ids, heads and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.addresses += [values[name] or "" for name in ("src", "href", "action") if name in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_all_plots_of_a_run_are_on_the_page() -> None:
    assert Outline(page([full_bench()])).ids == ["speed-up", "acceptance", "times", "costs"]


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = page([full_bench()])
    assert Outline(text).addresses == ["data:,"]
    assert "<script" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_names_cannot_become_markup() -> None:
    name = "<script>alert(1)</script>"
    answers = [answer(), answer(name, "chat-1", kind="<b>")]
    text = page([bench(answers, [Failure("<i>It broke.</i>", name)], target={"name": "<u>"}, machine={"cpu": "<s>"})])
    Outline(text)
    for markup in ("<script", "<b>chat", "<i>", "<u>", "<s>"):
        assert markup not in text


def test_plots_without_data_are_left_out() -> None:
    assert Outline(page([bench([answer()], costs={})])).ids == []
    assert Outline(page([bench([], [Failure("It broke.")], costs={})])).ids == []


@pytest.mark.parametrize(("seconds", "style"), [(0.05, "faster"), (0.2, "slower"), (0.1, "open")])
def test_certain_speed_ups_stand_out(seconds: float, style: str) -> None:
    answers = [answer(name, f"chat-{number}", seconds=own * (1 + number / 99), ids_hash="") for number in range(6)
               for name, own in (("off", 0.1), ("suffix", seconds))]  # fmt: skip
    assert f'<td class="{style}">{0.1 / seconds:.2f}x</td>' in page([bench(answers)])


def test_several_runs_are_several_sections() -> None:
    text = "".join(Outline(page([full_bench(), bench([answer()], target={"name": "other.gguf"})])).text)
    assert text.index("target.gguf") < text.index("other.gguf")
