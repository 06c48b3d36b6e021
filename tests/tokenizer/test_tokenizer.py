"""What the protocol promises, and vocabularies that are neither GPT-2's kind nor SentencePiece's."""

from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.corpus import lines
from tests.tokenizer.vocabularies import (
    BYTE,
    BYTE_NAMES,
    CONTROL,
    NORMAL,
    GgufHeader,
    assert_same_vocabulary,
    both,
    byte_level,
    differences,
    scored,
    write,
)


def plain(path: Path, kind: str, **values: object) -> GgufHeader:
    """Byte-pair encoding over text: U+2581 for spaces, tokens for bytes, rows of line feeds some merged."""
    merges = ["▁ a", "a b", "▁a b", "▁ ▁", "\n \n", "a é", "1 2"]
    words = ["▁", "a", "b", "é", "1", "2", "\n", *(merge.replace(" ", "") for merge in merges), "\n\n\n", "\n\n\n\n\n"]
    types = [BYTE] * 256 + [NORMAL] * len(words) + [CONTROL]
    return write(path, kind, [*BYTE_NAMES, *words, "<end>"], token_type=types, merges=merges, **values)


@pytest.mark.parametrize("kind", ["gemma4", "gpt2"])
def test_byte_pairs_of_plain_text(tmp_path: Path, kind: str) -> None:
    """Gemma 4's kind, in which a row of line feeds may be a token without merges, and Sarvam's."""
    values = {"pre": "sarvam-moe"} if kind == "gpt2" else {"bos_token_id": 3, "add_bos_token": False}
    ours, theirs = both(plain(tmp_path / "it.gguf", kind, eos_token_id=275, **values))
    assert_same_vocabulary(ours, theirs)
    texts = [
        "ab a  ab",
        *("a" + "\n" * count + "b" for count in range(9)),
        "\n",
        "é aé 中 \r\n\n12",
        "<end>\n\n\n",
        "▁▁a",
    ]
    assert differences(ours, theirs, [*texts, *lines(["<end>"], 300)]) == []


def test_half_a_surrogate_pair_is_one_sentence(tmp_path: Path) -> None:
    ours = load_tokenizer(byte_level(tmp_path / "it.gguf"))
    with pytest.raises(UsageError, match=r"not valid Unicode at character 3 \('\\udcff'\)"):
        ours.tokenize("ab\udcff", add_bos=False, parse_special=False)


def test_texts_come_back(tmp_path: Path) -> None:
    for ours in (
        load_tokenizer(byte_level(tmp_path / "bpe.gguf", merges=["t h", "th e", "Ġ the"])),
        load_tokenizer(scored(tmp_path / "spm.gguf", [("▁", -1.0), ("t", -2.0), ("▁t", -3.0)])),
    ):
        for text in [line for line in lines(count=400) if "▁" not in line]:
            tokens = ours.tokenize(text, add_bos=False, parse_special=False)
            assert ours.detokenize(tokens) == text


def test_the_space_in_front_is_known_and_kept_inside_a_text(tmp_path: Path) -> None:
    ours: Tokenizer = load_tokenizer(scored(tmp_path / "it.gguf", [("▁", -1.0), ("t", -2.0), ("▁t", -3.0)]))
    assert ours.adds_space
    (token,) = ours.tokenize("t", add_bos=False, parse_special=False)
    assert ours.token_bytes(token) == b" t"
    assert ours.detokenize([token, token]) == "t t"
    assert not load_tokenizer(byte_level(tmp_path / "bpe.gguf")).adds_space


def test_nothing_has_no_tokens(tmp_path: Path) -> None:
    ours = load_tokenizer(scored(tmp_path / "it.gguf", [("▁", -1.0)]))
    assert ours.tokenize("", add_bos=False, parse_special=True) == []
    assert ours.tokenize("", add_bos=True, parse_special=True) == [1]
