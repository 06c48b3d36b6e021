"""Merges that follow from scores do what llama.cpp does with the scores themselves."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.errors import ModelFileError, UnsupportedModelError
from slipstream.tokenizer import load_tokenizer
from tests.tokenizer.vocabularies import (
    USER_DEFINED,
    assert_same_vocabulary,
    both,
    byte_level,
    differences,
    scored,
    write,
)

WORDS = [("▁", -1.0), ("a", -2.0), ("b", -3.0), ("ab", -4.0), ("▁a", -5.0), ("▁ab", -6.0), ("ba", -7.0), ("aab", -3.5)]


def joined_by_scores(text: str, scores: dict[str, float]) -> list[str]:
    """What llama.cpp does: join the best-scored neighbours, the leftmost of equals, until none are a token."""
    parts = list(text)
    while True:
        known = [
            (-scores[left + right], place)
            for place, (left, right) in enumerate(pairwise(parts))
            if left + right in scores
        ]
        if not known:
            return parts
        _, place = min(known)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.text("abc", min_size=2, max_size=6), unique=True, min_size=1, max_size=25),
    order=st.randoms(use_true_random=False),
    texts=st.lists(st.text("abc", min_size=1, max_size=30), min_size=1, max_size=10),
)
def test_any_scores(tmp_path: Path, words: list[str], order: object, texts: list[str]) -> None:
    every = [*"abc", *words]
    order.shuffle(every)  # type: ignore[attr-defined]
    scores = {word: -float(rank) for rank, word in enumerate(every)}
    ours = load_tokenizer(scored(tmp_path / "it.gguf", list(scores.items()), add_space_prefix=False))
    for text in texts:
        tokens = ours.tokenize(text, add_bos=False, parse_special=False)
        assert [ours.token_name(token) for token in tokens] == joined_by_scores(text, scores)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(longest=st.integers(2, 9), text=st.text("ab", min_size=1, max_size=60))
def test_rows_of_one_character_may_have_equal_scores(tmp_path: Path, longest: int, text: str) -> None:
    scores = {"a": -1.0, "b": -2.0, "ba": -3.0, "bab": -3.5, "aaab": -4.0} | {
        "a" * size: -9.0 for size in range(2, longest + 1)
    }
    ours = load_tokenizer(scored(tmp_path / "it.gguf", list(scores.items()), add_space_prefix=False))
    tokens = ours.tokenize(text, add_bos=False, parse_special=False)
    assert [ours.token_name(token) for token in tokens] == joined_by_scores(text, scores)


def test_characters_without_tokens(tmp_path: Path) -> None:
    """A character that is no token is spelled in bytes, unless a token with it comes into being."""
    ours, theirs = both(scored(tmp_path / "it.gguf", [*WORDS, ("aé", -0.5), ("▁aéö", -0.7), ("öa", -9.0)]))
    assert_same_vocabulary(ours, theirs)
    assert differences(ours, theirs, ["aé", "é", "aéö", " aéö", "öaé", "ööa", "üöaéaé é", "日aé", "\0é"]) == []


def test_user_defined_tokens_with_blanks_and_without(tmp_path: Path) -> None:
    """Gemma has rows of spaces and line feeds as tokens that are cut out of a text before the rest is joined."""
    extra = [("\n" * size, USER_DEFINED) for size in range(2, 6)] + [("  ", USER_DEFINED), ("   ", USER_DEFINED)]
    extra += [("▁▁", USER_DEFINED), ("ab<", USER_DEFINED), ("b<a", USER_DEFINED)]
    for prefix in (False, True):
        ours, theirs = both(scored(tmp_path / "it.gguf", WORDS, extra, add_space_prefix=prefix))
        assert_same_vocabulary(ours, theirs)
        texts = [
            "a\n\n\nb",
            "\n" * 13,
            " a",
            "  a",
            "   a    b     ab      ",
            "▁▁▁a",
            "ab<a",
            "aab<ab<a",
            " \n \n\n ab<",
        ]
        assert differences(ours, theirs, texts) == []


@pytest.mark.parametrize(
    "scores",
    [[("ab", -1.0), ("ba", -1.0)], [("aa", -1.0), ("aaaa", -1.0)], [("aaa", -1.0), ("aaaa", -1.0), ("aa", -2.0)]],
)
def test_an_order_that_scores_do_not_tell_is_refused(tmp_path: Path, scores: list[tuple[str, float]]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"scores do not say which of 'a.*' and '.*' comes first"):
        load_tokenizer(scored(tmp_path / "it.gguf", [("a", -7.0), ("b", -8.0), *scores]))


def test_stated_merges_are_the_files(tmp_path: Path) -> None:
    merges = ["l l", "h e", "he ll", "hell o", "l l", "Ġ he", "o Ġ"]
    ours, theirs = both(byte_level(tmp_path / "it.gguf", merges=merges))
    assert_same_vocabulary(ours, theirs)
    assert differences(ours, theirs, ["hello hello", "llll", " hellohe", "é"]) == []


@pytest.mark.parametrize("merge", ["h", "h  e", "h e l", "zz e", "h xyz", "q q", " h", "h \xff"])
def test_impossible_merges(tmp_path: Path, merge: str) -> None:
    header = byte_level(tmp_path / "it.gguf", merges=["h e"])
    path = header.path
    tokens = list(header.metadata["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    with pytest.raises(ModelFileError) as caught:
        load_tokenizer(write(path, "gpt2", tokens, pre="gpt-2", merges=["h e", merge]))
    assert str(caught.value).endswith("is not one of tokens); download or convert it again.")


def test_bytes_are_not_merged(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="it merges '<0x0A>' and 'x'"):
        load_tokenizer(scored(tmp_path / "it.gguf", [("x", -1.0), ("<0x0A>x", -2.0)]))
