"""The page in a browser, on a fake API: what a user does, and what may not happen meanwhile."""

from playwright.sync_api import Browser, Locator, Page, Request, expect

from tests.server.fake_api import FakeApi

SCHEMES = ("light", "dark")
PHONE, DESKTOP = 360, 1400
QUESTION = "Explain how a bicycle stays upright."
ANSWER = """A bicycle stays upright because it **steers into the fall**.

1. The *trail* of the fork turns the wheel.
2. The mass in front of the axis helps.

```python
def merge(left, right):
    return sorted(left + right)
```

| speed | stable |
|---|--:|
| 3 m/s | no |
"""
WIDE = (
    "Donaudampfschifffahrtsgesellschaft" * 5
    + "\n\n```\n"
    + "x = 1; " * 60
    + "\n```\n\n"
    + "|wide" * 40
    + "|\n"
    + "|-" * 40
)


class Visit:
    """A page that is open on a fake API.

    requests: what the page asked for; refused: those of them that its own policy kept from being sent
    problems: what the console reported as an error or a warning, what the page threw, and dialogs it opened; a test
    that ends with some has failed unless it expected them
    """

    def __init__(self, browser: Browser, api: FakeApi, address: str, *, width: int, scheme: str, script: str) -> None:
        self.api = api
        self.address = address
        self.problems: list[str] = []
        self._expected: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
        self.context.set_default_timeout(20_000)
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.refused: list[str] = []
        self.context.on("requestfailed", self._failed)
        self.context.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page: Page = self.context.new_page()
        self.page.add_init_script(script)
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(address)

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning", "assert"):
            self.problems.append(text)

    def _failed(self, request: Request) -> None:
        if request.failure == "csp":
            self.refused.append(request.url)

    def expect_problem(self, text: str) -> None:
        """The browser itself reports refused requests: this is one, and may come again."""
        assert any(text in problem for problem in self.problems), self.problems
        self._expected.append(text)

    @property
    def unexpected(self) -> list[str]:
        return [problem for problem in self.problems if not any(text in problem for text in self._expected)]

    @property
    def prompt(self) -> Locator:
        return self.page.locator("#prompt")

    @property
    def answers(self) -> Locator:
        return self.page.get_by_role("article", name="Answer")

    def send(self, text: str) -> None:
        self.prompt.fill(text)
        self.prompt.press("Enter")

    def ask(self, text: str) -> None:
        """Sends a message and waits for the whole answer."""
        before = self.answers.count()
        self.send(text)
        expect(self.answers).to_have_count(before + 1)
        expect(self.answers.last.get_by_role("button", name="Regenerate")).to_be_visible()

    def style(self, element: Locator, name: str) -> str:
        value: str = element.evaluate("(node, name) => getComputedStyle(node).getPropertyValue(name)", name)
        return value


class Opener:
    """Opens pages on one server; at the end none of them may have had problems or asked anybody else."""

    def __init__(self, browser: Browser, api: FakeApi, address: str) -> None:
        self._browser = browser
        self._api = api
        self._address = address
        self.visits: list[Visit] = []

    def __call__(
        self, *, width: int = DESKTOP, scheme: str = "light", script: str = "", path: str = "/", connected: bool = True
    ) -> Visit:
        address = self._address + path
        visit = Visit(self._browser, self._api, address, width=width, scheme=scheme, script=script)
        self.visits.append(visit)
        if connected:
            expect(visit.page.locator("#model")).to_have_text("tiny-model-Q4_0")
        return visit

    def check(self) -> None:
        for visit in self.visits:
            visit.context.close()
            assert visit.unexpected == []
            assert [url for url in visit.requests if not url.startswith((self._address + "/", "data:"))] == []
