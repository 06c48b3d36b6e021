"""Block maxima of a row of logits: how to find the large entries of a vocabulary without sorting it.

The blocks are those of `core.noise`. One pass of vertical maxima (5 microseconds at 49k tokens) bounds every
block; after that only the blocks that can matter are looked into.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.noise import BLOCK_COLUMNS, BLOCK_MEMBERS, SUPERBLOCK, Ids, block_ids

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


def block_members(row: Logits, blocks: Ids) -> Ids:
    """Ids of all tokens in these blocks."""
    ids = block_ids(blocks).reshape(-1)
    return ids[ids < len(row)] if len(row) % SUPERBLOCK else ids


def at_least(row: Logits, maxima: Logits, threshold: float) -> tuple[Ids, Logits]:
    """Ids and logits of every token with `logit >= threshold`, in no particular order."""
    blocks = np.flatnonzero(maxima >= threshold)
    if len(blocks) * 8 > len(maxima):  # so many that looking everywhere is cheaper
        ids = np.flatnonzero(row >= threshold)
        return ids, row[ids]
    ids = block_members(row, blocks)
    values = row[ids]
    kept = values >= threshold
    return ids[kept], values[kept]


def top(row: Logits, maxima: Logits, count: int) -> tuple[Ids, Logits]:
    """Ids and logits of the `count` largest and of all that tie with the last of them, in no particular order.

    The count-th largest block maximum is a lower bound of the count-th largest logit.
    """
    if count >= len(row):
        return np.arange(len(row)), row
    if count > len(maxima):
        threshold = np.partition(row, len(row) - count)[len(row) - count]
        return at_least(row, maxima, threshold)
    bound = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
    ids, values = at_least(row, maxima, bound)
    if len(ids) == count:
        return ids, values
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    kept = values >= threshold
    return ids[kept], values[kept]


def ranked(ids: Ids, values: NDArray[Score], count: int) -> tuple[Ids, NDArray[Score]]:
    """The `count` largest values with their ids, largest first, ties by the lowest id."""
    if len(values) == 0:
        return ids, values
    if count == 1:
        best = np.flatnonzero(values == values.max())
        if len(best) > 1:
            best = best[np.argmin(ids[best])][None]
    else:
        best = np.lexsort((ids, -values))[:count]
    return ids[best], values[best]
