"""top-k, top-p and min-p by threshold.

All three keep a set of the largest logits, so what survives is one threshold on the row. Nothing sorts a
whole vocabulary: candidates come from block maxima, and only candidates are ordered.
"""

import math

import numpy as np
from numpy.typing import NDArray

from slipstream.core.blocks import Logits, at_least, top
from slipstream.core.noise import BLOCK_MEMBERS, Ids
from slipstream.core.params import SamplingParams

_SORTABLE = 2048
"""More candidates than this are narrowed down by a histogram before any are sorted."""


def survivors(row: Logits, maxima: Logits, params: SamplingParams) -> tuple[Ids, Logits]:
    """Ids and logits of the tokens that temperature, top-k, top-p and min-p leave, in no particular order.

    row: [vocab] processed logits; maxima: their block maxima; `params.temperature` > 0.
    """
    largest = float(maxima.max())
    floor = largest + params.temperature * math.log(params.min_p) if params.min_p > 0 else -math.inf
    if params.top_k > 0:
        ids, logits = top(row, maxima, params.top_k)
        threshold = floor
        if params.top_p < 1:
            mass = float(weights(logits, largest, params.temperature).sum())
            last = _nucleus(logits, largest, params, (mass, mass))
            assert last is not None, "one exact mass leaves nothing open"
            threshold = max(floor, last)
    elif params.top_p == 1:
        return at_least(row, maxima, floor)
    else:
        ids, logits, threshold = _nucleus_of_row(row, maxima, largest, floor, params)
    kept = logits >= threshold
    return ids[kept], logits[kept]


def _nucleus_of_row(
    row: Logits, maxima: Logits, largest: float, floor: float, params: SamplingParams
) -> tuple[Ids, Logits, float]:
    """Candidates, and the threshold among them that top-p and the floor of min-p set together."""
    total: tuple[float, float] | None = None
    for reach in (max(floor, largest - 6 * params.temperature), floor):
        ids, logits = at_least(row, maxima, reach)
        threshold = _nucleus(logits, largest, params, total or mass_bounds(maxima, logits, reach, largest, params))
        if threshold is None:  # the bounds do not decide: add up the whole row
            mass = float(weights(row, largest, params.temperature).sum())
            total = (mass, mass)
            threshold = _nucleus(logits, largest, params, total)
        if threshold is not None and threshold > -math.inf:
            return ids, logits, threshold
    return ids, logits, floor  # the nucleus reaches below the floor, or rounding ate its last grains


def weights(logits: Logits, largest: float, temperature: float) -> Logits:
    """exp((logit - largest) / temperature): probabilities relative to the most probable."""
    scaled = logits - np.float32(largest)
    scaled *= np.float32(1 / temperature)
    np.exp(scaled, out=scaled)
    return scaled


def mass_bounds(
    maxima: Logits, candidates: Logits, reach: float, largest: float, params: SamplingParams
) -> tuple[float, float]:
    """Two bounds of the row's mass without looking at it: outside the candidates no token exceeds its block's
    maximum, nor the reach, and in a block without candidates one token attains the maximum."""
    inside = float(weights(candidates, largest, params.temperature).sum())
    blocks = weights(np.minimum(maxima, np.float32(reach)), largest, params.temperature)
    without = maxima < reach
    return inside + float(blocks[without].sum()), inside + BLOCK_MEMBERS * float(blocks.sum())


def _nucleus(logits: Logits, largest: float, params: SamplingParams, mass: tuple[float, float]) -> float | None:
    """The logit of the last token of the nucleus: the most probable tokens whose mass first reaches top_p.

    mass: bounds of the mass of all tokens. None if they leave the answer open, -inf if the nucleus has more
    than these logits.
    """
    low, high = (params.top_p * bound for bound in mass)
    above = 0.0
    if len(logits) > _SORTABLE:
        logits, above = _narrowed(logits, largest, params, low)
    descending = np.sort(logits)[::-1]
    reached = np.cumsum(weights(descending, largest, params.temperature), dtype=np.float64)
    reached += above
    first, last = np.searchsorted(reached, (low, high))
    if first != last:
        return None
    return float(descending[first]) if first < len(descending) else -math.inf


def _narrowed(logits: Logits, largest: float, params: SamplingParams, wanted: float) -> tuple[Logits, float]:
    """The logits from that bin of a histogram downwards in which the mass reaches `wanted`, and the mass above."""
    masses = weights(logits, largest, params.temperature)
    scale = 1023 / max(largest - float(logits.min()), 1e-30)
    bins: NDArray[np.int64] = ((largest - logits) * np.float32(scale)).astype(np.int64)
    reached = np.cumsum(np.bincount(bins, masses))
    bin_ = int(np.searchsorted(reached, wanted))
    return logits[bins >= bin_], float(reached[bin_ - 1]) if bin_ else 0.0
