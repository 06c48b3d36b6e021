"""What the protocol promises, and vocabularies that are neither GPT-2's kind nor SentencePiece's."""

from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.tokenizer import Tokenizer, load_tokenizer
from slipstream.tokenizer.alphabet import ALPHABET
from slipstream.tokenizer.tokenizer import SHORT
from tests.tokenizer.corpus import lines
from tests.tokenizer.vocabularies import (
    BYTE,
    BYTE_NAMES,
    CONTROL,
    NORMAL,
    USER_DEFINED,
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


def without_controls(path: Path) -> GgufHeader:
    """A byte-level vocabulary that lacks some bytes, as many do; a text loses them."""
    letters = [letter for byte, letter in enumerate(ALPHABET) if byte >= 0x20 or byte == 0x0A]
    types = [NORMAL] * (len(letters) + 1)
    return write(path, "gpt2", [*letters, "th"], token_type=types, merges=["t h"], pre="gpt-2")


def test_no_text_has_fewer_tokens_than_the_least(tmp_path: Path) -> None:
    """Whatever is swallowed, lost, merged or cut out of it."""
    controls = [("<|x|>", CONTROL), ("ab", USER_DEFINED)]
    headers = [
        byte_level(tmp_path / "a.gguf", controls, merges=["t h", "th e", "Ġ Ġ", "ĠĠ ĠĠ"]),
        byte_level(tmp_path / "b.gguf", controls, name="Phi-3"),  # blanks behind control tokens are no tokens
        scored(tmp_path / "c.gguf", [("▁", -1.0), ("t", -2.0), ("▁t", -3.0)], controls),
        plain(tmp_path / "d.gguf", "gemma4", eos_token_id=275, bos_token_id=3),
        without_controls(tmp_path / "e.gguf"),
    ]
    texts = [
        *lines(["<|x|>", "ab"], 500),
        "<|x|>" + " " * 1000,
        "▁" * 1000,
        "\x01" * 1000,
        "<|x|>" * 50,
        "th" * 1000,
        "",
    ]
    for header in headers:
        ours = load_tokenizer(header)
        for text in texts:
            for special in (False, True):
                found = ours.tokenize(text, add_bos=False, parse_special=special)
                assert ours.least_tokens(text, parse_special=special) <= len(found), (header.path.name, text)


def test_the_least_is_not_far_below(tmp_path: Path) -> None:
    ours = load_tokenizer(byte_level(tmp_path / "it.gguf", [("<|x|>", CONTROL)], merges=["t h", "th e"]))
    assert ours.least_tokens("e" * 100, parse_special=True) == 20  # five bytes: "<|x|>" where it is no token
    assert ours.least_tokens("<|x|>" * 100, parse_special=True) == 100
    assert ours.least_tokens("\udcff" * 5, parse_special=True) == 1


def test_a_long_text_has_the_tokens_of_its_lines(tmp_path: Path) -> None:
    """Beyond some length the library is asked in another way."""
    ours = load_tokenizer(byte_level(tmp_path / "it.gguf", merges=["t h", "th e", "Ġ the", "Ċ Ċ"]))
    line = "the thin theatre, then\n"
    long = line * (SHORT // len(line) + 2)
    assert len(line) < SHORT < len(long)
    tokens = [ours.tokenize(part, add_bos=False, parse_special=False) for part in (line, long)]
    assert tokens[1] == tokens[0] * (len(long) // len(line))
