"""Answers as tokens: colours, explanations, keyboard."""

import pytest
from playwright.sync_api import expect

from tests.server.static.colours import contrast, over, rgb
from tests.server.static.visit import ANSWER, QUESTION, SCHEMES, Opener, Visit


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tokens_are_coloured_by_drafter_with_contrast_and_not_by_colour_alone(visit_page: Opener, scheme: str) -> None:
    visit = visit_page(scheme=scheme)
    visit.ask(QUESTION)
    visit.page.get_by_role("button", name="Draft view").click()
    shown = visit.answers.last.locator(".tokens")
    assert shown.inner_text().replace("↵", "").strip() == ANSWER.strip()
    page = rgb(visit.style(visit.page.locator("body"), "background-color"))
    seen = {}
    for kind in ("by-0", "by-1", "by-2"):
        token = shown.locator(f".{kind}").first
        text, back, line, form = (
            visit.style(token, name)
            for name in ("color", "background-color", "text-decoration-color", "text-decoration-style")
        )
        assert contrast(rgb(text), over(rgb(back), page)) >= 4.5
        assert kind == "by-0" or contrast(rgb(line), over(rgb(back), page)) >= 3
        seen[kind] = (back, line, form)
    assert len({back for back, _, _ in seen.values()}) == 3
    assert len({line for _, line, _ in seen.values()}) == 3
    assert rgb(seen["by-0"][1])[3] == 0
    assert seen["by-1"][2] != seen["by-2"][2]
    legend = visit.page.get_by_role("list", name="Who wrote the tokens").locator("visible=true")
    expect(legend).to_contain_text("suffix lookup 50 %")
    expect(legend).to_contain_text("draft model 2")
    expect(legend).to_contain_text("the model itself 2")


def test_every_colour_of_a_drafter_has_contrast(visit_page: Opener) -> None:
    for scheme in SCHEMES:
        visit = visit_page(scheme=scheme)
        colours = visit.page.evaluate(
            """() => Object.fromEntries(["page", "card", "text", "quiet", "accent", "bad", "good",
                "by-1", "by-2", "by-3", "by-4", "by-5"].map((name) => {
                const probe = document.body.appendChild(document.createElement("i"));
                probe.style.color = `var(--${name})`;
                return [name, getComputedStyle(probe).color];
            }))"""
        )
        for ground in ("page", "card"):
            for name in set(colours) - {"page", "card"}:
                assert contrast(rgb(colours[name]), rgb(colours[ground])) >= 4.5, (scheme, name, ground)


def test_a_token_explains_itself_to_the_mouse_and_to_the_keyboard(visit: Visit) -> None:
    visit.ask(QUESTION)
    visit.page.get_by_role("button", name="Draft view").click()
    tokens = visit.answers.last.locator(".token")
    bubble = visit.page.get_by_role("tooltip")
    tokens.nth(1).hover()
    expect(bubble).to_contain_text('" bicycle"')
    expect(bubble).to_contain_text("probability 73.1 %")
    expect(bubble).to_contain_text("guessed by suffix lookup, accepted")
    expect(bubble).to_contain_text("round 0, which gave 4 tokens")
    expect(visit.page.locator(".token.pointed")).to_have_text(["A", " bicycle", " stays", " upright"])
    visit.page.mouse.move(5, 5)
    expect(bubble).to_be_hidden()
    tokens.first.focus()
    expect(bubble).to_contain_text("chosen by the model itself")
    for _ in range(3):
        visit.page.keyboard.press("ArrowRight")
    expect(tokens.nth(3)).to_be_focused()
    expect(bubble).to_contain_text("guessed by draft model, accepted")
    described = tokens.nth(3).get_attribute("aria-describedby")
    expect(bubble).to_have_id(str(described))
    visit.page.keyboard.press("End")
    expect(tokens.last).to_be_focused()
    visit.page.keyboard.press("Home")
    expect(tokens.first).to_be_focused()
    visit.page.keyboard.press("Escape")
    expect(bubble).to_be_hidden()


def test_tokens_stream_into_the_draft_view(visit: Visit) -> None:
    visit.page.get_by_role("button", name="Draft view").click()
    visit.api.held.add(QUESTION)
    visit.send(QUESTION)
    expect(visit.answers.last.locator(".token")).to_have_count(8)
    visit.api.release.set()
    expect(visit.answers.last.get_by_role("button", name="Regenerate")).to_be_visible()
    assert visit.answers.last.locator(".token").count() > 50
    visit.page.get_by_role("button", name="Draft view").click()
    expect(visit.answers.last.locator("strong")).to_be_visible()
