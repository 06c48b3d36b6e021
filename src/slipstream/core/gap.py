"""How close a decision was: the change of logits that would have flipped it.

Where a runtime's logits are not the same bits for every number of rows, plain and speculative decoding may part
at a near-tie. The gap tells a near-tie from a mistake.
"""

from collections.abc import Callable
from copy import deepcopy

import numpy as np

from slipstream.core.blocks import Logits
from slipstream.core.sampling import Sampler

LARGEST = 16.0
"""Gaps are looked for up to this many logits; beyond it nothing is a tie."""


def decision_gap(row: Logits, sampler: Sampler, position: int, other: int) -> float:
    """An upper bound of the smallest change of logits that flips the decision at `position`.

    row:   [vocab] raw logits, from which `sampler` chooses; it must be in the state it had before the position
    other: the token that was chosen elsewhere

    The change is the largest over all entries (sup norm), in logits. Two ways to flip are tried, and the cheaper
    counts: help `other` (it rises, all others fall), and hinder the choice (it falls, all others rise). Both
    change scores and membership in top-k, top-p and min-p alike, so a token that stands just inside or just
    outside a filter has a small gap. 0 if the row already gives another token.
    """
    sampler = deepcopy(sampler)
    chosen = sampler.choose(row, position)
    if chosen == other:
        return 0.0

    def flips(token: int, direction: float) -> Callable[[float], bool]:
        return lambda size: sampler.choose(_moved(row, token, direction, size), position) != chosen

    return min(_bisect(flips(other, 1.0)), _bisect(flips(chosen, -1.0)))


def _moved(row: Logits, token: int, direction: float, size: float) -> Logits:
    """One token moves by `size` in the direction, all others the other way."""
    moved = row - np.float32(direction * size)
    moved[token] = row[token] + np.float32(direction * size)
    return moved


def _bisect(flips: Callable[[float], bool]) -> float:
    """The smallest size that flips, to one part in a thousand."""
    low, high = 0.0, LARGEST
    if not flips(high):
        return LARGEST
    while high - low > 1e-3 * high + 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if flips(middle) else (middle, high)
    return high
