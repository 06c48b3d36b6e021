"""`--draft` with a head: a file, a folder, a file of one; what is refused, and what is kept in the cache."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream import Engine, ModelOptions
from slipstream.draft import HeadDrafter
from slipstream.errors import ModelFileError, SlipstreamError, UnsupportedModelError, UsageError
from slipstream.measure.memory_bill import memory_bill
from slipstream.models import cache_directory, read_header
from slipstream.runtime.native import NativeModel, load_native
from tests.runtime.native.fuzz_header import Anatomy, Damage
from tests.tiny_heads import SMALL_HEAD, bigram_target, tiny_checkpoint, tiny_head
from tests.tiny_models import GROUPED, tiny_llama

OPTIONS = ModelOptions(context_length=256, threads=1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bigram_target(tmp_path_factory.mktemp("files") / "target.gguf", noise=0.1)


def generated(target: Path, draft: str | Path | None) -> list[int]:
    with Engine.load(target, draft=draft, speculation="on", options=OPTIONS) as engine:
        assert [type(one) for one in engine.drafters] == ([HeadDrafter] if draft else [])
        return engine.generate("the inner ring", max_tokens=20, temperature=0.8, seed=3).tokens


def test_a_file_a_folder_and_a_file_of_one(target: Path, tmp_path: Path) -> None:
    expected = generated(target, None)
    folder = tiny_checkpoint(tmp_path / "head+more", target)
    for draft in (tiny_head(tmp_path / "head.gguf", target), folder, folder / "model.safetensors"):
        assert generated(target, draft) == expected


def test_a_checkpoint_is_converted_once(target: Path, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "head", target)
    told: list[tuple[str, float]] = []
    for _ in range(2):
        with Engine.load(target, draft=folder, options=OPTIONS, progress=lambda *one: told.append(one)):
            (kept,) = (cache_directory() / "heads").glob("*.gguf")
            first = kept.stat().st_mtime_ns
        assert kept.stat().st_mtime_ns == first
    assert ("GGUF copy of head", 0.0) in told
    assert [path.name for path in kept.parent.iterdir() if path.suffix not in (".gguf", ".lock")] == []


def test_what_cannot_be_converted_leaves_nothing(target: Path, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "head", target)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFileError, match="no complete safetensors file"):
        Engine.load(target, draft=folder, options=OPTIONS)
    assert [path.suffix for path in (cache_directory() / "heads").iterdir()] == [".lock"]


def test_two_heads_and_a_model(target: Path, tmp_path: Path) -> None:
    one = tiny_head(tmp_path / "one.gguf", target)
    two = tiny_head(tmp_path / "two.gguf", target, seed=1)
    model = tiny_llama(tmp_path / "small.gguf", shape=replace(GROUPED, layers=1))
    with Engine.load(target, draft=f"{one}+{two}+{model}", speculation="on", options=OPTIONS) as engine:
        assert engine.drafter_name == "one+two+small"
        assert engine.generate("thin air", max_tokens=12, temperature=0).tokens == generated_plainly(target)


def generated_plainly(target: Path) -> list[int]:
    with Engine.load(target, draft=None, options=OPTIONS) as engine:
        return engine.generate("thin air", max_tokens=12, temperature=0).tokens


def test_the_bill(target: Path, tmp_path: Path) -> None:
    with Engine.load(target, draft=tiny_head(tmp_path / "head.gguf", target), options=OPTIONS) as engine:
        (drafter,) = engine.drafters
        assert drafter.model is not None
        assert engine.memory()["drafter"] == drafter.model.memory()
        bill = memory_bill(engine.drafters, 1000)
        assert bill.total == drafter.model.memory()
        assert 0 < bill.kv_cache < bill.total
        assert bill.context == 256
        engine.generate("the inner ring", max_tokens=4, num_draft_tokens=0)
        assert engine.memory()["drafter"] > drafter.model.memory(), "hidden states wait to be read"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    return tiny_llama(tmp_path / "other.gguf", shape=replace(GROUPED, width=128, head_size=32))


def test_foreign_heads_are_refused(target: Path, other: Path, tmp_path: Path) -> None:
    told = (
        r"does not belong to other.gguf: its eagle3.target_hidden_size is 64, and the target has hidden states of 128"
    )
    with pytest.raises(UnsupportedModelError, match=told):
        Engine.load(other, draft=tiny_head(tmp_path / "head.gguf", target), options=OPTIONS)
    folder = tiny_checkpoint(tmp_path / "head", target)
    with pytest.raises(UnsupportedModelError, match=rf"{folder} {told}"):
        Engine.load(other, draft=folder, options=OPTIONS)


def test_heads_are_no_targets(target: Path, tmp_path: Path) -> None:
    head = tiny_head(tmp_path / "head.gguf", target)
    for draft in (None, "suffix"):
        with pytest.raises(UnsupportedModelError, match="is a head, which drafts for another model"):
            Engine.load(head, draft=draft, options=OPTIONS)


def test_targets_on_llama_cpp_have_no_hidden_states(target: Path, tmp_path: Path) -> None:
    head = tiny_head(tmp_path / "head.gguf", target)
    with pytest.raises(UnsupportedModelError, match=r"target.gguf runs on llama.cpp, which gives none; use the native"):
        Engine.load(target, draft=head, options=replace(OPTIONS, runtime="llamacpp"))


def test_names_that_are_nothing(target: Path, tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError, match=r"is a directory; give the .gguf file in it"):
        Engine.load(target, draft=tmp_path, options=OPTIONS)
    with pytest.raises(UsageError, match="different drafters"):
        Engine.load(target, draft="+", options=OPTIONS)
    (tmp_path / "head.safetensors").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"head.safetensors is empty"):
        Engine.load(target, draft=tmp_path / "head.safetensors", options=OPTIONS)


def test_no_damaged_head_does_harm(target: Path, tmp_path: Path) -> None:
    """Header, weights and length are damaged at random: a sentence, or the text of plain decoding."""
    from slipstream.engine.heads import find_head
    from slipstream.runtime.native.head import load_native_head

    anatomies = [
        Anatomy(
            tiny_head(tmp_path / f"{number}.gguf", target, replace(SMALL_HEAD, **more), storage=storage).read_bytes()
        )
        for number, (storage, more) in enumerate(
            [
                ("F32", {}),
                ("Q8_0", {"norm_before_fc": True}),
                ("Q4_0", {"own_embedding": True}),
                ("F16", {"drafted": None}),
            ]
        )
    ]
    model, header, path = load_native(target, context_length=64), read_header(target), tmp_path / "damaged.gguf"
    expected, told, harmless = drafted_for(model, None), [], 0
    for number in range(300):
        chance = random.Random(number)
        path.write_bytes(Damage(chance.choice(anatomies), chance).result())
        try:
            if (head := find_head(str(path), header, lambda done: None)) is None:
                continue
            loaded = load_native_head(head, model, header, threads=1)
        except SlipstreamError as error:
            told.append(str(error))
            continue
        harmless += 1
        assert drafted_for(model, HeadDrafter(loaded)) == expected
    model.close()
    assert len(told) > 60
    assert harmless > 20
    assert all(one.endswith(".") and "\n" not in one for one in told)


def drafted_for(model: NativeModel, drafter: HeadDrafter | None) -> list[int]:
    engine = Engine(model, drafter)
    tokens = engine.generate([5, 80, 3, 77], max_tokens=8, temperature=0.8, seed=3).tokens
    engine._owns_target = False
    engine.close()
    engine._pool.close()
    return tokens


def test_a_copy_elsewhere_is_the_same_head(target: Path, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "head", target)
    expected = generated(target, folder)
    shutil.copytree(folder, tmp_path / "copy")
    assert generated(target, tmp_path / "copy") == expected
    assert len(list((cache_directory() / "heads").glob("*.gguf"))) == 1
