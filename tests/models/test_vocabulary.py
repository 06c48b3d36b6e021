import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from slipstream.errors import ModelFileError, VocabularyMismatchError
from slipstream.models import PackedStrings, Vocabulary, compare, read_header
from slipstream.models.vocabulary import NORMAL, UNUSED
from tests.models.gguf_writer import ARRAY, I32, TOKENS, Typed, write_model


def vocabulary(*tokens: str, types: list[int] | None = None) -> Vocabulary:
    kinds = [NORMAL] * len(tokens) if types is None else types
    return Vocabulary("gpt2", PackedStrings.pack(tokens), np.array(kinds, np.int32), bos_id=0, eos_id=1)


TARGET = vocabulary("<s>", "</s>", "a", "b", "c")


def mismatch(target: Vocabulary, draft: Vocabulary) -> str:
    with pytest.raises(VocabularyMismatchError) as caught:
        compare(target, draft)
    message = str(caught.value)
    assert "smaller model of the target's own family" in message
    assert "--draft suffix" in message
    return message


def test_the_same_vocabulary_is_shared_whole() -> None:
    assert compare(TARGET, vocabulary("<s>", "</s>", "a", "b", "c")) == 5


def test_a_difference_is_counted_and_the_first_is_shown() -> None:
    message = mismatch(TARGET, vocabulary("<s>", "</s>", "a", "x", "y"))
    assert "2 of the 5 tokens" in message
    assert "the first is 3, which is 'b' in the target and 'x' in the draft model" in message


def test_the_same_bytes_cut_differently_are_different() -> None:
    assert "2 of the 4" in mismatch(vocabulary("<s>", "</s>", "ab", "c"), vocabulary("<s>", "</s>", "a", "bc"))


def test_a_longer_draft_vocabulary_shares_the_target_s_ids() -> None:
    assert compare(TARGET, vocabulary("<s>", "</s>", "a", "b", "c", "[PAD5]", "[PAD6]")) == 5


def test_a_longer_draft_vocabulary_must_agree_on_the_shared_ids() -> None:
    assert "1 of the 5" in mismatch(TARGET, vocabulary("<s>", "</s>", "a", "b", "x", "[PAD5]"))


def test_a_target_padded_with_unused_tokens_is_fine() -> None:
    target = vocabulary("<s>", "</s>", "a", "[PAD]", types=[NORMAL, NORMAL, NORMAL, UNUSED])
    assert compare(target, vocabulary("<s>", "</s>", "a")) == 3


def test_a_draft_that_lacks_tokens_of_real_text_is_refused() -> None:
    message = mismatch(TARGET, vocabulary("<s>", "</s>", "a"))
    assert "lacks 2 tokens" in message
    assert "3 ('b')" in message


def test_without_token_types_missing_tokens_may_occur_in_text() -> None:
    target = dataclasses.replace(TARGET, types=np.zeros(0, np.int32))
    assert "lacks 2 tokens" in mismatch(target, vocabulary("<s>", "</s>", "a"))


@pytest.mark.parametrize(("change", "says"), [({"bos_id": 2}, "begins"), ({"eos_id": None}, "ends")])
def test_special_tokens_must_agree(change: dict[str, int | None], says: str) -> None:
    message = mismatch(TARGET, dataclasses.replace(TARGET, **change))  # type: ignore[arg-type]
    assert f"A text {says} with token" in message


def test_another_kind_of_spelling_is_refused() -> None:
    assert "'llama'" in mismatch(TARGET, dataclasses.replace(TARGET, model="llama"))


def test_token_types_do_not_matter() -> None:
    assert compare(TARGET, vocabulary("<s>", "</s>", "a", "b", "c", types=[3, 3, 4, 1, 1])) == 5


def test_from_a_file(tmp_path: Path) -> None:
    read = Vocabulary.from_header(read_header(write_model(tmp_path / "m.gguf")))
    assert read.tokens.texts() == TOKENS
    assert (read.model, read.bos_id, read.eos_id, read.eot_id, read.add_bos) == ("gpt2", 1, 2, None, True)
    assert read.types.tolist() == [2, 3, 3, 1, 1, 1, 1, 1]
    assert [read.text(token) for token in (1, None, -1, 8)] == ["<s>", "", "", ""]


def test_a_file_without_tokens(tmp_path: Path) -> None:
    header = read_header(write_model(tmp_path / "m.gguf", tokenizer__ggml__tokens=None))
    with pytest.raises(ModelFileError, match="no vocabulary"):
        Vocabulary.from_header(header)


def test_a_file_whose_token_types_do_not_fit(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tokenizer__ggml__token_type=Typed([1, 2], ARRAY, I32))
    with pytest.raises(ModelFileError, match="token types do not match"):
        Vocabulary.from_header(read_header(path))


def test_262144_tokens_are_compared_fast() -> None:
    tokens = [f"token{number}" for number in range(262144)]
    types = np.ones(len(tokens), np.int32)
    target = Vocabulary("llama", PackedStrings.pack(tokens), types)
    draft = Vocabulary("llama", PackedStrings.pack([*tokens[:-1], "other"]), types)
    start = time.perf_counter()
    assert compare(target, target) == 262144
    assert "1 of the 262144" in mismatch(target, draft)
    assert time.perf_counter() - start < 1
