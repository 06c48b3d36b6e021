"""Special tokens are cut out of texts as llama.cpp cuts them out."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tokenizer.vocabularies import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    BorrowedVocabulary,
    Tokenizer,
    assert_same_vocabulary,
    both,
    byte_level,
    differences,
    scored,
)

# Tokens that contain, overlap and follow each other, of different lengths: of equals nobody knows which comes first.
SPECIAL = [
    ("<|x|>", CONTROL),
    ("<|x", USER_DEFINED),
    ("|>", CONTROL),
    ("ab", USER_DEFINED),
    ("bcdb", CONTROL),
    ("  ", USER_DEFINED),
    ("\n\n\n", USER_DEFINED),
    ("??", UNKNOWN),
    ("é😀é", USER_DEFINED),
    ("", CONTROL),
    ("", NORMAL),
]
PHI_3 = [*SPECIAL, ("<|endoftext|>", CONTROL)]
TEXTS = [
    "<|x|>",
    "<|x|>|>",
    "a<|x|> b",
    "<|x |>",
    "abcdb",
    "ab  cdbab",
    "   \n\n\n\n",
    "??é😀é???",
    "[EMPTY_265]",
    "[EMPTY_266]a",
]
PARTS = [
    "<|endoftext|>",
    "</s>",
    "<s>",
    "<unk>",
    "<|x|>",
    "<|x",
    "|>",
    "ab",
    "bcdb",
    "cdb",
    "  ",
    " ",
    "\n",
    "?",
    "??",
    "é",
    "😀",
    "x",
    "<",
    "\t",
    "",
    "[EMPTY_",
]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, BorrowedVocabulary]]:
    folder: Path = tmp_path_factory.mktemp("special")
    words = [("▁", -1.0), ("a", -2.0), ("▁a", -3.0), ("b", -4.0), ("<", -5.0), ("▁<", -6.0), ("\t", -7.0)]
    return {
        "byte-level": both(byte_level(folder / "bpe.gguf", SPECIAL)),
        "scores": both(scored(folder / "spm.gguf", words, SPECIAL)),
        "scores, no prefix": both(scored(folder / "bare.gguf", words, SPECIAL, add_space_prefix=False)),
        "swallowing": both(scored(folder / "phi.gguf", words, PHI_3, name="My Phi-3 mini")),
    }


KINDS = ["byte-level", "scores", "scores, no prefix", "swallowing"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_first(kinds: dict[str, tuple[Tokenizer, BorrowedVocabulary]], kind: str) -> None:
    ours, theirs = kinds[kind]
    assert_same_vocabulary(ours, theirs)
    assert differences(ours, theirs, TEXTS) == []


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(st.sampled_from(PARTS), max_size=12).map("".join), kind=st.sampled_from(KINDS))
def test_any_mixture(kinds: dict[str, tuple[Tokenizer, BorrowedVocabulary]], text: str, kind: str) -> None:
    assert differences(*kinds[kind], [text]) == []


def test_blanks_behind_tokens_of_phi_3_are_theirs(kinds: dict[str, tuple[Tokenizer, BorrowedVocabulary]]) -> None:
    ours, _ = kinds["swallowing"]
    shown = [ours.token_name(token) for token in ours.tokenize("<|x|> \n\t a", add_bos=False, parse_special=True)]
    assert shown == ["<|x|>", "▁a"]
