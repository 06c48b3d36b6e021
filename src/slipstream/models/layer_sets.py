"""Sets of a model's layers: how they are spelt, and which ones to begin with."""

import re
from collections.abc import Sequence
from itertools import pairwise

from slipstream.errors import UsageError

Layers = tuple[int, ...]
"""Numbers of the layers that are run, ascending, from 0."""

FORM = "layers: must be followed by the layers that are run, such as layers:0-5,24-29"


def parse_layers(text: str, count: int, name: str) -> Layers:
    """What `spelled` gives, and the like, of a model of `count` layers. Raises UsageError with one sentence.

    >>> parse_layers("0-2,5", 8, "model.gguf")
    (0, 1, 2, 5)
    """
    ranges = [_range(part, text) for part in text.split(",")]
    if any(first > last for first, last in ranges) or any(one[1] >= other[0] for one, other in pairwise(ranges)):
        raise UsageError(f"{FORM}, in ascending order and each once, not {text!r}.")
    if ranges[-1][1] >= count:
        raise UsageError(f"{name} has the layers 0 to {count - 1}, and layers:{text} names the layer {ranges[-1][1]}.")
    layers = tuple(layer for first, last in ranges for layer in range(first, last + 1))
    if len(layers) == count:
        raise UsageError(f"layers:{text} is all of {name}, which would not be faster; leave some of its layers out.")
    return layers


def spelled(layers: Sequence[int]) -> str:
    """Ascending numbers as ranges.

    >>> spelled([0, 1, 2, 5])
    '0-2,5'
    """
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][-1] == layer - 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def without_the_middle(count: int, kept: float, period: int = 1) -> Layers:
    """About the share `kept` of `count` layers, the same number from either end; at least one, and not all.

    period: the number that is left out is a multiple of this, so that what comes after has its place in a pattern of
            such a length; no layers at all where there are too few for that

    >>> without_the_middle(8, 0.5)
    (0, 1, 6, 7)
    """
    left_out = min(round((count - count * kept) / period), (count - 1) // period)
    left_out = max(left_out, 1) * period
    first = (count - left_out + 1) // 2
    return tuple(layer for layer in range(count) if not first <= layer < first + left_out) if left_out < count else ()


def _range(part: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part, re.ASCII)
    if found is None:
        raise UsageError(f"{FORM}, not {text!r}.")
    first, last = found.groups()
    return int(first), int(last or first)
