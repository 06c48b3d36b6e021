"""Keyboard, widths, light and dark."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.server.fake_api import FakeApi
from tests.server.static.colours import contrast, luminance, rgb
from tests.server.static.visit import DESKTOP, PHONE, SCHEMES, WIDE, Opener, Visit


def test_everything_can_be_done_by_keyboard_and_the_focus_is_visible(visit: Visit) -> None:
    keyboard = visit.page.keyboard
    expect(visit.prompt).to_be_focused()
    keyboard.type("First line")
    keyboard.press("Shift+Enter")
    keyboard.type("second line")
    keyboard.press("Enter")
    expect(visit.answers.last.get_by_role("button", name="Regenerate")).to_be_visible()
    assert visit.api.requests[-1]["messages"][-1]["content"] == "First line\nsecond line"
    visit.page.locator("#skip").focus()
    reached = []
    for _ in range(40):
        name = visit.page.evaluate(
            """() => { const it = document.activeElement;
                return it.id || it.getAttribute("aria-label") || it.textContent.trim() || it.localName }"""
        )
        reached.append(name)
        if name == "send":
            break
        outline = visit.page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert outline not in ("none", ""), name
        keyboard.press("Tab")
    wanted = ["skip", "Chat", "Race", "draft-view", "new-chat", "First line", "Rename First line", "Delete First line"]
    wanted += ["Parameters", "Edit", "Copy", "Regenerate", "prompt", "send"]
    assert [name for name in reached if name in wanted] == wanted
    visit.page.locator("#draft-view").focus()
    keyboard.press("Enter")
    expect(visit.page.locator(".token").first).to_be_visible()
    visit.page.locator("#skip").focus()
    keyboard.press("Enter")
    expect(visit.prompt).to_be_focused()


def test_the_focus_goes_on_with_the_answer_that_takes_another_s_place(visit: Visit) -> None:
    visit.ask("One")
    again = visit.page.get_by_role("button", name="Regenerate")  # there when the answer is complete
    again.press("Enter")
    visit.wait_until(lambda: len(visit.api.requests) == 2)
    expect(visit.answers.last).to_be_focused()
    expect(again).to_be_visible()
    visit.page.get_by_role("button", name="Edit").press("Enter")
    visit.page.keyboard.press("Enter")
    visit.wait_until(lambda: len(visit.api.requests) == 3)
    expect(visit.answers.last).to_be_focused()
    expect(again).to_be_visible()
    visit.page.keyboard.press("Tab")
    visit.ask("Two")
    expect(visit.prompt).to_be_focused()


def test_the_drawer_of_a_phone_opens_and_closes_by_keyboard(visit_page: Opener) -> None:
    visit = visit_page(width=PHONE)
    menu = visit.page.get_by_role("button", name="Conversations and parameters")
    expect(visit.page.locator("#sidebar")).to_be_hidden()
    menu.press("Enter")
    expect(visit.page.get_by_role("button", name="New chat")).to_be_focused()
    expect(menu).to_have_attribute("aria-expanded", "true")
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator("#sidebar")).to_be_hidden()
    expect(menu).to_be_focused()
    menu.click()
    visit.page.locator("#shade").click(position={"x": 350, "y": 400})
    expect(visit.page.locator("#sidebar")).to_be_hidden()


def overflow(page: Page) -> list[Any]:
    """Elements that reach beyond the window or scroll sideways, but for code and tables in their frames."""
    found: list[Any] = page.evaluate(
        """() => [document.documentElement.scrollWidth > innerWidth ? "page" : null,
            ...[...document.querySelectorAll("body *")].filter((node) => {
                const box = node.getBoundingClientRect();
                const sideways = node.scrollWidth > node.clientWidth + 1
                    && ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
                return box.width && (box.right > innerWidth + 1 || box.left < -1 || sideways)
                    && !node.closest(".code pre, .wide-table, .hidden, .skip");
            }).map((node) => node.outerHTML.slice(0, 90))].filter(Boolean)"""
    )
    return found


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_width_and_no_scheme_scrolls_sideways(visit_page: Opener, api: FakeApi, width: int, scheme: str) -> None:
    api.answers["Wide"] = WIDE
    visit = visit_page(width=width, scheme=scheme)
    assert overflow(visit.page) == []
    visit.ask("Wide")
    expect(visit.answers.last.locator("table")).to_be_visible()
    assert overflow(visit.page) == []
    visit.page.get_by_role("button", name="Draft view").click()
    visit.answers.last.locator(".token").last.hover()
    expect(visit.page.get_by_role("tooltip")).to_be_visible()
    assert overflow(visit.page) == []
    if width == PHONE:
        visit.page.locator("#menu").click()
    visit.page.get_by_text("Parameters", exact=True).click()
    assert overflow(visit.page) == []
    if width == PHONE:
        visit.page.keyboard.press("Escape")
    visit.page.get_by_role("link", name="Race").click()
    visit.page.get_by_label("Prompt", exact=True).fill("Wide")
    visit.page.get_by_role("button", name="Start the race").click()
    expect(visit.page.locator("#verdict")).to_contain_text("Identical")
    assert overflow(visit.page) == []


def test_dark_and_light_are_what_the_reader_chose(visit_page: Opener) -> None:
    ground = {}
    for scheme in SCHEMES:
        visit = visit_page(scheme=scheme)
        body = visit.page.locator("body")
        ground[scheme] = luminance(rgb(visit.style(body, "background-color")))
        assert contrast(rgb(visit.style(body, "background-color")), rgb(visit.style(body, "color"))) > 10
    assert ground["light"] > 0.8 > 0.05 > ground["dark"]
