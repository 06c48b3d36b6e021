"""L3 on every architecture of the native runtime: the same ids with speculation on and off, on tiny random models.

And on Gemma 3 270M, which drafts for itself.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream import Engine
from slipstream.core.protocols import Drafter
from slipstream.draft import ModelDrafter, SuffixDrafter
from slipstream.policy import FixedLength
from slipstream.runtime.native import load_native
from slipstream.runtime.native.architectures import ARCHITECTURES
from tests.tiny_models import Shape, tiny_decoder

SHAPE = Shape(heads=2, key_value_heads=1, feed_forward=96, layers=3)
PROMPTS = ["the sand and the inner ring", "and then in another and another and another", "thin air on the ring" * 5]
SETTINGS = [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95, "seed": 5}]


def check(engine: Engine, drafters: list[Drafter], prompts: list[str], count: int) -> int:
    """Compare the ids of all prompts and settings; the draft tokens that were accepted."""
    accepted = 0
    for prompt in prompts:
        for setting in SETTINGS:
            engine.drafters = []
            plain = engine.generate(prompt, max_tokens=count, **setting)  # type: ignore[arg-type]
            engine.drafters = drafters
            fast = engine.generate(prompt, max_tokens=count, **setting)  # type: ignore[arg-type]
            assert fast.tokens == plain.tokens, (prompt, setting)
            accepted += fast.timings.draft_n_accepted
    return accepted


@pytest.fixture(params=ARCHITECTURES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Engine, list[Drafter]]]:
    """A tiny target, and beside lookup a copy that is a little wrong."""
    files = [
        tiny_decoder(tmp_path / f"{noise}.gguf", request.param, shape=SHAPE, storage="Q8_0", noise=noise)
        for noise in (0.0, 0.1)
    ]
    target, draft = (load_native(path, context_length=256, threads=1) for path in files)
    drafters: list[Drafter] = [SuffixDrafter(), ModelDrafter(draft)]
    yield Engine(target, policy=FixedLength(4)), drafters
    for model in (target, draft):
        model.close()


def test_the_same_ids_with_speculation_on_and_off(pair: tuple[Engine, list[Drafter]]) -> None:
    engine, drafters = pair
    assert check(engine, drafters, PROMPTS, 48) > 0


@pytest.mark.model
def test_gemma3_drafts_for_itself(gemma3_270m: Path) -> None:
    target, draft = (load_native(gemma3_270m, context_length=1024) for _ in range(2))
    engine = Engine(target, policy=FixedLength(4))
    drafters: list[Drafter] = [ModelDrafter(draft)]
    long = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")  # beyond a window
    assert check(engine, drafters, [long[:2500]], 16) > 15
    for model in (target, draft):
        model.close()
