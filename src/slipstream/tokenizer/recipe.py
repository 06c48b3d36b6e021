"""What is worked out from a specification, in a form that can be kept in a file."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Recipe(NamedTuple):
    """What makes a vocabulary a tokenizer.

    characters: some that are no tokens: parts of others, to be spelled in bytes where they are left over, or letters of
                the byte-level alphabet, to be left out, but nothing is merged across them. Their ids follow the tokens'
    merges:     [m, 2] int32, pairs of ids, most urgent first
    """

    characters: list[str]
    merges: npt.NDArray[np.int32]

    @classmethod
    def of(cls, characters: list[str], pairs: Sequence[Sequence[int]]) -> "Recipe":
        """From pairs of ids."""
        return cls(characters, np.array(pairs, "<i4").reshape(-1, 2))

    def encoded(self) -> bytes:
        """A line of JSON with the characters, then the merges."""
        return json.dumps(self.characters).encode() + b"\n" + self.merges.tobytes()

    @classmethod
    def decoded(cls, data: bytes) -> "Recipe":
        """From what `encoded` gave."""
        characters, _, merges = data.partition(b"\n")
        return cls(json.loads(characters), np.frombuffer(merges, "<i4").reshape(-1, 2))
