"""What drafts where nothing is asked for: suffix lookup, and the head that comes with Slipstream for the target."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream import Engine, ModelOptions
from slipstream.draft import HeadDrafter, SuffixDrafter
from slipstream.engine import loading
from slipstream.errors import ModelFileError, RuntimeUnavailableError, UnsupportedModelError, UsageError
from slipstream.measure.memory_bill import memory_bill
from slipstream.models import shipped_heads
from slipstream.models.shipped_heads import TARGET_FINGERPRINT
from tests.shipping import ship
from tests.tiny_heads import Facts, bigram_target, head_arrays, tiny_head
from tests.tiny_models import tiny_llama

OPTIONS = ModelOptions(context_length=256, threads=1)
ALONE = "Suffix lookup drafts alone, without the head that comes with Slipstream: "


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bigram_target(tmp_path_factory.mktemp("files") / "target.gguf", noise=0.1)


@pytest.fixture
def head(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return ship(monkeypatch, tmp_path, target)


def load(target: Path, options: ModelOptions = OPTIONS, **more: str | None) -> Engine:
    return Engine.load(target, speculation="on", options=options, **more)  # type: ignore[arg-type]


def text(engine: Engine) -> list[int]:
    return engine.generate("the inner ring the inner", max_tokens=20, temperature=0.8, seed=3).tokens


def plain(target: Path) -> list[int]:
    with load(target, draft=None) as engine:
        assert engine.drafter_name == "none"
        return text(engine)


def test_the_head_of_a_target_drafts_without_being_asked_for(target: Path, head: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "another name"
    shutil.copy(target, elsewhere)
    for path in (target, elsewhere):
        with load(path) as engine:
            assert [type(one) for one in engine.drafters] == [SuffixDrafter, HeadDrafter]
            assert (engine.drafter_name, engine.default_draft) == ("suffix+head", "suffix+head")
            assert engine.notices == []
            assert text(engine) == plain(target)


def test_other_targets_have_suffix_lookup_alone(head: Path, tmp_path: Path) -> None:
    with load(tiny_llama(tmp_path / "other.gguf")) as engine:
        assert (engine.drafter_name, engine.default_draft, engine.notices) == ("suffix", "suffix", [])


def test_a_target_without_hidden_states_is_no_reason_for_words(target: Path, head: Path) -> None:
    options = replace(OPTIONS, runtime="llamacpp")
    with load(target, options) as engine:
        assert (engine.drafter_name, engine.default_draft, engine.notices) == ("suffix", "suffix", [])
    with pytest.raises(UnsupportedModelError, match=r"^head is a head, which needs hidden states .* llama.cpp"):
        load(target, options, draft="head")


@pytest.mark.parametrize("draft", ["suffix", "none", "head", "suffix+head", "head+suffix"])
def test_what_is_asked_for_drafts_and_nothing_else(target: Path, head: Path, draft: str) -> None:
    with load(target, draft=draft) as engine:
        assert engine.drafter_name == draft
        assert text(engine) == plain(target)


def test_speculation_that_is_off_needs_no_head(target: Path, head: Path) -> None:
    head.unlink()
    with Engine.load(target, speculation="off", options=OPTIONS) as engine:
        assert (engine.drafter_name, engine.notices) == ("none", [])


def test_a_head_of_ones_own_beside_it_has_another_name(target: Path, head: Path, tmp_path: Path) -> None:
    own = tiny_head(tmp_path / "own.gguf", target, seed=1)
    with load(target, draft=f"head+{own}") as engine:
        assert engine.drafter_name == "head+own"
        assert text(engine) == plain(target)


def test_targets_without_one_are_told_how_to_get_one(head: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf")
    told = rf"^No head for other.gguf comes with Slipstream; train one with `slipstream train-drafter {other}`, or"
    with pytest.raises(UsageError, match=told):
        load(other, draft="suffix+head")
    with pytest.raises(UsageError, match="takes nothing after a colon, and head:x has something"):
        load(other, draft="head:x")
    with pytest.raises(UsageError, match="must be auto, none, or different drafters"):
        load(other, draft="auto+head")


def missing(head: Path, target: Path) -> str:
    head.unlink()
    return f"{head} is not there; install Slipstream again, which brings this head."


def cut_off(head: Path, target: Path) -> str:
    head.write_bytes(head.read_bytes()[:2000])
    return f"{head} "


def empty(head: Path, target: Path) -> str:
    head.write_bytes(b"")
    return f"{head} "


def of_another_target(head: Path, target: Path) -> str:
    tiny_head(head, target, extra={TARGET_FINGERPRINT: "0" * 32})
    return f"{head} is not the head for tiny that Slipstream brings: its slipstream.head.target_fingerprint"


def not_all_numbers(head: Path, target: Path) -> str:
    arrays = head_arrays(Facts.of(target))
    arrays["fc.weight"][:] = np.nan
    known = shipped_heads.SHIPPED[0].fingerprint
    tiny_head(head, target, arrays=arrays, extra={TARGET_FINGERPRINT: known})
    return f"{head} is no usable head: its weights are not all numbers"


@pytest.mark.parametrize("damage", [missing, cut_off, empty, of_another_target, not_all_numbers])
def test_a_damaged_head_is_a_sentence_and_suffix_drafts(target: Path, head: Path, damage: object) -> None:
    told = damage(head, target)  # type: ignore[operator]
    with load(target) as engine:
        assert engine.drafter_name == "suffix"
        [notice] = engine.notices
        assert notice.startswith(ALONE + told)
        assert "\n" not in notice
        assert text(engine) == plain(target)
        with engine.sharing(speculation="on") as another:
            assert another.drafter_name == "suffix"
            assert another.notices == [notice]
    with pytest.raises(ModelFileError) as refused:
        load(target, draft="head")
    assert str(refused.value).startswith(told)


def test_costs_are_measured_of_what_was_loaded(target: Path, head: Path) -> None:
    not_all_numbers(head, target)
    with Engine.load(target, options=OPTIONS) as engine:
        assert engine.drafter_name == "suffix"
        assert text(engine) == plain(target)


def test_where_there_is_no_memory_for_it_suffix_drafts(
    target: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeUnavailableError("tiny-head.gguf needs 9 GB of memory.")

    monkeypatch.setattr(loading, "load_head", full)
    with load(target) as engine:
        assert engine.drafter_name == "suffix"
        assert engine.notices == [f"{ALONE}tiny-head.gguf needs 9 GB of memory."]
    with pytest.raises(RuntimeUnavailableError, match="needs 9 GB"):
        load(target, draft="head")


def test_bills_count_it(target: Path, head: Path) -> None:
    with load(target, draft="suffix") as one, load(target) as engine:
        drafter = engine.drafters[1]
        assert drafter.model is not None
        assert engine.memory()["drafter"] == one.memory()["drafter"] + drafter.model.memory()
        bill = memory_bill(engine.drafters, 1000, engine.draft_files)
        assert bill.total == engine.memory()["drafter"]
        assert [file.path for file in engine.draft_files] == [head]
        assert sum(bill.formats.values()) > 0


def test_an_engine_of_parts_has_no_default(target: Path) -> None:
    with load(target, draft=None) as engine, pytest.raises(UsageError, match="made knows the file"):
        _ = Engine(engine.target).default_draft


@pytest.fixture
def real(smollm2: Path) -> Path:
    """The real model, whose head is in the package."""
    return smollm2


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_smollm2_is_drafted_for_by_its_head(real: Path, temperature: float) -> None:
    options = ModelOptions(context_length=512)
    prompt = [{"role": "user", "content": "How do bees make honey?"}]
    with Engine.load(real, draft="head", speculation="on", options=options) as fast:
        with fast.sharing(draft=None, speculation="off") as slow:
            expected = slow.generate(prompt, seed=7, temperature=temperature, max_tokens=64)
        found = fast.generate(prompt, seed=7, temperature=temperature, max_tokens=64)
    assert found.tokens == expected.tokens
    assert found.statistics.accepted > 0.15 * found.statistics.tested, (
        "a head of random weights is right of one in a thousand"
    )


def test_smollm2_s_default_is_suffix_and_head(real: Path) -> None:
    with Engine.load(real, speculation="on", options=ModelOptions(context_length=512)) as engine:
        assert (engine.drafter_name, engine.notices) == ("suffix+head", [])
