"""Keys, busy and vanished servers, broken streams, and answers that mean harm."""

import pytest
from playwright.sync_api import expect

from tests.server.fake_api import FakeApi
from tests.server.static.visit import QUESTION, Opener, Visit
from tests.server.test_page import HOSTILE, KEPT


def test_a_key_is_asked_for_kept_for_the_tab_and_sent(visit_page: Opener, api: FakeApi) -> None:
    api.key = "s3cret"
    visit = visit_page(connected=False)
    dialog = visit.page.get_by_role("dialog")
    expect(dialog).to_contain_text("This server wants an API key")
    expect(visit.page.get_by_label("API key", exact=True)).to_be_focused()
    visit.page.keyboard.type("wrong")
    visit.page.keyboard.press("Enter")
    expect(dialog).to_contain_text("does not accept the key")
    visit.page.get_by_label("API key", exact=True).fill("s3cret")
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator("#model")).to_have_text("tiny-model-Q4_0")
    expect(dialog).to_be_hidden()
    visit.ask("Hello")
    visit.page.reload()
    expect(visit.page.locator("#model")).to_have_text("tiny-model-Q4_0")
    expect(dialog).to_be_hidden()
    assert "s3cret" not in visit.page.evaluate("() => JSON.stringify({...localStorage}) + document.cookie")
    visit.expect_problem("401")


def test_without_a_key_the_page_says_what_is_missing(visit_page: Opener, api: FakeApi) -> None:
    api.key = "s3cret"
    visit = visit_page(connected=False)
    visit.page.get_by_role("button", name="Cancel").click()
    expect(visit.page.locator("#notices")).to_contain_text("The server wants an API key.")
    visit.send("Hello")
    expect(visit.page.get_by_role("dialog")).to_be_visible()
    visit.page.keyboard.press("Escape")
    expect(visit.answers.last.get_by_role("alert")).to_have_text("The server wants an API key.")
    visit.answers.last.get_by_role("button", name="Try again").click()
    visit.page.get_by_label("API key", exact=True).fill("s3cret")
    visit.page.keyboard.press("Enter")
    expect(visit.answers.last).to_contain_text("You said: Hello")
    visit.expect_problem("401")


def test_a_busy_server_is_explained_and_can_be_tried_again(visit: Visit) -> None:
    visit.api.refuse = (503, "All 32 places in the queue are taken.", {"Retry-After": "5"})
    visit.send("Hello")
    alert = visit.answers.last.get_by_role("alert")
    expect(alert).to_have_text("All 32 places in the queue are taken. Try again in 5 seconds.")
    visit.api.refuse = None
    visit.answers.last.get_by_role("button", name="Try again").click()
    expect(visit.answers.last).to_contain_text("You said: Hello")
    expect(visit.answers).to_have_count(1)
    visit.expect_problem("503")


def test_after_a_failure_the_next_message_goes_with_the_one_before(visit: Visit) -> None:
    visit.api.refuse = (503, "Busy.", {})
    visit.send("One")
    expect(visit.answers.last.get_by_role("alert")).to_have_text("Busy.")
    visit.api.refuse = None
    visit.ask("Two")
    assert visit.api.requests[-1]["messages"] == [{"role": "user", "content": "One\n\nTwo"}]
    visit.expect_problem("503")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [("error", "The model ran out of memory."), ("cut", "The connection ended before the answer was complete.")],
)
def test_an_answer_that_breaks_off_is_kept_and_explained(visit: Visit, how: str, sentence: str) -> None:
    visit.api.break_off = how
    visit.send(QUESTION)
    expect(visit.answers.last.get_by_role("alert")).to_have_text(sentence)
    expect(visit.answers.last).to_contain_text("A bicycle stays upright because")
    visit.page.reload()
    expect(visit.answers.last).to_contain_text(sentence)


def test_a_server_that_is_gone_is_explained(visit: Visit) -> None:
    visit.page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    visit.send("Hello")
    alert = visit.answers.last.get_by_role("alert")
    expect(alert).to_have_text("The server does not answer. Is slipstream serve still running?")
    visit.page.reload()
    expect(visit.page.locator("#notices")).to_contain_text("The server does not answer.")
    visit.page.unroute("**/v1/**")
    visit.page.locator("#notices").get_by_role("button", name="Try again").click()
    expect(visit.page.locator("#model")).to_have_text("tiny-model-Q4_0")
    expect(visit.page.locator("#notices")).to_be_empty()
    visit.expect_problem("ERR_CONNECTION_REFUSED")


def test_hostile_answers_stay_inert(visit: Visit) -> None:
    for start in range(3):
        visit.api.answers[f"Hostile {start}"] = "\n\n".join([*HOSTILE[start::3], "End."])
        visit.ask(f"Hostile {start}")
        expect(visit.answers.last.locator(".markdown > p").last).to_have_text("End.")
    visit.page.get_by_role("button", name="Draft view").click()
    visit.page.get_by_role("button", name="Draft view").click()
    names = visit.page.evaluate(
        """() => [...new Set([...document.querySelectorAll(".markdown *")].map((node) => node.localName))]"""
    )
    assert set(names) <= {*KEPT.split(), "div", "span", "button"}  # the last three are the page's own frames
    handlers = visit.page.evaluate(
        """() => [...document.querySelectorAll(".markdown *")].flatMap((node) => node.getAttributeNames())
            .filter((name) => name.startsWith("on") || ["style", "src", "srcdoc"].includes(name))"""
    )
    assert handlers == []
    links = visit.page.evaluate(
        """() => [...document.querySelectorAll(".markdown a[href]")].map((link) => link.protocol)"""
    )
    assert set(links) <= {"http:", "https:", "mailto:"}


def test_even_html_that_slipped_through_could_not_run(visit: Visit) -> None:
    """The page's own policy is the last wall: without the sanitiser nothing runs and nothing is loaded."""
    evil = (
        '<img src="http://127.0.0.1:9/x.png"><p onclick="document.title = 1">x</p><script>document.title = 2</script>'
    )
    visit.page.route("**/page/markdown", lambda route: route.fulfill(json={"html": evil}))
    visit.ask("Hello")
    visit.answers.last.locator("p", has_text="x").last.click()
    expect(visit.page).to_have_title("Slipstream")
    refused = visit.page.evaluate(
        """() => { try { document.body.innerHTML = "<p>"; return "" } catch (error) { return error.name } }"""
    )
    assert refused == "TypeError"
    visit.expect_problem("Content Security Policy")
    visit.expect_problem("TrustedHTML")
    assert visit.refused == ["http://127.0.0.1:9/x.png"]
    visit.requests.remove("http://127.0.0.1:9/x.png")


def test_the_browser_would_notice_problems_and_foreign_requests(visit: Visit) -> None:
    """What these tests rely on. The page's own policy would not even let the request begin."""
    visit.page.goto("about:blank")
    visit.page.evaluate(
        """() => { console.error("seen"); setTimeout(() => { throw new Error("thrown") });
            return fetch("http://127.0.0.1:9/").catch(() => {}) }"""
    )
    assert visit.requests.pop() == "http://127.0.0.1:9/"
    assert len(visit.unexpected) >= 3
    for text in ("seen", "thrown", "ERR_"):
        visit.expect_problem(text)
