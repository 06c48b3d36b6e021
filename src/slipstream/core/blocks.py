"""Finding the large entries of a row of logits without sorting a vocabulary.

The blocks are those of `core.noise`: one pass of vertical maxima bounds every block, and one pass of comparisons
finds all entries that reach a threshold of their own block.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.noise import BLOCK_COLUMNS, BLOCK_MEMBERS, SUPERBLOCK, Ids

Logits = NDArray[np.float32]
Score = TypeVar("Score", bound=np.floating)


def block_maxima(row: Logits) -> Logits:
    """[block_count] largest logit of each block of `row: [vocab]`. NaN anywhere shows up as NaN."""
    whole = len(row) // SUPERBLOCK * SUPERBLOCK
    maxima: Logits = row[:whole].reshape(-1, BLOCK_MEMBERS, BLOCK_COLUMNS).max(axis=1).reshape(-1)
    if whole == len(row):
        return maxima
    return np.concatenate((maxima, _tail_maxima(row[whole:])))


def _tail_maxima(tail: Logits) -> Logits:
    """Maxima of the last, incomplete superblock."""
    lines = len(tail) // BLOCK_COLUMNS
    if lines == 0:
        return tail
    maxima: Logits = tail[: lines * BLOCK_COLUMNS].reshape(lines, BLOCK_COLUMNS).max(axis=0)
    rest = tail[lines * BLOCK_COLUMNS :]
    np.maximum(maxima[: len(rest)], rest, out=maxima[: len(rest)])
    return maxima


def reaching(row: Logits, thresholds: Logits) -> Ids:
    """Ids, ascending, of every token whose logit is at least the threshold of its block: [block_count] float32."""
    reached = np.empty(len(row), np.bool_)
    whole = len(row) // SUPERBLOCK * SUPERBLOCK
    shape = (-1, BLOCK_MEMBERS, BLOCK_COLUMNS)
    if whole:
        blocks = thresholds[: whole // BLOCK_MEMBERS].reshape(-1, 1, BLOCK_COLUMNS)
        np.greater_equal(row[:whole].reshape(shape), blocks, out=reached[:whole].reshape(shape))
    if whole < len(row):
        last = thresholds[whole // BLOCK_MEMBERS :]
        lines = (len(row) - whole) // BLOCK_COLUMNS * BLOCK_COLUMNS
        middle, rest = slice(whole, whole + lines), slice(whole + lines, None)
        if lines:
            flat = (-1, BLOCK_COLUMNS)
            np.greater_equal(row[middle].reshape(flat), last, out=reached[middle].reshape(flat))
        np.greater_equal(row[rest], last[: len(row) - whole - lines], out=reached[rest])
    return reached.nonzero()[0]


def at_least(row: Logits, threshold: float) -> tuple[Ids, Logits]:
    """Ids, ascending, and logits of every token with `logit >= threshold`."""
    ids = (row >= threshold).nonzero()[0]
    return ids, row[ids]


def top(row: Logits, count: int) -> tuple[Ids, Logits]:
    """Ids, ascending, and logits of the `count` largest and of all that tie with the last of them.

    The count-th largest block maximum is a lower bound of the count-th largest logit.
    """
    if count >= len(row):
        return np.arange(len(row)), row
    maxima = block_maxima(row)
    if count > len(maxima):
        return at_least(row, np.partition(row, len(row) - count)[len(row) - count])
    ids, values = at_least(row, np.partition(maxima, len(maxima) - count)[len(maxima) - count])
    if len(ids) == count:
        return ids, values
    kept = values >= np.partition(values, len(values) - count)[len(values) - count]
    return ids[kept], values[kept]


def ranked(ids: Ids, values: NDArray[Score], count: int) -> tuple[Ids, NDArray[Score]]:
    """The `count` largest values with their ids, largest first, ties by the lowest id. ids: ascending."""
    if len(values) == 0:
        return ids, values
    if count == 1:
        best = values.argmax()
        return ids[best : best + 1], values[best : best + 1]
    order = np.argsort(-values, kind="stable")[:count]
    return ids[order], values[order]
