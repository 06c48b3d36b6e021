"""Files that say something impossible about their tokenizer are refused with a sentence."""

import random
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import ModelFileError, SlipstreamError, UnsupportedModelError
from slipstream.models.gguf import read_header
from slipstream.tokenizer import load_tokenizer
from slipstream.tokenizer.alphabet import ALPHABET
from tests.models.gguf_writer import ARRAY, F32, I32, STRING, U64, Typed, gguf_bytes
from tests.tokenizer.vocabularies import BYTE, BYTE_NAMES, NORMAL, both, byte_level, differences, scored, write


def refusal(path: Path, kind: str, tokens: list[Any], **values: Any) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_tokenizer(write(path, kind, tokens, **values))
    return str(caught.value)


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "no_vocab", "", "gpt3"])
def test_unknown_kinds(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        load_tokenizer(write(tmp_path / "it.gguf", kind, ["a"]))
    assert str(caught.value) == f"it.gguf has a tokenizer of an unknown kind ({kind!r})."


@pytest.mark.parametrize("pre", ["kimi-k2", "of another age"])
def test_unknown_cuts(tmp_path: Path, pre: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        load_tokenizer(byte_level(tmp_path / "it.gguf", pre=pre))
    assert str(caught.value) == f"it.gguf cuts texts in a way that is not known ({pre!r})."


def test_damaged_vocabularies(tmp_path: Path) -> None:
    path = tmp_path / "it.gguf"
    assert "has a token twice" in refusal(path, "gpt2", [*ALPHABET, "aa", "aa"], merges=[], pre="gpt-2")
    assert "has a token twice" in refusal(path, "gpt2", [*ALPHABET, "[EMPTY_257]", ""], merges=[], pre="gpt-2")
    assert "a token is not UTF-8" in refusal(path, "gpt2", [*ALPHABET, b"\xff"], merges=[], pre="gpt-2")
    assert "no token for the byte <0x61>" in refusal(path, "gpt2", [*ALPHABET.replace("a", "")], merges=[], pre="gpt-2")
    assert "without merges" in refusal(path, "gpt2", [*ALPHABET], pre="gpt-2")
    assert "without merges" in refusal(path, "gemma4", BYTE_NAMES)
    assert "without proper scores" in refusal(path, "llama", BYTE_NAMES)
    assert "without proper scores" in refusal(path, "llama", BYTE_NAMES, scores=[0.0] * 255)
    assert "without proper scores" in refusal(path, "llama", BYTE_NAMES, scores=[0.0] * 255 + [float("nan")])
    assert "no token for the byte <0x00>" in refusal(path, "llama", BYTE_NAMES[1:], scores=[0.0] * 255)
    types = [BYTE] * 256 + [BYTE]
    for wrong in ("<0x0G>", "x", "<0x0a> "):
        message = refusal(path, "llama", [*BYTE_NAMES, wrong], scores=[0.0] * 257, token_type=types)
        assert f"the token {wrong!r} is called a byte" in message
    long = ["ab" * 6000, "ba" * 6000]
    assert "impossibly long" in refusal(path, "llama", [*BYTE_NAMES, *long], scores=[0.0] * 258)


def test_bytes_that_a_vocabulary_lacks_are_left_out(tmp_path: Path) -> None:
    """As in SmolLM2's, which has no token for some control characters; nothing is merged across them."""
    tokens = [letter for byte, letter in enumerate(ALPHABET) if byte not in (4, 0xC0, 0xF1, 0xF8)]
    ours, theirs = both(write(tmp_path / "it.gguf", "gpt2", [*tokens, "ab"], merges=["a b"], pre="poro-chat"))
    assert differences(ours, theirs, ["a\4b", "ab\4", "\4\4", "é\U00040000", "ab\U00050000b"]) == []
    assert ours.detokenize(ours.tokenize("a\4b", add_bos=False, parse_special=False)) == "ab"


STRINGS = [*ALPHABET, "ab", "a b", "th", "t h", "", " ", "  ", "\n", "<0x0A>", "<|im_end|>", "</s>", "é", "▁"]
STRINGS += [b"\xff", b"\xe2\x96"]  # type: ignore[list-item]
ODD = [
    Typed(-5, I32),
    Typed(1 << 40, U64),
    3,
    2.5,
    True,
    "",
    "qwen2",
    Typed(["a"], ARRAY, STRING),
    Typed([1], ARRAY, I32),
]


def hostile(chance: random.Random) -> dict[str, Any]:
    """Values of a tokenizer, some of the wrong types, lengths and contents."""
    kind = chance.choice(["gpt2", "llama", "gemma4"])
    tokens = [*(ALPHABET if kind == "gpt2" else BYTE_NAMES), *chance.choices(STRINGS, k=chance.randrange(6))]
    scores = [-float(rank) for rank in range(len(tokens))]
    if chance.random() < 0.3:
        scores[chance.randrange(len(scores))] = chance.choice([0.0, -1e9, float("inf"), -300.0])
    values = {
        "model": kind,
        "tokens": Typed(tokens, ARRAY, STRING),
        "merges": Typed([f"{chance.choice('abth')} {chance.choice('abt ')}" for _ in range(2)], ARRAY, STRING),
        "scores": Typed(scores, ARRAY, F32),
        "token_type": Typed(chance.choices([NORMAL, 0, 2, 3, 4, 5, -1, 99], k=len(tokens)), ARRAY, I32),
    }
    names = [
        "pre",
        "bos_token_id",
        "eos_token_id",
        "add_bos_token",
        "add_space_prefix",
        "merges",
        "scores",
        "token_type",
    ]
    return values | {name: chance.choice(ODD) for name in names if chance.random() < 0.1}


def test_no_file_whatever_it_says_makes_more_than_a_sentence(tmp_path: Path) -> None:
    chance = random.Random(5)
    path = tmp_path / "it.gguf"
    accepted, refused = 0, set()
    for _ in range(600):
        values = {f"tokenizer.ggml.{name}": value for name, value in hostile(chance).items()}
        path.write_bytes(gguf_bytes({"general.architecture": "llama", "general.name": "phi-3"} | values))
        try:
            ours = load_tokenizer(read_header(path))
        except SlipstreamError as error:
            refused.add(str(error))
            continue
        tokens = ours.tokenize("the <|im_end|> é\n\n  a b\0😀", add_bos=True, parse_special=chance.random() < 0.5)
        assert all(0 <= token < ours.size for token in tokens)
        assert len(ours.detokenize(tokens)) > 5
        accepted += 1
    assert accepted > 100
    assert len(refused) > 20
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in refused)


def test_scores_may_be_whole_numbers(tmp_path: Path) -> None:
    header = scored(tmp_path / "it.gguf", [("a", -1.0), ("aa", -2.0)])
    metadata = dict(header.metadata) | {
        "tokenizer.ggml.tokens": Typed(list(header.metadata["tokenizer.ggml.tokens"]), ARRAY, STRING),  # type: ignore[arg-type]
        "tokenizer.ggml.scores": Typed([0] * 259 + [-1, -2], ARRAY, I32),
        "tokenizer.ggml.token_type": Typed(header.metadata["tokenizer.ggml.token_type"].tolist(), ARRAY, I32),  # type: ignore[union-attr]
    }
    header.path.write_bytes(gguf_bytes(metadata))
    ours = load_tokenizer(read_header(header.path))
    assert ours.tokenize("aa", add_bos=False, parse_special=False)
