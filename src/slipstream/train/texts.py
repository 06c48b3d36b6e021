"""Texts that are trained on: a prompt and what the target answered, as tokens, kept in shards on disk."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.train.files import DamagedFileError, read_checked, write_checked

SHARD = 64
"""Texts in a shard: what a killed program may lose."""


class Text(NamedTuple):
    """One text.

    tokens: [n] int32 prompt and answer
    prompt: tokens of the prompt; what comes after them is what a drafter is to guess
    seed:   that the answer was sampled with
    """

    tokens: NDArray[np.int32]
    prompt: int
    kind: str
    temperature: float
    seed: int

    @property
    def answer_length(self) -> int:
        return len(self.tokens) - self.prompt


class Shard(NamedTuple):
    """Texts that lie in one file, and the seconds that making them took."""

    texts: list[Text]
    seconds: float

    @property
    def answer_tokens(self) -> int:
        return sum(text.answer_length for text in self.texts)


def shard_path(folder: Path, number: int) -> Path:
    """Where a shard of texts lies."""
    return folder / f"texts-{number:05}.bin"


def write_shard(path: Path, texts: Sequence[Text], seconds: float) -> None:
    """Write one. Raises StorageError."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        tokens=np.concatenate([text.tokens for text in texts]) if texts else np.zeros(0, np.int32),
        lengths=np.array([len(text.tokens) for text in texts], np.int64),
        prompts=np.array([text.prompt for text in texts], np.int64),
        kinds=np.array([text.kind for text in texts], np.str_),
        temperatures=np.array([text.temperature for text in texts], np.float64),
        seeds=np.array([text.seed for text in texts], np.uint64),
        seconds=np.array(seconds),
    )
    write_checked(path, buffer.getvalue())


def read_shard(path: Path) -> Shard:
    """Read one. Raises DamagedFileError, and FileNotFoundError where there is none."""
    payload = read_checked(path)
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
            ends = np.cumsum(arrays["lengths"]).tolist()
            tokens = [arrays["tokens"][start:end] for start, end in zip([0, *ends[:-1]], ends, strict=bool(ends))]
            columns = zip(
                tokens, arrays["prompts"], arrays["kinds"], arrays["temperatures"], arrays["seeds"], strict=True
            )
            texts = [Text(t, int(p), str(k), float(warm), int(seed)) for t, p, k, warm, seed in columns]
            return Shard(texts, float(arrays["seconds"]))
    except (ValueError, KeyError) as error:
        raise DamagedFileError from error
