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
    """An upper bound of the smallest change of logits that makes `other` the choice at `position`.

    row:   [vocab] raw logits, from which `sampler` chooses; it must be in the state it had before the position
    other: the token that was chosen elsewhere

    The change is the largest over all entries (sup norm), in logits. Two ways are tried, and the cheaper counts:
    `other` rises and all others fall; `other` rises, the present choice falls, and all others rise, which may push
    the choice out of a filter. Both change scores and membership in top-k, top-p and min-p alike, so a token that
    stands just inside or just outside a filter has a small gap. 0 if the row already gives `other`.
    """
    sampler = deepcopy(sampler)
    chosen = sampler.choose(row, position)
    if chosen == other:
        return 0.0

    others, choice = (np.zeros(len(row), np.float32) for _ in range(2))
    others[:] = -1
    others[other] = 1
    choice[:] = 1
    choice[chosen] = -1

    def flips(direction: Logits) -> Callable[[float], bool]:
        return lambda size: sampler.choose(row + np.float32(size) * direction, position) == other

    return min(_bisect(flips(others)), _bisect(flips(choice)))


def _bisect(flips: Callable[[float], bool]) -> float:
    """The smallest size that flips, to one part in a thousand."""
    low, high = 0.0, LARGEST
    if not flips(high):
        return LARGEST
    while high - low > 1e-3 * high + 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if flips(middle) else (middle, high)
    return high
