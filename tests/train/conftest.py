from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.engine import Engine, ModelOptions
from slipstream.train.recipe import Recipe
from tests.tiny_models import tiny_llama

WIDTH = 24


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with random weights and a chat template."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", seed=3)


@pytest.fixture
def engine(tiny: Path) -> Iterator[Engine]:
    options = ModelOptions(runtime="native", context_length=256, max_sequences=WIDTH + 1, threads=1)
    with Engine.load(tiny, speculation="off", options=options) as loaded:
        yield loaded


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(
        "head",
        "tiny",
        "0" * 32,
        tokens=1500,
        answer_tokens=24,
        prompt_tokens=96,
        layers=(1, 2, 2),
        vocabulary=96,
        batch=256,
        pack=64,
        epochs=1.0,
    )
