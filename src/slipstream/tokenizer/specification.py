"""What a model file says about its tokenizer, checked, and with llama.cpp's answers where it says nothing.

Two kinds can be built: byte-pair encoding with merges in the file ("gpt2", "gemma4"), and SentencePiece, whose merges
follow from scores ("llama"). Whatever is odd about a file is refused with a sentence: a text in other tokens than the
model knows would be answered all the same, only worse, and nobody would notice.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.errors import ModelFileError, UnsupportedModelError
from slipstream.models.gguf import GgufHeader
from slipstream.models.packed_strings import PackedStrings
from slipstream.models.vocabulary import NORMAL, Vocabulary
from slipstream.tokenizer.pretokenizers import GEMMA4, PRE_TOKENIZERS, PreTokenizer

# The ids that llama.cpp takes where a file states none.
_BOS = {"llama": 1, "gpt2": 11, "gemma4": None}
_EOS = {"llama": 2, "gpt2": 11, "gemma4": None}
_WITHOUT_BOS = ("chatglm-bpe", "glm4", "glm5")


@dataclass(frozen=True, slots=True)
class Specification:
    """A tokenizer, as its file describes it.

    tokens:       in the tokenizer's own spelling
    types:        [n] int32, as in `models.vocabulary`
    pre:          how texts are cut; None is a SentencePiece vocabulary, which cuts nowhere
    merges:       pairs joined by a space, most urgent first; None for SentencePiece
    scores:       [n] float32, for SentencePiece
    space_prefix: a text begins with a space that it does not have
    bos:          what a text begins with, None if nothing
    eos:          what the file states or llama.cpp assumes, None if neither
    """

    path: Path
    tokens: PackedStrings
    types: npt.NDArray[np.int32]
    pre: PreTokenizer | None
    merges: PackedStrings | None
    scores: npt.NDArray[np.float32] | None
    space_prefix: bool
    bos: int | None
    eos: int | None

    @classmethod
    def from_header(cls, header: GgufHeader) -> "Specification":
        """Read it. Raises UnsupportedModelError for a kind that is not known, ModelFileError for a damaged one."""
        kind = header.text("tokenizer.ggml.model") or ""
        if kind not in _BOS:
            raise UnsupportedModelError(f"{header.path.name} has a tokenizer of an unknown kind ({kind!r}).")
        stated = Vocabulary.from_header(header)
        count = len(stated)
        types = stated.types if len(stated.types) else np.full(count, NORMAL, np.int32)
        pre = _pre_tokenizer(header, kind)
        add_bos = header.flag("tokenizer.ggml.add_bos_token")
        if add_bos is None or pre is GEMMA4:
            add_bos = pre is None or pre.add_bos
        default_bos = None if header.text("tokenizer.ggml.pre") in _WITHOUT_BOS else _BOS[kind]
        bos = stated_id(header, "bos_token_id", count, default_bos)
        prefix = header.flag("tokenizer.ggml.add_space_prefix")
        return cls(
            path=header.path,
            tokens=stated.tokens,
            types=types,
            pre=pre,
            merges=None if pre is None else _merges(header),
            scores=_scores(header, count) if pre is None else None,
            space_prefix=pre is None and prefix is not False,
            bos=bos if add_bos else None,
            eos=stated_id(header, "eos_token_id", count, _EOS[kind]),
        )

    @property
    def byte_level(self) -> bool:
        """Whether tokens are spelled in GPT-2's alphabet of bytes."""
        return self.pre is not None and self.pre.byte_level

    def texts(self) -> list[str]:
        """All tokens, an empty one with llama.cpp's name for it. Raises ModelFileError where one is not UTF-8."""
        try:
            return [token.decode() or empty_name(number) for number, token in enumerate(self.tokens)]
        except UnicodeDecodeError:
            raise self.damaged("a token is not UTF-8") from None

    def key(self) -> str:
        """The same for two files whose texts become the same tokens: 32 hex digits."""
        digest = hashlib.sha256(repr((self.pre, len(self.tokens), len(self.merges or ()))).encode())
        digest.update(self.tokens.raw)
        digest.update(self.types.tobytes())
        digest.update(b"" if self.merges is None else self.merges.raw)
        digest.update(b"" if self.scores is None else self.scores.tobytes())
        return digest.hexdigest()[:32]

    def damaged(self, fact: str) -> ModelFileError:
        """The error for a file that cannot be right; `fact` is a clause."""
        return ModelFileError(f"{self.path.name} has a damaged tokenizer ({fact}); download or convert it again.")


def empty_name(token: int) -> str:
    """What llama.cpp calls a token whose spelling is empty."""
    return f"[EMPTY_{token}]"


def stated_id(header: GgufHeader, name: str, count: int, default: int | None = None) -> int | None:
    """A token id that the file states, else the default; ids that do not exist count as not stated."""
    for token in (header.integer(f"tokenizer.ggml.{name}"), default):
        if token is not None and 0 <= token < count:
            return token
    return None


def _pre_tokenizer(header: GgufHeader, kind: str) -> PreTokenizer | None:
    if kind == "llama":
        return None
    name = header.text("tokenizer.ggml.pre") or "default"
    if kind == "gemma4":
        return GEMMA4
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(f"{header.path.name} cuts texts in a way that is not known ({name!r}).")
    return PRE_TOKENIZERS[name]


def _merges(header: GgufHeader) -> PackedStrings:
    merges = header.metadata.get("tokenizer.ggml.merges")
    if isinstance(merges, PackedStrings):
        return merges
    raise ModelFileError(f"{header.path.name} has a tokenizer without merges; download or convert it again.")


def _scores(header: GgufHeader, count: int) -> npt.NDArray[np.float32]:
    scores: Any = header.metadata.get("tokenizer.ggml.scores")
    if isinstance(scores, np.ndarray) and len(scores) == count and np.isfinite(scores).all():
        return scores.astype(np.float32)
    raise ModelFileError(f"{header.path.name} has a tokenizer without proper scores; download or convert it again.")
