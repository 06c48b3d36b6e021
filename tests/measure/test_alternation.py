from collections.abc import Sequence
from pathlib import Path
from time import sleep

import pytest

from slipstream.core.protocols import Growth
from slipstream.draft.base import BaseDrafter
from slipstream.engine import Engine, ModelOptions
from slipstream.measure.alternation import LENGTH, alternate
from tests.measure.engines import FakeEngine, fake_engine
from tests.tiny_heads import bigram_target, tiny_head

FIRST, REST = 0.012, 0.004


class Slow(BaseDrafter):
    """Two speeds; `limit` tokens of a draft, none of them right."""

    name = "slow"

    def __init__(self, limit: int = LENGTH) -> None:
        self.limit, self.closed, self.begun = limit, False, 0

    def begin(self, sequence: object, reused_length: int) -> None:
        self.begun += 1

    def end(self, sequence: object) -> None:
        self.begun -= 1

    def extend(self, frontier: Sequence[Growth]) -> None:
        [growth] = frontier
        sleep(REST if growth.draft.tokens else FIRST)
        if len(growth.draft) < self.limit:
            growth.draft.append(257, source=self.name)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def plain() -> FakeEngine:
    return fake_engine()


def test_first_steps_and_others_are_told_apart_and_the_drafter_stays_open(plain: FakeEngine) -> None:
    drafter = Slow()
    found = alternate(plain, drafter, [1, 2, 3], {"seed": 1, "max_tokens": 12})
    assert found is not None
    assert found.first == pytest.approx(FIRST, rel=0.5)
    assert found.rest == pytest.approx(REST, rel=0.5)
    assert 0 < found.plain < FIRST
    assert 0 < found.verify < FIRST
    assert not drafter.closed
    assert drafter.begun == 0


def test_without_a_whole_draft_there_is_nothing_to_say(plain: FakeEngine) -> None:
    assert alternate(plain, Slow(limit=2), [1, 2, 3], {"seed": 1, "max_tokens": 12}) is None


def test_a_head_sees_the_hidden_states(tmp_path: Path) -> None:
    target = bigram_target(tmp_path / "target.gguf", noise=0.1)
    head = tiny_head(tmp_path / "head.gguf", target)
    with Engine.load(target, speculation="off", options=ModelOptions(context_length=256, threads=1)) as engine:
        sharing = engine.sharing(draft=head, speculation="on")
        found = alternate(engine, sharing.drafters[0], [*range(5, 25)], {"seed": 1, "temperature": 0.8})
        sharing.close()
    assert found is not None
    assert found.first > 0
