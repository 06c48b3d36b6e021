"""`--draft lowbit`: a copy of the target in four bits, made once, which drafts for it."""

import errno
from pathlib import Path

import pytest

from slipstream import Engine, ModelOptions
from slipstream.cli import settings
from slipstream.engine import loading, low_bit
from slipstream.engine.layers import pruned_copy
from slipstream.engine.low_bit import bits_per_weight, copies_of, low_bit_copy
from slipstream.errors import RuntimeUnavailableError, StorageError, UsageError
from slipstream.models import cache_directory, profiles, read_model_header
from slipstream.models.gguf import GgufHeader
from slipstream.runtime.llamacpp import binding
from tests.tiny_models import Shape, tiny_llama

SHAPE = Shape(width=128, heads=2, feed_forward=256)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "big.gguf", storage="F16", shape=SHAPE)


def copies() -> list[str]:
    return sorted(path.name for path in (cache_directory() / "copies").iterdir() if path.suffix != ".lock")


def silent(fraction: float) -> None:
    """Nobody listens."""


def test_it_is_made_once_and_named_after_the_target_s_bytes(target: Path) -> None:
    header = read_model_header(target)
    told: list[float] = []
    path = low_bit_copy(header, "", told.append)
    assert told[0] == 0.0
    assert told[-1] == 1.0
    before = path.stat().st_mtime_ns
    assert low_bit_copy(header, "Q4_0", told.append) == path
    assert path.stat().st_mtime_ns == before
    assert copies() == [path.name]
    other = tiny_llama(target.with_name("other.gguf"), storage="F16", shape=SHAPE, seed=1)
    assert low_bit_copy(read_model_header(other), "q4_0", silent) != path
    assert bits_per_weight(read_model_header(path)) < 6 < 15 < bits_per_weight(header)


def test_copies_that_are_there_are_found_by_their_types(target: Path) -> None:
    header = read_model_header(target)
    assert copies_of(header) == {}
    paths = {kind: low_bit_copy(header, kind, silent) for kind in ("q4_0", "q5_1")}
    other = tiny_llama(target.with_name("other.gguf"), storage="F16", shape=SHAPE, seed=1)
    low_bit_copy(read_model_header(other), "q4_0", silent)
    pruned_copy(header, (0,), silent)
    assert copies_of(header) == paths


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_work_that_is_interrupted_leaves_nothing(
    target: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def half(header: GgufHeader, destination: Path, *more: object) -> None:
        destination.write_bytes(b"GGUF")
        raise error

    monkeypatch.setattr(low_bit, "write_low_bit", half)
    with pytest.raises((KeyboardInterrupt, StorageError)) as caught:
        low_bit_copy(read_model_header(target), "", silent)
    assert copies() == []
    if isinstance(error, OSError):
        assert "disk is full" in str(caught.value)


def test_what_a_killed_process_left_is_cleared_away(target: Path) -> None:
    path = low_bit_copy(read_model_header(target), "", silent)
    path.unlink()
    left = path.parent / f".{path.stem}-abc.part"
    left.mkdir()
    (left / "half.gguf").write_bytes(b"GGUF")
    assert low_bit_copy(read_model_header(target), "", silent) == path
    assert not left.exists()


def test_a_model_of_few_bits_is_refused(tmp_path: Path) -> None:
    small = tiny_llama(tmp_path / "small.gguf", storage="Q4_0", shape=SHAPE)
    with pytest.raises(UsageError, match="a low-bit copy pays for models of 8 or more"):
        Engine.load(small, draft="lowbit")


def test_other_types_are_llama_cpp_s(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = read_model_header(target)
    path = low_bit_copy(header, "q5_1", silent)
    assert {one.type.name for one in read_model_header(path).tensors if len(one.shape) > 1} <= {"Q5_1", "Q6_K", "Q8_0"}
    with pytest.raises(UsageError, match="q9_z"):
        low_bit_copy(header, "q9_z", silent)
    monkeypatch.setattr(binding, "installed", lambda: False)

    def missing() -> None:
        raise RuntimeUnavailableError("llama.cpp is not installed.")

    monkeypatch.setattr(binding, "library", missing)
    with pytest.raises(RuntimeUnavailableError, match="not installed"):
        low_bit_copy(header, "q5_0", silent)
    assert copies() == [path.name]


@pytest.mark.parametrize("draft", ["lowbit", "suffix+lowbit", "lowbit:q4_0"])
def test_it_drafts_and_the_text_is_the_same(target: Path, draft: str) -> None:
    options = ModelOptions(runtime="native", draft_runtime="native", context_length=256, threads=1)
    prompt = [40, 41, 42, 40, 41, 42]
    seen: list[str] = []
    with Engine.load(target, speculation="off", options=options) as engine:
        plain = engine.generate(prompt, seed=3, temperature=0.8, max_tokens=40)
    with Engine.load(
        target, draft=draft, speculation="on", options=options, progress=lambda name, done: seen.append(name)
    ) as engine:
        fast = engine.generate(prompt, seed=3, temperature=0.8, max_tokens=40)
        assert engine.memory()["drafter"] > 0
    assert fast.tokens == plain.tokens
    assert fast.statistics.accepted > 0
    assert fast.drafter == draft.partition(":")[0]
    assert f"lowbit copy of {target.name}" in seen


@pytest.mark.parametrize(
    ("spec", "says"),
    [("suffix:4", "takes nothing after a colon"), ("lowbit+lowbit", "different drafters"), ("lowbit+", "different")],
)
def test_specifications_that_say_nothing(target: Path, spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Engine.load(target, draft=spec)


def test_the_command_line_and_profiles_know_every_name() -> None:
    assert set(settings.NAMED) == set(loading.NAMED)
    assert set(profiles.DRAFTERS) == {"auto", "none", *loading.NAMED}
    saved = profiles.Profile("it.gguf", "", "native", "suffix+layers:0-5,7+lowbit:q4_0")
    assert saved.draft_files == []
    assert saved.missing is None
