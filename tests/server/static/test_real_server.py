"""The page on the server itself, with an engine behind it."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from slipstream.server.app import Doors
from tests.server.serving import Served, serving
from tests.server.static.visit import Visit


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(doors=Doors(hosts=["127.0.0.1"])) as one:
        yield one


def test_a_chat_and_a_race(chromium: Browser, served: Served) -> None:
    visit = Visit(chromium, None, served.url + "/", width=1200, scheme="light", script="")  # type: ignore[arg-type]
    expect(visit.page.locator("#model")).to_have_text("fake")
    visit.page.get_by_text("Parameters", exact=True).click()
    visit.page.get_by_label("Longest answer, tokens").fill("60")
    visit.page.get_by_label("Seed", exact=True).fill("5")
    visit.ask("hello hello hello")
    visit.page.get_by_role("button", name="Draft view").click()
    expect(visit.answers.last.locator(".by-1, .by-2").first).to_be_visible()
    visit.page.get_by_role("link", name="Race").click()
    visit.page.get_by_label("Prompt", exact=True).fill("hello hello hello")
    visit.page.get_by_role("button", name="Start the race").click()
    expect(visit.page.locator("#verdict")).to_contain_text("Identical")
    visit.context.close()
    assert visit.unexpected == []
    assert [url for url in visit.requests if not url.startswith((served.url + "/", "data:"))] == []
