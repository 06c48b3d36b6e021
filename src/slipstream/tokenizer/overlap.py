"""How many tokens of two vocabularies stand for the same bytes."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.models.vocabulary import BYTE, NORMAL, USER_DEFINED, Vocabulary
from slipstream.tokenizer.alphabet import byte_name, decoded
from slipstream.tokenizer.merges import BLANK

_BLANK = BLANK.encode()
_BYTES = {byte_name(byte).encode(): bytes([byte]) for byte in range(256)}


class Overlap(NamedTuple):
    """shared: texts that are a token in both vocabularies; one, other: tokens of each that are text."""

    shared: int
    one: int
    other: int

    @property
    def share(self) -> float:
        """Of the smaller vocabulary, how much the larger one has."""
        return self.shared / max(min(self.one, self.other), 1)


def overlap(one: Vocabulary, other: Vocabulary) -> Overlap:
    """Compare two vocabularies by what their tokens stand for, whatever their ids and spelling."""
    ours, theirs = _texts(one), _texts(other)
    return Overlap(len(np.intersect1d(ours, theirs)), len(ours), len(theirs))


def _texts(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """[n] hashes of the texts that are tokens, each once: what else is text takes as much memory as a small model."""
    return np.unique(np.fromiter(map(hash, _bytes(vocabulary)), np.int64))


def _bytes(vocabulary: Vocabulary) -> Iterator[bytes]:
    types = vocabulary.types.tolist() if len(vocabulary.types) else [NORMAL] * len(vocabulary)
    byte_level = vocabulary.model == "gpt2"
    for spelling, kind in zip(vocabulary.tokens, types, strict=True):
        if kind == NORMAL:
            yield decoded(spelling.decode(errors="replace")) if byte_level else spelling.replace(_BLANK, b" ")
        elif kind == USER_DEFINED:
            yield spelling
        elif kind == BYTE:
            yield _BYTES.get(spelling, b"")
