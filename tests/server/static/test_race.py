"""The race of plain against speculative decoding."""

import re

from playwright.sync_api import expect

from tests.server.fake_api import FakeApi
from tests.server.static.visit import QUESTION, Opener, Visit


def test_a_race_of_equal_answers_ends_with_identical(visit_page: Opener) -> None:
    visit = visit_page(path="/#race")
    visit.page.get_by_label("Prompt", exact=True).fill(QUESTION)
    visit.page.get_by_role("button", name="Start the race").click()
    expect(visit.page.locator("#verdict")).to_contain_text("Identical: all")
    expect(visit.page.locator("#verdict")).to_contain_text("2.40× as fast: 120 against 50.0 tokens per second.")
    plain, speculative = visit.api.requests
    assert (plain["speculation"]["mode"], speculative["speculation"]["mode"]) == ("off", "auto")
    assert {**plain, "speculation": None} == {**speculative, "speculation": None}
    expect(visit.page.locator("#race-seed")).to_have_text(f"Seed {plain['seed']}")
    for name in ("Plain", "Speculative"):
        lane = visit.page.get_by_role("region", name=name)
        expect(lane).to_contain_text("steers into the")
        expect(lane.get_by_role("timer")).to_have_text(re.compile(r"\d+\.\d\d s"))
    expect(visit.page.get_by_role("region", name="Plain").locator(".by-1")).to_have_count(0)
    expect(visit.page.get_by_role("region", name="Speculative").locator(".by-1").first).to_be_visible()


def test_a_race_of_different_answers_names_and_marks_the_first_difference(visit_page: Opener, api: FakeApi) -> None:
    api.answers["Count"] = "one two three four"
    api.plain_answers["Count"] = "one two five four"
    visit = visit_page(path="/#race")
    visit.page.get_by_label("Prompt", exact=True).fill("Count")
    visit.page.get_by_role("button", name="Start the race").click()
    verdict = 'First difference at token 3: plain has " five", speculative " three".'
    expect(visit.page.locator("#verdict")).to_contain_text(verdict)
    expect(visit.page.locator(".difference")).to_have_text([" five", " three"])
    visit.page.get_by_role("button", name="Replay together").click()
    expect(visit.page.get_by_role("button", name="Replay together")).to_be_visible()
    expect(visit.page.locator(".difference")).to_have_text([" five", " three"])


def test_a_race_in_which_one_answer_ends_early_is_not_identical(visit_page: Opener, api: FakeApi) -> None:
    api.answers["Count"] = "one two three"
    api.plain_answers["Count"] = "one two"
    visit = visit_page(path="/#race")
    visit.page.get_by_label("Prompt", exact=True).fill("Count")
    visit.page.get_by_role("button", name="Start the race").click()
    verdict = 'First difference at token 3: plain has the end, speculative " three".'
    expect(visit.page.locator("#verdict")).to_contain_text(verdict)


def test_a_race_can_be_stopped_and_has_no_verdict_then(visit_page: Opener, api: FakeApi) -> None:
    api.held.add(QUESTION)
    visit = visit_page(path="/#race")
    visit.page.get_by_label("Prompt", exact=True).fill(QUESTION)
    visit.page.get_by_role("button", name="Start the race").click()
    expect(visit.page.get_by_role("region", name="Plain")).to_contain_text("upright")
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator("#verdict")).to_have_text("Stopped before the end.")
    expect(visit.page.get_by_role("button", name="Start the race")).to_be_visible()
    expect(visit.page.get_by_role("button", name="Replay together")).to_be_hidden()
    assert len(api.requests) == 1


def test_chat_and_race_do_not_disturb_each_other(visit: Visit) -> None:
    visit.api.held.add(QUESTION)
    visit.send(QUESTION)
    expect(visit.answers.last).to_contain_text("upright")
    visit.page.get_by_role("link", name="Race").click()
    visit.page.get_by_role("button", name="Start the race").click()
    expect(visit.page.locator("#verdict")).to_contain_text("Stop it first.")
    assert len(visit.api.requests) == 1


def test_a_replay_keeps_nobody_from_chatting(visit: Visit) -> None:
    visit.page.get_by_role("link", name="Race").click()
    visit.page.get_by_role("button", name="Start the race").click()
    expect(visit.page.locator("#verdict")).to_contain_text("Identical: all")
    visit.page.evaluate("() => { window.requestAnimationFrame = () => 0 }")  # a replay that has no end
    visit.page.get_by_role("button", name="Replay together").click()
    visit.page.get_by_role("link", name="Chat").click()
    visit.send(QUESTION)
    visit.wait_until(lambda: len(visit.api.requests) == 3)
    expect(visit.page.locator("#notices")).to_be_empty()


def test_the_focus_stays_with_the_buttons_of_a_race(visit_page: Opener, api: FakeApi) -> None:
    api.held.add(QUESTION)
    visit = visit_page(path="/#race")
    visit.page.get_by_label("Prompt", exact=True).fill(QUESTION)
    visit.page.get_by_role("button", name="Start the race").press("Enter")
    expect(visit.page.get_by_role("button", name="Stop")).to_be_focused()
    visit.page.keyboard.press("Escape")
    expect(visit.page.get_by_role("button", name="Start the race")).to_be_focused()
