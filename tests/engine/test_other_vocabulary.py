"""SmolLM2 and Gemma 3, which cut texts differently, draft for each other on both runtimes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream import Engine, ModelOptions
from slipstream.draft import OtherTokenizerDrafter
from slipstream.policy import FixedLength
from tests.engine.test_lossless import ALLOWED_GAP, parting_gap

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n    ",
    "Die längste Brücke über den Rhein – und warum sie so heißt:",
    "One, two, three, 4, 5, 6,",
    "日本語の文章と emoji 🙂🙃🙂🙃",
)
TOKENS = 24


@pytest.fixture(
    scope="module",
    params=["smollm2 native native", "smollm2 llamacpp native", "gemma native native", "gemma native llamacpp"],
)
def engine(request: pytest.FixtureRequest, smollm2: Path, gemma3_270m: Path) -> Iterator[Engine]:
    """Named after the target, its runtime and the draft model's."""
    name, runtime, draft_runtime = request.param.split()
    target, draft = (smollm2, gemma3_270m) if name == "smollm2" else (gemma3_270m, smollm2)
    options = ModelOptions(runtime, draft_runtime, context_length=512, max_sequences=3)
    with Engine.load(target, draft=str(draft), speculation="on", options=options) as engine:
        assert isinstance(engine.drafters[0], OtherTokenizerDrafter)
        yield engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_ids_with_speculation_on_and_off(engine: Engine, temperature: float) -> None:
    options: dict[str, Any] = {"temperature": temperature, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 7}
    drafters, accepted, partings = engine.drafters, 0, []
    try:
        for prompt in PROMPTS:
            engine.drafters = []
            plain = engine.generate(prompt, max_tokens=TOKENS, **options)
            engine.drafters = drafters
            for siblings in (1, 3) if engine.target.capabilities.trees else (1,):
                engine.policy = FixedLength(4, siblings)
                fast = engine.generate(prompt, max_tokens=TOKENS, **options)
                accepted += fast.statistics.accepted
                if fast.tokens != plain.tokens:
                    partings.append(parting_gap(engine, plain, fast, options))
    finally:
        engine.drafters = drafters
    assert accepted > 20
    assert not (engine.target.capabilities.bit_exact_rows and partings)
    assert all(gap <= ALLOWED_GAP for gap in partings), partings


def test_several_texts_at_once(engine: Engine) -> None:
    if not engine.target.capabilities.bit_exact_rows:
        pytest.skip("rows of several texts are not those of one")
    engine.policy = FixedLength(4, 3)
    many = engine.generate_many(PROMPTS[:3], seed=5, temperature=0.8, max_tokens=TOKENS)
    for prompt, one in zip(PROMPTS, many, strict=False):
        assert one.tokens == engine.generate(prompt, seed=5, temperature=0.8, max_tokens=TOKENS).tokens
    assert sum(one.statistics.accepted for one in many) > 0
