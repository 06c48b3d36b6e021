"""What every test may use: the real models, and when they may be missing."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["SLIPSTREAM_CORPUS"] = "off"
"""What tests make a model say is nothing that the user's own chats should be drafted from; some tests use their own."""

REAL_MODELS = {"smollm2", "gemma3_270m"}
"""Fixtures that fetch a model."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for a real model is a `model` test, whether or not it says so itself."""
    for item in items:
        if REAL_MODELS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.model)


def model_is_required() -> bool:
    """Continuous integration must not pass by skipping: CI=true, or SLIPSTREAM_REQUIRE_MODEL=1 by hand."""
    return any(
        os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("CI", "SLIPSTREAM_REQUIRE_MODEL")
    )


class _Heard(logging.Handler):
    """Keeps what is logged, with tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(logging.Formatter().format(record))


@pytest.fixture
def drafters_may_fail() -> None:
    """For tests whose drafters fail on purpose."""


@pytest.fixture(autouse=True)
def _drafters_do_not_fail(request: pytest.FixtureRequest) -> Iterator[None]:
    """A drafter that fails does no harm to a text, so that nothing else would show its mistake."""
    if "drafters_may_fail" in request.fixturenames:
        yield
        return
    heard, logger = _Heard(), logging.getLogger("slipstream.engine.guard")
    before = logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(before)
    logger.removeHandler(heard)
    if heard.messages:
        pytest.fail("\n".join(heard.messages))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Q4_1, about 100 MB), from the cache or fetched as a user would."""
    return _pulled("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_270m() -> Path:
    """Gemma 3 270M, the base model (Q4_K_M, about 250 MB), in the same way."""
    return _pulled("gemma3-270m")


def _pulled(name: str) -> Path:
    from slipstream.errors import DownloadError
    from slipstream.models import pull

    try:
        return pull(name)
    except DownloadError as error:
        if model_is_required():
            pytest.fail(f"the real model is required here and could not be fetched: {error}")
        pytest.skip(f"the real model could not be fetched: {error}")
