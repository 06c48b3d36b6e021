"""Answers that repeat themselves: they make any drafter look good and say nothing about it."""

from collections.abc import Hashable, Sequence

GRAM = 4
LOOPING = 1 / 3
"""Answers with a larger share of repeated 4-grams are reported and left out of speed-ups."""


def repeated_share(tokens: Sequence[Hashable]) -> float:
    """Share of the answer's 4-grams that occurred before in it; 0 for answers that have none. Words do as tokens."""
    grams = [tuple(tokens[start : start + GRAM]) for start in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
