"""Texts are cut where llama.cpp cuts them, for every `tokenizer.ggml.pre` that is known."""

import unicodedata
from pathlib import Path

import pytest
import tokenizers

from slipstream.tokenizer import unicode_classes
from slipstream.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.tokenizer.corpus import lines
from tests.tokenizer.vocabularies import NORMAL, both, byte_level, differences, pairs

ONE_OF_EACH = sorted({rules.splits: name for name, rules in PRE_TOKENIZERS.items() if rules.byte_level}.values())


@pytest.mark.parametrize("pre", ONE_OF_EACH)
def test_every_cut_shows_in_the_tokens(tmp_path: Path, pre: str) -> None:
    ours, theirs = both(pairs(tmp_path / "pairs.gguf", pre))
    wrong = differences(ours, theirs, lines(["don't", "I'M", "1234567", "中文字"], 250))
    assert not wrong, f"{len(wrong)} lines differ, first\n" + "\n".join(wrong[:5])


@pytest.mark.parametrize("pre", sorted(name for name, rules in PRE_TOKENIZERS.items() if rules.byte_level))
def test_every_name(tmp_path: Path, pre: str) -> None:
    """Two names of the same cuts may differ in what begins a text, and in what a word is that is a token."""
    header = byte_level(tmp_path / "it.gguf", [("hello", NORMAL)], ["t h", "th e", "Ġ the"], pre=pre)
    ours, theirs = both(header)
    assert differences(ours, theirs, ["hello", "the hello's 1234 the", " the\n\n  the"]) == []
    assert ours.bos == theirs.bos


def test_a_long_row_of_blanks_takes_no_long_time() -> None:
    """Whoever sends a prompt may send anything. An expression that tries the row from each of its blanks would not come
    to an end before the test's time is over.
    """
    for rules in set(PRE_TOKENIZERS.values()):
        cutters = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(it), "isolated") for it in rules.expressions()]
        tokenizers.pre_tokenizers.Sequence(cutters).pre_tokenize_str("x" + " " * 250_000 + "😀")


def test_categories_are_those_of_unicode() -> None:
    """Of all characters that this Python's version of Unicode knows, and that had their category then."""
    tables = {
        "L": unicode_classes.LETTERS,
        "M": unicode_classes.MARKS,
        "N": unicode_classes.NUMBERS,
        "P": unicode_classes.PUNCTUATION,
        "S": unicode_classes.SYMBOLS,
    }
    for category, table in tables.items():
        members: set[int] = set()
        for entry in table.split():
            low, _, high = entry.partition("-")
            members.update(range(int(low, 16), int(high or low, 16) + 1))
        if unicodedata.unidata_version == "15.1.0":
            assert members == {code for code in range(0x110000) if unicodedata.category(chr(code))[0] == category}
        known = {code for code in members if unicodedata.category(chr(code)) != "Cn"}
        assert {unicodedata.category(chr(code))[0] for code in known} == {category}
        assert unicodedata.unidata_version < "14" or len(members - known) < 10_000
