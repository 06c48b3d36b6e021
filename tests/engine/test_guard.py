"""Drafters that fail, at any moment: texts go on without them, and are what they are without."""

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream import Engine, ModelOptions
from slipstream.core.protocols import Drafter
from slipstream.draft import BaseDrafter, ModelDrafter, SuffixDrafter
from slipstream.errors import RuntimeUnavailableError
from slipstream.policy import AdaptivePolicy, CostTable, FixedLength
from tests.fakes import FakeModel
from tests.tiny_heads import bigram_target, knowing_head
from tests.tiny_models import Shape, tiny_llama

pytestmark = pytest.mark.usefixtures("drafters_may_fail")
PROMPTS = ("a", "abcabcabcabc", "The prompt that goes on for longer than one forward takes")
HOOKS = ("lag", "begin", "extend", "observe", "end", "observe_prompt")


class Breaking(BaseDrafter):
    """Another drafter, one of whose methods raises.

    after: calls of it that go well
    late:  whether it raises when its work is done, and not before
    """

    def __init__(self, inner: Drafter, hook: str, after: int = 0, *, late: bool = False) -> None:
        self.inner, self.hook, self.left, self.late = inner, hook, after, late
        self.name, self.requires, self.model, self.free = inner.name, inner.requires, inner.model, inner.free
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.closed = 0

    def _call(self, hook: str, *arguments: Any) -> Any:
        breaks = hook == self.hook and self.left == 0
        self.left -= hook == self.hook
        if breaks and not self.late:
            raise ZeroDivisionError(f"{hook} broke")
        result = getattr(self.inner, hook)(*arguments)
        if breaks:
            raise ZeroDivisionError(f"{hook} broke")
        return result

    def lag(self, *arguments: Any) -> int:
        return int(self._call("lag", *arguments))

    def begin(self, *arguments: Any) -> None:
        self.begun.append(arguments[0].id)
        self._call("begin", *arguments)

    def observe_prompt(self, *arguments: Any) -> None:
        self._call("observe_prompt", *arguments)

    def extend(self, *arguments: Any) -> None:
        self._call("extend", *arguments)

    def observe(self, *arguments: Any) -> None:
        self._call("observe", *arguments)

    def end(self, *arguments: Any) -> None:
        self.ended.append(arguments[0].id)
        self._call("end", *arguments)

    def close(self) -> None:
        self.closed += 1
        self._call("close")


def engine(drafters: list[Drafter], *, adaptive: bool = False) -> Engine:
    target = FakeModel(seed=1, order=1, max_sessions=3)
    costs = CostTable({1: 1e-3, 32: 2e-3}), [CostTable({1: 1e-5}), None]
    policy = AdaptivePolicy(*costs, trees=True, most_rows=target.max_rows) if adaptive else FixedLength(3)
    return Engine(target, drafters, policy)


def texts(engine: Engine, seed: int) -> list[list[int]]:
    options: dict[str, Any] = {"seed": seed, "max_tokens": 25, "temperature": 0.8, "logit_bias": {256: -100.0}}
    together = engine.generate_many(list(PROMPTS), **options)
    return [one.tokens for one in (*together, engine.generate(PROMPTS[0], **options))]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(HOOKS[:5]), st.integers(0, 40), st.booleans(), st.booleans(), st.integers(0, 2**20))
def test_whatever_fails_whenever_the_texts_are_those_of_plain_decoding(
    hook: str, after: int, late: bool, adaptive: bool, seed: int
) -> None:
    small = FakeModel(seed=1, order=1, max_sessions=3)
    breaking = Breaking(ModelDrafter(small), hook, after, late=late)
    with engine([]) as plain, engine([breaking, SuffixDrafter()], adaptive=adaptive) as one:
        assert texts(one, seed) == texts(plain, seed)
        failed = breaking.left < 0
        assert one.failed_drafters == (["model"] if failed else [])
        assert breaking.closed == 0
        if failed:
            asked = len(breaking.begun)
            assert one.generate("a", max_tokens=3).drafter == "suffix"
            assert len(breaking.begun) == asked
        assert one.target.open_sessions <= 3  # type: ignore[attr-defined]
    assert breaking.closed == 1
    assert sorted(breaking.begun) == sorted(breaking.ended)
    assert small.closed


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", ["head", "layers"])
def test_what_drafts_on_the_target_s_own_states_leaves_no_bit_of_them_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, late: bool, kind: str
) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    options = ModelOptions(runtime="native", context_length=256, max_sequences=3, threads=1)
    if kind == "head":
        path = bigram_target(tmp_path / "target.gguf", noise=0.1)
        draft = str(knowing_head(tmp_path / "head.gguf", path))
    else:
        shape = Shape(heads=4, key_value_heads=2, feed_forward=96, layers=6)
        path, draft = tiny_llama(tmp_path / "big.gguf", shape=shape), "layers:0-3"
    prompts: list[Any] = [[40, 41, 42, 40, 41], list(range(60, 130)), [50]]
    with Engine.load(path, draft=draft, speculation="on", options=options) as one:
        original = one.drafters
        one.drafters = []
        expected = [found.tokens for found in one.generate_many(prompts, seed=3, max_tokens=30)]
        again = one.generate(prompts[0], seed=4, max_tokens=30).tokens
        one.drafters = [Breaking(original[0], hook, 5 if hook in ("extend", "observe") else 1, late=late)]
        assert [found.tokens for found in one.generate_many(prompts, seed=3, max_tokens=30)] == expected
        assert one.generate(prompts[0], seed=4, max_tokens=30).tokens == again
        called = kind == "head" or hook not in ("observe_prompt", "lag")
        called &= hook != "lag"  # a fixed length does not ask
        assert one.failed_drafters == ([original[0].name] if called else [])


def test_it_is_said_once_and_the_traceback_to_who_looks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "slipstream.engine.guard")
    with engine([Breaking(SuffixDrafter(), "extend", 2)]) as one:
        one.generate("a", max_tokens=20, seed=1)
        one.generate("a", max_tokens=20, seed=1)
    said, traced = caplog.records
    assert (said.levelname, traced.levelname) == ("WARNING", "DEBUG")
    assert "The drafter suffix failed in extend" in said.getMessage()
    assert "ZeroDivisionError: extend broke" in said.getMessage()
    assert said.exc_info is None
    assert "Traceback" in caplog.text


def test_what_is_no_mistake_of_ours_is_said_in_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    class NoMemory(BaseDrafter):
        name = "greedy"

        def begin(self, *arguments: object) -> None:
            raise RuntimeUnavailableError("All memory is in use.")

    with engine([NoMemory()]) as one:
        assert len(one.generate("a", max_tokens=3, seed=1, logit_bias={256: -100.0}).tokens) == 3
    assert "The drafter greedy failed" in caplog.text
    assert "All memory is in use." in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_stops_a_program_is_no_failure_of_a_drafter(error: type[BaseException]) -> None:
    class Stopped(BaseDrafter):
        def extend(self, frontier: object) -> None:
            raise error

    with engine([Stopped()]) as one:
        with pytest.raises(error):
            one.generate("a", max_tokens=3)
        assert one.failed_drafters == []
