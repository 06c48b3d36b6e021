"""The tokenizer of a native model: our own, llama.cpp's where ours does not know the file."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.errors import ModelFileError, UnsupportedModelError
from slipstream.runtime import load_llamacpp
from slipstream.runtime.llamacpp import binding
from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.vocabulary import BorrowedVocabulary
from slipstream.tokenizer import Tokenizer
from tests.tiny_models import Vocabulary, byte_level_bpe, sentencepiece, tiny_llama

TEXTS = ["the thing and the end", " naïve café 🌊", "<|im_end|>", "a\n\n\tb", ""]
KNOWN_TO_LLAMA_CPP_ONLY = {"tokenizer.ggml.pre": "superbpe"}


@pytest.mark.parametrize("kind", [byte_level_bpe, sentencepiece])
def test_both_runtimes_speak_the_same(tmp_path: Path, kind: Callable[[], Vocabulary]) -> None:
    path = tiny_llama(tmp_path / "it.gguf", vocabulary=kind())
    native = load_native(path, context_length=32, threads=1)
    llamacpp = load_llamacpp(path, context_length=32, threads=1)
    ours, theirs = native.vocabulary, llamacpp.vocabulary
    assert isinstance(ours, Tokenizer)
    assert (ours.size, ours.bos, ours.end_tokens) == (theirs.size, theirs.bos, theirs.end_tokens)
    for text in TEXTS:
        for special in (False, True):
            tokens = ours.tokenize(text, add_bos=True, parse_special=special)
            assert tokens == theirs.tokenize(text, add_bos=True, parse_special=special)
            assert [ours.token_bytes(token) for token in tokens] == [theirs.token_bytes(token) for token in tokens]
            assert [ours.token_name(token) for token in tokens] == [theirs.token_name(token) for token in tokens]
    native.close()
    llamacpp.close()


def test_what_ours_does_not_know_is_left_to_llama_cpp(tmp_path: Path) -> None:
    model = load_native(tiny_llama(tmp_path / "it.gguf", extra=KNOWN_TO_LLAMA_CPP_ONLY), context_length=32, threads=1)
    assert isinstance(model.vocabulary, BorrowedVocabulary)
    assert model.vocabulary.tokenize("the", add_bos=False, parse_special=False)
    assert model.notice == (
        "Texts become tokens by llama.cpp. it.gguf cuts texts in a way that is not known ('superbpe')."
    )
    model.close()


def test_where_llama_cpp_is_not_installed_it_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "installed", lambda: False)
    with pytest.raises(UnsupportedModelError) as caught:
        load_native(tiny_llama(tmp_path / "it.gguf", extra=KNOWN_TO_LLAMA_CPP_ONLY), context_length=32, threads=1)
    assert str(caught.value).startswith("it.gguf cuts texts in a way that is not known ('superbpe'). ")
    assert "pip install" in str(caught.value)


def test_a_vocabulary_that_neither_can_read(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "it.gguf", extra={"tokenizer.ggml.pre": "of another age"})
    with pytest.raises(ModelFileError) as caught:
        load_native(path, context_length=32, threads=1)
    message = str(caught.value)
    assert message.startswith(f"llama.cpp cannot read the vocabulary of {path}: ")
    assert message.endswith("; download or convert the file again.")


def test_it_belongs_to_the_model(model: NativeModel) -> None:
    assert model.vocabulary.size == len(byte_level_bpe().tokens)


WITHOUT_LLAMA_CPP = """
import sys
sys.modules["llama_cpp"] = None
from slipstream import Engine
with Engine.load(sys.argv[1], draft="suffix") as engine:
    assert engine.target.runtime == "native"
    text = engine.generate([{"role": "user", "content": "the end"}], max_tokens=8, seed=1).text
    assert text == engine.generate([{"role": "user", "content": "the end"}], max_tokens=8, seed=1).text
"""


def test_nothing_of_llama_cpp_is_needed(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "it.gguf")
    command = [sys.executable, "-W", "error", "-c", WITHOUT_LLAMA_CPP, path]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    version = [
        sys.executable,
        "-c",
        "import sys; sys.modules['llama_cpp'] = None\nfrom slipstream.cli import main\nmain()",
        "--version",
    ]
    result = subprocess.run(version, capture_output=True, text=True)
    assert "llama.cpp: The llama.cpp runtime is not installed" in result.stdout.replace("\n", " ")
