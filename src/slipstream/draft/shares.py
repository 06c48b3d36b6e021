"""How the rows of a draft model's forward are shared by texts, some of which have missed much."""

from collections.abc import Sequence

MOST_READ = 256
"""Tokens that a draft model reads in one step where several texts are decoded: the others wait for it."""


def shares(lacking: Sequence[int], most: int) -> list[int]:
    """Rows for each text, `most` in all: what it lacks where that is little, and equal parts of the rest.

    lacking: tokens that each has to read, 1 or more. Each gets one at least.
    """
    granted = [1] * len(lacking)
    for place, index in enumerate(sorted(range(len(lacking)), key=lacking.__getitem__)):
        granted[index] = max(min(lacking[index], most // (len(lacking) - place)), 1)
        most -= granted[index]
    return granted
