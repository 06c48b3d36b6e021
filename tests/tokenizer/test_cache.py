"""Tokenizers that were built are kept, and what was kept is not trusted."""

import gc
from pathlib import Path

import pytest

from slipstream.tokenizer import building, cache, load_tokenizer, tokenizer
from slipstream.tokenizer.recipe import Recipe
from slipstream.tokenizer.specification import Specification
from tests.tokenizer.vocabularies import GgufHeader, byte_level, scored

TEXT = "The quick  brown fox\n\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they are kept, whatever their size."""
    monkeypatch.setattr(cache, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1)
    return tmp_path / "cache" / "tokenizers"


@pytest.fixture
def header(tmp_path: Path) -> GgufHeader:
    return byte_level(tmp_path / "it.gguf", merges=["T h", "Th e", "Ġ q", "Ċ Ċ"])


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with every tokenizer that is worked out."""
    made: list[str] = []
    make = building.make_recipe

    def counted(specification: Specification, vocabulary: dict[str, int]) -> Recipe:
        made.append(specification.path.name)
        return make(specification, vocabulary)

    monkeypatch.setattr(building, "make_recipe", counted)
    return made


def tokens(header: GgufHeader) -> list[int]:
    return load_tokenizer(header).tokenize(TEXT, add_bos=True, parse_special=False)


def test_the_second_time_it_is_read(folder: Path, header: GgufHeader, builds: list[str]) -> None:
    first = tokens(header)
    assert len(list(folder.iterdir())) == 1
    assert tokens(header) == first
    assert builds == ["it.gguf"]


def test_another_vocabulary_is_another_file(
    folder: Path, tmp_path: Path, header: GgufHeader, builds: list[str]
) -> None:
    tokens(header)
    tokens(byte_level(tmp_path / "same.gguf", merges=["T h", "Th e", "Ġ q", "Ċ Ċ"], eos_token_id=7))
    assert builds == ["it.gguf"], "what ends a text is no part of it"
    tokens(byte_level(tmp_path / "order.gguf", merges=["Th e", "T h", "Ġ q", "Ċ Ċ"]))
    tokens(byte_level(tmp_path / "cuts.gguf", merges=["T h", "Th e", "Ġ q", "Ċ Ċ"], pre="qwen2"))
    tokens(scored(tmp_path / "one.gguf", [("a", -1.0), ("aa", -2.0)]))
    tokens(scored(tmp_path / "two.gguf", [("a", -1.0), ("aa", -3.0)]))
    assert builds == ["it.gguf", "order.gguf", "cuts.gguf", "one.gguf", "two.gguf"]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: data[:-1] + b"?", lambda data: b"", lambda data: b"{}"]
)
def test_a_damaged_file_is_made_anew(folder: Path, header: GgufHeader, builds: list[str], damage: object) -> None:
    first = tokens(header)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))  # type: ignore[operator]
    assert tokens(header) == first
    assert file.read_bytes() == whole
    assert len(builds) == 2


def test_a_small_one_is_not_worth_a_file(
    folder: Path, header: GgufHeader, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1 << 14)
    assert tokens(header) == tokens(header)
    assert not folder.exists()
    assert len(builds) == 2


def test_a_cache_that_cannot_be_written_is_no_error(folder: Path, header: GgufHeader, builds: list[str]) -> None:
    folder.parent.write_text("a file where a folder should be")
    assert tokens(header) == tokens(header)
    assert len(builds) == 2


def test_a_disk_that_fills_leaves_nothing(folder: Path, header: GgufHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert tokens(header)
    assert list(folder.iterdir()) == []


def test_two_in_use_share_what_is_large(folder: Path, tmp_path: Path, header: GgufHeader) -> None:
    first, again = load_tokenizer(header), load_tokenizer(header)
    assert first is not again
    assert first._library is again._library
    other = load_tokenizer(byte_level(tmp_path / "cuts.gguf", merges=["T h", "Th e", "Ġ q", "Ċ Ċ"], pre="qwen2"))
    assert other._library is not first._library
    specification_key = Specification.from_header(header).key()
    assert specification_key in tokenizer._LOADED
    del first, again, other
    gc.collect()
    assert specification_key not in tokenizer._LOADED, "nothing keeps them"
