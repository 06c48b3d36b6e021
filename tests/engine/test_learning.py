"""The adaptive policy of real engines: what it measures, remembers and shares. Tiny models; nothing here is timed."""

import json
from pathlib import Path

import pytest

from slipstream import Engine, ModelOptions
from slipstream.draft import SuffixDrafter
from slipstream.engine import learning
from slipstream.errors import SlipstreamError, UsageError
from slipstream.policy import AdaptivePolicy, FixedLength
from tests.engine.test_engine import DRAFTERS, SmallVocabulary
from tests.fakes import FakeModel
from tests.tiny_models import tiny_llama

OPTIONS = ModelOptions(threads=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path))
    return tmp_path / "policy"


def policy_of(engine: Engine) -> AdaptivePolicy:
    assert isinstance(engine.policy, AdaptivePolicy)
    return engine.policy


def count_profiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    measured: list[str] = []
    inner = learning.profile

    def profile(model: object, **options: bool) -> object:
        measured.append(model.name)  # type: ignore[attr-defined]
        return inner(model, 0.05, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(learning, "profile", profile)
    return measured


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_plain_decoding(drafter: str, temperature: float) -> None:
    """With whatever shapes, costs and probes the policy comes to; several sequences at once, too."""
    vocabulary = SmallVocabulary(6, frozenset({5}))
    prompts = [[0, 1, 2, 3] * 4, [1, 2] * 5, [3]]

    def texts(policy: AdaptivePolicy | None) -> list[list[int]]:
        target = FakeModel(vocabulary, max_rows=200, max_sessions=8)
        engine = Engine(target, [] if policy is None else DRAFTERS[drafter](vocabulary), policy)
        alone = [
            engine.generate(prompt, seed=seed, temperature=temperature, max_tokens=60).tokens
            for seed in range(6)
            for prompt in prompts
        ]
        together = engine.generate_many(prompts, seed=3, temperature=temperature, max_tokens=60)
        return alone + [one.tokens for one in together]

    free = learning.CostTable({1: 1e-3, 64: 1.1e-3})  # all that anybody proposes is worth a look
    assert texts(AdaptivePolicy(free, trees=True)) == texts(None)


def test_costs_are_measured_once_and_remembered(tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = count_profiles(monkeypatch)
    monkeypatch.setattr(learning, "fits", lambda model, table: True)
    for _ in range(2):
        with Engine.load(tiny, draft=f"suffix+{tiny}", options=OPTIONS) as engine:
            assert [table is None for table in policy_of(engine).steps] == [True, False]
            engine.generate("abcabc", max_tokens=12, seed=1)
    assert measured == ["tiny.gguf"], "the copy has the same key, and the second program recalls it"
    assert {path.name.partition("-")[0] for path in cache.iterdir()} == {"costs", "learned"}


def test_a_table_that_does_not_fit_any_more_is_measured_anew(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = count_profiles(monkeypatch)
    monkeypatch.setattr(learning, "fits", lambda model, table: False)
    for _ in range(2):
        Engine.load(tiny, draft="suffix", options=OPTIONS).close()
    assert len(measured) == 2


def test_acceptance_and_the_balance_outlive_the_program(
    tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_profiles(monkeypatch)
    with Engine.load(tiny, draft="suffix", options=OPTIONS) as engine:
        engine.generate("abcabcabcabc", max_tokens=60, seed=1, temperature=0)
        seen, balance = policy_of(engine).acceptance.seen("suffix"), policy_of(engine).bank.balance
        tries = policy_of(engine).tries
    assert seen > 0
    assert tries > 0
    with Engine.load(tiny, draft="suffix", options=OPTIONS) as engine:
        assert 0 < policy_of(engine).acceptance.seen("suffix") <= min(seen, learning.REMEMBERED) + 0.01
        assert policy_of(engine).bank.balance == pytest.approx(balance)
        assert policy_of(engine).tries == pytest.approx(tries)
    with Engine.load(tiny, draft=f"suffix+{tiny}", options=OPTIONS) as engine:
        assert policy_of(engine).acceptance.seen("suffix") == 0, "other drafters, another account"


def test_damaged_memories_are_measured_anew(tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count_profiles(monkeypatch)
    with Engine.load(tiny, draft="suffix", options=OPTIONS) as engine:
        engine.generate("abcabc", max_tokens=12, seed=1)
    for path in cache.iterdir():
        value = json.loads(path.read_text())
        value["seconds"] = value["nodes"] = value["balance"] = "nonsense"
        path.write_text(json.dumps(value))
    with Engine.load(tiny, draft="suffix", options=OPTIONS) as engine:
        engine.generate("abcabc", max_tokens=12, seed=1)


def test_engines_share_a_target_and_close_only_what_is_theirs(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = count_profiles(monkeypatch)
    monkeypatch.setattr(learning, "fits", lambda model, table: False)
    with Engine.load(tiny, speculation="off", options=OPTIONS) as plain:
        expected = plain.generate("hello", max_tokens=20, seed=3).tokens
        for draft in ("suffix", str(tiny)):
            for speculation in ("auto", "on", "off"):
                with plain.sharing(draft=draft, speculation=speculation) as other:  # type: ignore[arg-type]
                    assert other.target is plain.target
                    assert bool(other.drafters) == (speculation != "off")
                    assert other.generate("hello", max_tokens=20, seed=3).tokens == expected
        with plain.sharing(draft=[SuffixDrafter(), SuffixDrafter()], speculation="on", num_draft_tokens=2) as other:
            assert isinstance(other.policy, FixedLength)
            assert len(other.drafters) == 2
        with pytest.raises(SlipstreamError):
            plain.sharing(draft="no such model")
        assert plain.generate("hello", max_tokens=20, seed=3).tokens == expected
    assert len(measured) == 2, "one target and one draft model"


def test_an_engine_of_parts_cannot_share() -> None:
    with pytest.raises(UsageError, match="made can share"):
        Engine(FakeModel(SmallVocabulary(6))).sharing(draft="suffix")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"speculation": "maybe"}, "speculation must be"),
        ({"max_slowdown": 2}, "max_slowdown must be .* from 0 to 1"),
        ({"num_draft_tokens": 65}, "from 0 to 64"),
        ({"draft": 7}, "draft must be a name"),
        ({"draft": [SuffixDrafter(), "suffix"]}, "draft must be a name"),
        ({"draft": "suffix+"}, "different drafters joined by plus signs"),
        ({"draft": "suffix+suffix"}, "different drafters joined by plus signs"),
    ],
)
def test_impossible_arguments_say_what_is_possible(tiny: Path, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Engine.load(tiny, options=OPTIONS, **arguments)  # type: ignore[arg-type]


def test_several_models_draft_beside_each_other(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count_profiles(monkeypatch)
    other = tiny_llama(tmp_path / "a+b.gguf", noise=0.3)
    with Engine.load(tiny, draft=f"suffix+{tiny}+{other}", options=OPTIONS) as engine:
        assert [drafter.name for drafter in engine.drafters] == ["suffix", "tiny", "a+b"]
        with engine.sharing(speculation="off") as plain:
            expected = plain.generate("hello hello", max_tokens=20, seed=3).tokens
        assert engine.generate("hello hello", max_tokens=20, seed=3).tokens == expected
