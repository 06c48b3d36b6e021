"""A browser for all tests here; a server and pages for each test.

Not for the whole session: while Playwright runs, its event loop does, and others could not start theirs.
"""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.measure import browser
from tests.server.fake_api import FakeApi, serving
from tests.server.static.visit import ANSWER, QUESTION, Opener, Visit


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = browser.find()
    if program is None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail("continuous integration needs a browser here: apt-get install chromium")
        pytest.skip("there is no Chromium on this machine")
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(answers={QUESTION: ANSWER})


@pytest.fixture
def visit_page(chromium: Browser, api: FakeApi) -> Iterator[Opener]:
    with serving(api.app()) as address:
        opener = Opener(chromium, api, address)
        yield opener
        api.release.set()
        opener.check()


@pytest.fixture
def visit(visit_page: Opener) -> Visit:
    return visit_page()
