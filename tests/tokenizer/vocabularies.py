"""Vocabularies in files, and how llama.cpp reads them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.models.gguf import GgufHeader, read_header
from slipstream.runtime.native.vocabulary import BorrowedVocabulary
from slipstream.tokenizer import Tokenizer, load_tokenizer
from slipstream.tokenizer.alphabet import ALPHABET
from tests.models.gguf_writer import ARRAY, F32, I32, STRING, Typed, gguf_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]


def write(path: Path, kind: str, tokens: Sequence[str | bytes], **values: Any) -> GgufHeader:
    """A file with a vocabulary and nothing else. values: of `tokenizer.ggml.NAME`; `name` is the model's."""
    metadata: dict[str, Any] = {"general.architecture": "llama", "general.name": values.pop("name", "a vocabulary")}
    metadata["tokenizer.ggml.model"] = kind
    metadata["tokenizer.ggml.tokens"] = Typed(tokens, ARRAY, STRING)
    elements = {"token_type": I32, "scores": F32, "merges": STRING}
    for name, value in values.items():
        metadata[f"tokenizer.ggml.{name}"] = Typed(value, ARRAY, elements[name]) if name in elements else value
    path.write_bytes(gguf_bytes(metadata))
    return read_header(path)


def byte_level(
    path: Path, extra: Sequence[tuple[str, int]] = (), merges: Sequence[str] = (), **values: Any
) -> GgufHeader:
    """GPT-2's kind: all bytes, what the merges make, and other tokens with their types."""
    tokens = [*ALPHABET, *dict.fromkeys(merge.replace(" ", "") for merge in merges), *(text for text, _ in extra)]
    types = [NORMAL] * (len(tokens) - len(extra)) + [kind for _, kind in extra]
    return write(path, "gpt2", tokens, token_type=types, merges=list(merges), **{"pre": "gpt-2", **values})


def pairs(path: Path, pre: str) -> GgufHeader:
    """A vocabulary in which a fifth of all pairs of bytes is a token each, in an order that makes no sense.

    So a cut that a pre-tokenizer makes or does not make shows in the tokens of some lines, wherever it is.
    """
    every = [f"{first} {second}" for first in ALPHABET for second in ALPHABET]
    return byte_level(path, merges=random.Random(1).sample(every, len(every) // 5), pre=pre)


def scored(
    path: Path, words: Sequence[tuple[str, float]], extra: Sequence[tuple[str, int]] = (), **values: Any
) -> GgufHeader:
    """SentencePiece's kind: control tokens, all bytes, words with scores, and other tokens with their types."""
    tokens = ["<unk>", "<s>", "</s>", *BYTE_NAMES, *(word for word, _ in words), *(text for text, _ in extra)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words) + [kind for _, kind in extra]
    scores = [0.0] * 259 + [score for _, score in words] + [-1000.0 - rank for rank in range(len(extra))]
    return write(path, "llama", tokens, token_type=types, scores=scores, **values)


def both(header: GgufHeader) -> tuple[Tokenizer, BorrowedVocabulary]:
    """Our tokenizer of a file, and llama.cpp's."""
    return load_tokenizer(header), BorrowedVocabulary(header)


def differences(ours: Tokenizer, theirs: BorrowedVocabulary, lines: Sequence[str]) -> list[str]:
    """Lines that become different tokens, with special tokens read and not, described for the failure's message."""
    found = []
    for line in lines:
        for special in (False, True):
            mine = ours.tokenize(line, add_bos=True, parse_special=special)
            right = theirs.tokenize(line, add_bos=True, parse_special=special)
            if mine != right:
                found.append(f"{line!r} (special tokens: {special})\n    {mine}\n    {right}")
    return found


def assert_same_vocabulary(ours: Tokenizer, theirs: BorrowedVocabulary) -> None:
    """Everything about single tokens."""
    assert (ours.size, ours.bos, ours.end_tokens) == (theirs.size, theirs.bos, theirs.end_tokens)
    for token in range(ours.size):
        assert ours.token_bytes(token) == theirs.token_bytes(token), ours.token_name(token)
        assert ours.token_name(token) == theirs.token_name(token)
