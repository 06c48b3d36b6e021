from collections.abc import Sequence

import numpy as np
import pytest

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Logits
from slipstream.core.sampling import Sampler
from slipstream.draft import ModelDrafter
from slipstream.engine import Engine
from slipstream.measure.tracing import trace, usual
from slipstream.policy import FixedLength
from tests.fakes import FakeModel

PROMPT = "The prompt"


class Near(FakeModel):
    """Nearly what `FakeModel(seed=1, order=1)` says: a draft model that is right about half of the time."""

    def __init__(self) -> None:
        super().__init__(seed=1, order=1)

    def row(self, context: Sequence[int]) -> Logits:
        off = np.random.default_rng([9, context[-1]]).standard_normal(self.vocabulary.size)
        return (super().row(context) + 1.5 * off).astype(np.float32)


def target() -> FakeModel:
    return FakeModel(seed=1, order=1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_a_trace_tells_the_rounds_of_every_length(temperature: float, length: int) -> None:
    options = {"seed": 5, "max_tokens": 60, "temperature": temperature, "top_p": 0.9, "presence_penalty": 6.0}
    with Engine(target()) as engine:
        plain = engine.generate(PROMPT, **options)  # type: ignore[arg-type]
    params = SamplingParams(**{name: value for name, value in options.items() if name != "max_tokens"})  # type: ignore[arg-type]
    drafter = ModelDrafter(Near())
    sampler = Sampler(params, FakeModel().vocabulary.size, plain.prompt_tokens)
    traced = trace(drafter, plain.prompt_tokens, plain.tokens, sampler, siblings=1)
    assert traced is not None
    right = [
        bool(level.tokens) and level.tokens[0] == token
        for level, token in zip(traced.levels, plain.tokens, strict=True)
    ]
    with Engine(target(), ModelDrafter(Near()), FixedLength(length)) as engine:
        drafted = engine.generate(PROMPT, **options)  # type: ignore[arg-type]
    assert drafted.tokens == plain.tokens
    assert 0.2 < sum(right) / len(right) < 0.9
    place = 0
    for record in drafted.rounds:
        expected = next((n for n in range(record.drafted) if not right[place + n]), record.drafted)
        assert record.accepted == expected
        place += record.committed


def test_siblings_are_ranked_and_different() -> None:
    drafter = ModelDrafter(FakeModel(seed=1))
    sampler = Sampler(SamplingParams(seed=1), 258, [1, 2])
    traced = trace(drafter, [1, 2], [3, 4, 5], sampler, siblings=3)
    assert traced is not None
    assert [len(set(level.tokens)) for level in traced.levels] == [3, 3, 3]
    assert traced.reading > 0


def test_it_can_be_stopped_and_leaves_nothing_open() -> None:
    model = FakeModel(max_sessions=1)
    drafter = ModelDrafter(model)
    sampler = Sampler(SamplingParams(seed=1), 258, [1])
    assert trace(drafter, [1], [2, 3], sampler, siblings=1, should_stop=lambda: True) is None
    assert trace(drafter, [1], [2, 3], sampler, siblings=1) is not None


def test_what_is_usual_heeds_slow_ones_but_not_hiccups() -> None:
    assert usual([1.0, 1.0, 2.0]) == pytest.approx(4 / 3)
    assert usual([1.0, 1.0, 100.0]) == pytest.approx(5 / 3)
