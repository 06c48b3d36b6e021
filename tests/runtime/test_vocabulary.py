"""Text to tokens and back, for both great families of vocabularies."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.runtime import load_llamacpp
from slipstream.runtime.llamacpp.vocabulary import LlamaCppVocabulary
from tests.tiny_models import byte_level_bpe, sentencepiece, tiny_llama

TEXTS = [
    "the thing and the end",
    " leading and trailing ",
    "a\n\n\tb  c",
    "naïve café 🌊 日本語",
    "zero \0 byte",
    "<|im_end|>",
    "\r\n",
    "",
]


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LlamaCppVocabulary]]:
    directory: Path = tmp_path_factory.mktemp("vocabularies")
    kinds = {"bpe": byte_level_bpe(), "sentencepiece": sentencepiece()}
    models = {
        name: load_llamacpp(tiny_llama(directory / f"{name}.gguf", vocabulary=kind), context_length=32, threads=1)
        for name, kind in kinds.items()
    }
    yield {name: model.vocabulary for name, model in models.items()}
    for model in models.values():
        model.close()


@pytest.fixture
def bpe(vocabularies: dict[str, LlamaCppVocabulary]) -> LlamaCppVocabulary:
    return vocabularies["bpe"]


@pytest.fixture
def spm(vocabularies: dict[str, LlamaCppVocabulary]) -> LlamaCppVocabulary:
    return vocabularies["sentencepiece"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_round_trip(vocabularies: dict[str, LlamaCppVocabulary], kind: str, text: str) -> None:
    vocabulary = vocabularies[kind]
    tokens = vocabulary.tokenize(text, add_bos=False, parse_special=False)
    assert vocabulary.detokenize(tokens) == text


@given(text=st.text(max_size=80))
def test_round_trip_of_any_text(vocabularies: dict[str, LlamaCppVocabulary], text: str) -> None:
    vocabulary = vocabularies["bpe"]
    tokens = vocabulary.tokenize(text, add_bos=False, parse_special=False)
    assert vocabulary.detokenize(tokens) == text


def test_a_token_may_be_part_of_a_character(bpe: LlamaCppVocabulary) -> None:
    tokens = bpe.tokenize(" é", add_bos=False, parse_special=False)
    assert [bpe.token_bytes(token) for token in tokens] == [b" \xc3", b"\xa9"]


def test_control_tokens_are_read_only_on_request(bpe: LlamaCppVocabulary) -> None:
    (end,) = bpe.tokenize("<|im_end|>", add_bos=False, parse_special=True)
    assert bpe.token_name(end) == "<|im_end|>"
    assert bpe.token_bytes(end) == b""
    assert end not in bpe.tokenize("<|im_end|>", add_bos=False, parse_special=False)


def test_names_are_the_vocabularys_own_spelling(bpe: LlamaCppVocabulary, spm: LlamaCppVocabulary) -> None:
    assert [bpe.token_name(token) for token in range(bpe.size)] == byte_level_bpe().tokens
    assert [spm.token_name(token) for token in range(spm.size)] == sentencepiece().tokens


def test_begin_and_end(bpe: LlamaCppVocabulary, spm: LlamaCppVocabulary) -> None:
    assert bpe.bos is None
    assert {bpe.token_name(token) for token in bpe.end_tokens} == {"<|im_end|>", "<|endoftext|>"}
    assert spm.bos == 1
    assert spm.end_tokens == {2}
    assert spm.tokenize("the", add_bos=True, parse_special=False)[0] == 1
    assert 1 not in spm.tokenize("the", add_bos=False, parse_special=False)
    assert bpe.tokenize("the", add_bos=True, parse_special=False) == bpe.tokenize(
        "the", add_bos=False, parse_special=False
    )


def test_the_space_in_front_is_known_and_kept_inside_a_text(bpe: LlamaCppVocabulary, spm: LlamaCppVocabulary) -> None:
    assert (bpe.adds_space, spm.adds_space) == (False, True)
    (token,) = spm.tokenize("the", add_bos=False, parse_special=False)
    assert spm.token_bytes(token) == b" the"
    assert spm.detokenize([token]) == "the"
    assert spm.detokenize([token, token]) == "the the"


def test_half_a_surrogate_pair_is_one_sentence(bpe: LlamaCppVocabulary) -> None:
    with pytest.raises(UsageError, match=r"not valid Unicode at character 3 \('\\udcff'\)"):
        bpe.tokenize("ab\udcff", add_bos=False, parse_special=False)


def test_a_long_piece_outgrows_the_buffer(tmp_path: Path) -> None:
    from dataclasses import replace

    kind = byte_level_bpe()
    long = replace(kind, tokens=[*kind.tokens, "a" * 1000], types=[*kind.types, 1])
    model = load_llamacpp(tiny_llama(tmp_path / "m.gguf", vocabulary=long), context_length=32, threads=1)
    assert model.vocabulary.token_bytes(model.vocabulary.size - 1) == b"a" * 1000
    assert model.vocabulary.token_bytes(97) == b"a"
    model.close()
