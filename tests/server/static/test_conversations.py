"""Conversations in the browser's storage, also where that is full, blocked or damaged."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.server.static.visit import ANSWER, QUESTION, Opener, Visit


def test_conversations_survive_a_reload(visit: Visit) -> None:
    visit.ask(QUESTION)
    visit.page.get_by_role("button", name="New chat").click()
    expect(visit.answers).to_have_count(0)
    visit.ask("Second")
    visit.page.reload()
    expect(visit.answers.last).to_contain_text("You said: Second")
    entries = visit.page.locator("#conversations li .open")
    expect(entries).to_have_text(["Second", QUESTION])
    expect(entries.first).to_have_attribute("aria-current", "true")
    entries.last.click()
    expect(visit.answers.last.locator("strong")).to_have_text("steers into the fall")
    expect(visit.page.locator("#gauge-speed")).to_have_text("120")
    visit.page.get_by_role("button", name="Draft view").click()
    visit.page.locator(".token.by-1").first.hover()
    expect(visit.page.get_by_role("tooltip")).to_contain_text(
        "probability 73.1 %guessed by suffix lookup, acceptedround 0"
    )
    visit.page.reload()
    expect(visit.answers.last).to_contain_text("steers into the fall")


def test_two_tabs_do_not_overwrite_each_other_s_turns(visit: Visit) -> None:
    visit.ask("One")
    other = visit.context.new_page()
    other.goto(visit.address)
    expect(other.get_by_role("article", name="Answer")).to_have_count(1)
    visit.ask("Two")
    expect(other.get_by_role("article", name="Answer").last).to_contain_text("You said: Two")
    other.locator("#prompt").fill("Three")
    other.locator("#prompt").press("Enter")
    expect(visit.answers.last).to_contain_text("You said: Three")
    visit.page.reload()
    expect(visit.page.locator(".said")).to_have_text(["One", "Two", "Three"])


def test_conversations_can_be_renamed_and_deleted(visit: Visit) -> None:
    visit.ask("One")
    entry = visit.page.locator("#conversations li")
    entry.hover()
    visit.page.get_by_role("button", name="Rename One").click()
    name = visit.page.get_by_label("Name of the conversation")
    name.fill("<b>First</b>")
    name.press("Enter")
    expect(entry.locator(".open")).to_have_text("<b>First</b>")
    visit.ask("Two")
    expect(entry.locator(".open")).to_have_text("<b>First</b>")
    entry.hover()
    visit.page.get_by_role("button", name="Delete <b>First</b>").click()
    expect(entry).to_have_count(0)
    expect(visit.answers).to_have_count(0)
    visit.page.get_by_role("button", name="Undo").click()
    expect(visit.answers).to_have_count(2)
    entry.hover()
    visit.page.get_by_role("button", name="Delete <b>First</b>").click()
    visit.page.reload()
    expect(visit.page.locator("#model")).not_to_be_empty()
    expect(entry).to_have_count(0)
    assert "One" not in visit.page.evaluate("() => JSON.stringify({...localStorage})")


def test_a_deleted_conversation_does_not_return_with_its_answer(visit: Visit) -> None:
    visit.api.answers["Secret"] = ANSWER
    visit.api.held.add("Secret")
    visit.send("Secret")
    expect(visit.answers.last).to_contain_text("A bicycle")
    expect(visit.page.locator("#send")).to_be_hidden()
    entry = visit.page.locator("#conversations li")
    entry.hover()
    visit.page.get_by_role("button", name="Delete Secret").click()
    expect(visit.page.locator("#send")).to_be_visible()
    expect(entry).to_have_count(0)
    assert "Secret" not in visit.page.evaluate("() => JSON.stringify({...localStorage})")


def test_what_was_written_before_the_page_went_away_is_kept(visit: Visit) -> None:
    visit.api.held.add(QUESTION)
    visit.send(QUESTION)
    expect(visit.answers.last).to_contain_text("upright because")
    visit.page.reload()
    expect(visit.answers.last).to_contain_text("A bicycle stays upright because")


def test_an_answer_that_was_cut_off_by_a_crash_can_be_read_and_asked_for_again(visit_page: Opener) -> None:
    question = {"role": "user", "content": "One"}
    # As kept at the beginning or on the way: nothing is known yet but what had been written.
    answer = {"role": "assistant", "content": "**Half** an", "tokens": [], "seed": 5, "finish": "broken"}
    conversation = {"id": "a", "title": "One", "turns": [question, answer], "updated": 1}
    entries = {
        "slipstream.conversations": [{"id": "a", "title": "One", "updated": 1}],
        "slipstream.conversation.a": conversation,
        "slipstream.current": "a",
    }
    script = "".join(f"localStorage.setItem('{name}', {json.dumps(json.dumps(it))});" for name, it in entries.items())
    visit = visit_page(script=script)
    expect(visit.answers.last.locator("strong")).to_have_text("Half")
    visit.answers.last.get_by_role("button", name="Regenerate").click()
    expect(visit.answers.last).to_contain_text("You said: One")


FULL = """Storage.prototype.setItem = () => { throw new DOMException("no room", "QuotaExceededError") }"""
BLOCKED = """Object.defineProperty(window, "localStorage", {
    get() { throw new DOMException("not allowed", "SecurityError") } })"""


@pytest.mark.parametrize(("script", "word"), [(FULL, "storage is full"), (BLOCKED, "does not let this page store")])
def test_without_storage_there_is_a_notice_and_the_chat_goes_on(visit_page: Opener, script: str, word: str) -> None:
    visit = visit_page(script=script)
    visit.ask("One")
    expect(visit.page.locator("#notices")).to_contain_text(word)
    visit.page.get_by_role("button", name="Dismiss").click()
    visit.page.get_by_role("button", name="New chat").click()
    visit.ask("Two")
    expect(visit.page.locator("#notices")).to_be_empty()
    visit.page.locator("#conversations li .open", has_text="One").click()
    expect(visit.answers).to_have_text(re.compile("You said: One"))


def test_damaged_storage_is_passed_over(visit_page: Opener) -> None:
    damage = {
        "slipstream.conversations": '[{"id": "a", "title": "Broken", "updated": 1}, {"id": "b"}]',
        "slipstream.conversation.a": "{",
        "slipstream.current": '"a"',
        "slipstream.parameters": "[1, 2",
    }
    script = "".join(
        f"localStorage.setItem({json.dumps(name)}, {json.dumps(value)});" for name, value in damage.items()
    )
    visit = visit_page(script=f"if (!localStorage.length) {{ {script} }}")
    visit.page.locator("#conversations li .open", has_text="Broken").click()
    visit.ask("One")
    visit.page.locator("#conversations li", has_text="Broken").hover()
    visit.page.get_by_role("button", name="Delete Broken").click()
    expect(visit.page.locator("#conversations li")).to_have_count(1)
