"""The tokenizer of a native model is llama.cpp's, read without weights."""

from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.errors import ModelFileError, RuntimeUnavailableError
from slipstream.models.gguf import read_header
from slipstream.runtime import load_llamacpp
from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.vocabulary import NativeVocabulary
from tests.tiny_models import Vocabulary, byte_level_bpe, sentencepiece, tiny_llama

TEXTS = ["the thing and the end", " naïve café 🌊", "<|im_end|>", "a\n\n\tb", ""]


@pytest.mark.parametrize("kind", [byte_level_bpe, sentencepiece])
def test_both_runtimes_speak_the_same(tmp_path: Path, kind: Callable[[], Vocabulary]) -> None:
    path = tiny_llama(tmp_path / "it.gguf", vocabulary=kind())
    native = load_native(path, context_length=32, threads=1)
    llamacpp = load_llamacpp(path, context_length=32, threads=1)
    ours, theirs = native.vocabulary, llamacpp.vocabulary
    assert (ours.size, ours.bos, ours.end_tokens) == (theirs.size, theirs.bos, theirs.end_tokens)
    for text in TEXTS:
        for special in (False, True):
            tokens = ours.tokenize(text, add_bos=True, parse_special=special)
            assert tokens == theirs.tokenize(text, add_bos=True, parse_special=special)
            assert [ours.token_bytes(token) for token in tokens] == [theirs.token_bytes(token) for token in tokens]
            assert [ours.token_name(token) for token in tokens] == [theirs.token_name(token) for token in tokens]
    native.close()
    llamacpp.close()


def test_it_outlives_a_closed_model_as_an_error(file: Path) -> None:
    model = load_native(file, context_length=32, threads=1)
    vocabulary = model.vocabulary
    model.close()
    with pytest.raises(RuntimeUnavailableError, match="has been closed"):
        vocabulary.tokenize("a", add_bos=False, parse_special=False)


def test_a_vocabulary_that_llamacpp_cannot_read(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "it.gguf", extra={"tokenizer.ggml.pre": "of another age"})
    with pytest.raises(ModelFileError) as caught:
        load_native(path, context_length=32, threads=1)
    message = str(caught.value)
    assert message.startswith(f"llama.cpp cannot read the vocabulary of {path}: ")
    assert message.endswith("; download or convert the file again.")


def test_it_is_freed_with_its_last_user(file: Path) -> None:
    vocabulary = NativeVocabulary(read_header(file))
    assert vocabulary.tokenize("the", add_bos=False, parse_special=False)
    vocabulary.close()
    vocabulary.close()


def test_it_belongs_to_the_model(model: NativeModel) -> None:
    assert model.vocabulary.size == len(byte_level_bpe().tokens)
