"""The chat: sending, streaming, stopping, changing, parameters, Markdown."""

import json
import re

import pytest
from playwright.sync_api import Route, expect

from tests.server.static.visit import ANSWER, DESKTOP, PHONE, QUESTION, Opener, Visit


def test_an_answer_is_shown_while_it_streams_and_as_markdown(visit: Visit) -> None:
    visit.api.held.add(QUESTION)
    visit.api.held_after = 32
    visit.api.pause = 0.03
    visit.send(QUESTION)
    expect(visit.answers.last).to_contain_text("A bicycle stays upright because")
    expect(visit.answers.last).to_have_attribute("aria-busy", "true")
    expect(visit.page.locator("#gauge-speed")).to_have_text(re.compile(r"\d"))
    expect(visit.page.get_by_role("button", name="Stop")).to_be_visible()
    expect(visit.page.locator("#send")).to_be_hidden()
    expect(visit.page.locator("#gauge-round")).to_have_text("4.00")
    visit.api.release.set()
    expect(visit.answers.last.locator("strong")).to_have_text("steers into the fall")
    expect(visit.answers.last.locator("li")).to_have_count(2)
    expect(visit.answers.last.locator("td").last).to_have_attribute("align", "right")
    expect(visit.answers.last.locator("pre code")).to_have_text(
        "def merge(left, right):\n    return sorted(left + right)"
    )
    expect(visit.answers.last).not_to_have_attribute("aria-busy", "true")
    expect(visit.page.locator("#gauge-speed")).to_have_text("120")
    expect(visit.page.locator("#gauge-gain")).to_have_text("2.40×")
    expect(visit.page.locator("#send")).to_be_visible()
    expect(visit.prompt).to_have_value("")
    expect(visit.prompt).to_be_focused()


def test_a_request_says_what_the_contract_asks_for(visit: Visit) -> None:
    visit.ask("Hello")
    (body,) = visit.api.requests
    assert body.pop("seed") in range(2**31)
    assert body == {
        "model": "tiny-model-Q4_0",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 1024,
        "speculation": {"mode": "auto", "details": True},
    }


def test_the_conversation_so_far_is_sent_along(visit: Visit) -> None:
    visit.ask("One")
    visit.ask("Two")
    roles = [(message["role"], message["content"]) for message in visit.api.requests[-1]["messages"]]
    assert roles == [("user", "One"), ("assistant", "You said: One"), ("user", "Two")]


@pytest.mark.parametrize("reads_above", [False, True])
def test_the_page_follows_an_answer_unless_its_reader_scrolls_up(visit: Visit, reads_above: bool) -> None:
    visit.api.answers["Long"] = "\n\n".join(f"Paragraph {number} is `here`." for number in range(60))
    visit.api.held.add("Long")
    visit.api.held_after = 300
    visit.send("Long")
    expect(visit.answers.last).to_contain_text("Paragraph 30")
    scroll = visit.page.locator("#scroll")
    if reads_above:
        scroll.hover()
        visit.page.mouse.wheel(0, -10_000)
        expect(visit.page.get_by_text("Paragraph 1 is")).to_be_in_viewport()
    visit.api.release.set()
    expect(visit.answers.last.get_by_role("button", name="Regenerate")).to_be_visible()
    expect(visit.answers.last.locator("code")).to_have_count(60)
    end = visit.answers.last.get_by_role("button", name="Regenerate")
    if reads_above:
        expect(visit.page.get_by_text("Paragraph 1 is")).to_be_in_viewport()
        expect(end).not_to_be_in_viewport()
    else:
        expect(end).to_be_in_viewport()


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stopping_ends_the_generation_and_keeps_what_there_is(visit: Visit, how: str) -> None:
    visit.api.held.add(QUESTION)
    visit.send(QUESTION)
    expect(visit.answers.last).to_contain_text("upright because")
    if how == "button":
        visit.page.get_by_role("button", name="Stop").click()
    else:
        visit.page.keyboard.press("Escape")
    expect(visit.answers.last.locator("summary")).to_contain_text("Stopped")
    expect(visit.answers.last).to_contain_text("A bicycle stays upright because")
    expect(visit.page.locator("#send")).to_be_visible()
    visit.wait_until(lambda: visit.api.abandoned == [QUESTION])
    visit.ask("And then?")
    assert visit.api.requests[-1]["messages"][1]["content"].startswith("A bicycle stays upright because")


def test_regenerating_replaces_the_answer(visit: Visit) -> None:
    visit.ask("One")
    visit.api.answers["One"] = "Something else."
    visit.answers.last.get_by_role("button", name="Regenerate").click()
    expect(visit.answers.last).to_contain_text("Something else.")
    expect(visit.answers).to_have_count(1)
    first, second = visit.api.requests
    assert first["messages"] == second["messages"]
    assert first["seed"] != second["seed"]


def test_editing_a_message_replaces_all_that_came_after_it(visit: Visit) -> None:
    visit.ask("One")
    visit.ask("Two")
    first = visit.page.get_by_role("article", name="You").first
    first.get_by_role("button", name="Edit").click()
    field = visit.page.get_by_label("Your message")
    expect(field).to_be_focused()
    expect(field).to_have_value("One")
    field.press("Escape")
    expect(first.get_by_role("button", name="Edit")).to_be_focused()
    expect(visit.answers).to_have_count(2)
    first.get_by_role("button", name="Edit").click()
    field.fill("Three")
    field.press("Enter")
    expect(visit.answers).to_have_count(1)
    expect(visit.answers.last).to_contain_text("You said: Three")
    assert visit.api.requests[-1]["messages"] == [{"role": "user", "content": "Three"}]


def test_parameters_are_sent_and_kept(visit: Visit) -> None:
    visit.page.get_by_text("Parameters", exact=True).click()
    assert visit.page.get_by_label("Temperature").get_attribute("placeholder") == "0.8"
    assert visit.page.get_by_label("Repetition penalty").get_attribute("placeholder") == "1"
    values = {"Temperature": "0.5", "Top-p": "0.9", "Top-k": "20", "Min-p": "0.1", "Repetition penalty": "1.1"}
    values |= {"Longest answer, tokens": "50", "Seed": "7", "System prompt": "Be brief."}
    for label, value in values.items():
        visit.page.get_by_label(label).fill(value)
    visit.page.get_by_label("Speculation").select_option("off")
    visit.page.reload()
    visit.ask("Hello")
    (body,) = visit.api.requests
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repeat_penalty": 1.1}
    assert {name: body[name] for name in wanted} == wanted
    assert (body["max_tokens"], body["seed"], body["speculation"]["mode"]) == (50, 7, "off")
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    expect(visit.answers.last.locator("summary")).to_contain_text("seed 7")
    visit.page.get_by_text("Parameters", exact=True).click()
    visit.page.get_by_role("button", name="Reset").click()
    visit.ask("Again")
    assert "temperature" not in visit.api.requests[-1]
    assert visit.api.requests[-1]["max_tokens"] == 1024
    assert visit.api.requests[-1]["speculation"]["mode"] == "auto"


def test_an_answer_has_a_limit_that_is_seen_and_can_be_taken_away(visit: Visit) -> None:
    visit.ask("Hello")
    assert visit.api.requests[-1]["max_tokens"] == 1024
    visit.page.get_by_text("Parameters", exact=True).click()
    longest = visit.page.get_by_label("Longest answer, tokens")
    expect(longest).to_have_value("1024")
    longest.fill("")
    visit.page.reload()
    visit.ask("Again")
    assert "max_tokens" not in visit.api.requests[-1]


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_parameter_that_cannot_be_is_named_and_nothing_is_sent(visit_page: Opener, width: int) -> None:
    stored = json.dumps(json.dumps({"top_p": "1.5"}))
    visit = visit_page(width=width, script=f"localStorage.setItem('slipstream.parameters', {stored})")
    visit.send("Hello")
    expect(visit.page.get_by_role("alert")).to_have_text("Top-p: enter a number from 0 to 1.")
    expect(visit.page.get_by_label("Top-p")).to_be_focused()
    expect(visit.prompt).to_have_value("Hello")
    assert visit.api.requests == []


def test_code_can_be_copied(visit: Visit) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.ask(QUESTION)
    copy = visit.answers.last.locator(".code").get_by_role("button", name="Copy")
    copy.click()
    expect(visit.answers.last.get_by_role("button", name="Copied")).to_be_visible()
    code = "def merge(left, right):\n    return sorted(left + right)"
    assert visit.page.evaluate("() => navigator.clipboard.readText()") == code


def test_without_markdown_the_text_itself_is_shown(visit: Visit) -> None:
    visit.page.route("**/page/markdown", lambda route: route.abort())
    visit.ask(QUESTION)
    expect(visit.answers.last.locator(".markdown")).to_have_text(ANSWER.strip())
    visit.expect_problem("ERR_FAILED")


def test_text_that_is_not_rendered_yet_goes_on_where_it_belongs(visit: Visit) -> None:
    """While code streams in, its new lines stand in the block and not below it."""
    with_code: list[str] = []

    def first_with_code_only(route: Route) -> None:
        text = (route.request.post_data_json or {})["text"]
        with_code.extend([text] if "one" in text else [])
        if len(with_code) <= 1:
            route.continue_()

    text = "Code:\n\n```\none two three\nfour five six\n```"
    visit.api.answers["Code"] = text
    visit.api.held.add("Code")
    visit.api.held_after = 8
    visit.page.route("**/page/markdown", first_with_code_only)
    visit.send("Code")
    expect(visit.answers.last.locator("pre code")).to_contain_text("one")
    visit.api.release.set()
    expect(visit.answers.last.locator("pre code .tail")).to_contain_text("four five six")
    assert visit.answers.last.locator("pre code").inner_text().startswith("one two three\nfour five six")
    assert len(with_code) <= 2
