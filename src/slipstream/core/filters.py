"""top-k, top-p and min-p by threshold.

All three keep a set of the largest logits, so what survives is one threshold on the row. Nothing sorts a
whole vocabulary: candidates come from block maxima, and only candidates are ordered.
"""

import math

import numpy as np
from numpy.typing import NDArray

from slipstream.core.blocks import Logits, at_least, top
from slipstream.core.noise import Ids
from slipstream.core.params import SamplingParams


def survivors(row: Logits, maxima: Logits, params: SamplingParams) -> tuple[Ids, Logits]:
    """Ids and logits of the tokens that temperature, top-k, top-p and min-p leave, in no particular order.

    row: [vocab] processed logits; maxima: their block maxima; `params.temperature` > 0.
    """
    largest = float(maxima.max())
    floor = largest + params.temperature * math.log(params.min_p) if params.min_p > 0 else -math.inf
    if params.top_k > 0:
        ids, logits = top(row, maxima, params.top_k)
        if params.top_p < 1:
            ids, logits = _nucleus(ids, logits, largest, params, _mass(logits, largest, params.temperature))
        kept = logits >= floor
        return ids[kept], logits[kept]
    if params.top_p == 1:
        return at_least(row, maxima, floor)
    total = _mass(row, largest, params.temperature)
    reach = floor if params.min_p > 0 else largest - 6 * params.temperature
    while True:
        ids, logits = at_least(row, maxima, reach)
        covered = _mass(logits, largest, params.temperature) >= params.top_p * total
        if covered:
            return _nucleus(ids, logits, largest, params, total)
        if params.min_p > 0 or len(ids) == len(row):
            return ids, logits  # the nucleus reaches below the floor, or rounding ate its last grains
        reach = 2 * reach - largest if math.isfinite(reach) and len(ids) < len(row) // 8 else -math.inf


def _mass(logits: Logits, largest: float, temperature: float) -> float:
    """Sum of exp((logit - largest) / temperature)."""
    scaled = logits - np.float32(largest)
    scaled *= np.float32(1 / temperature)
    return float(np.exp(scaled, out=scaled).sum())


def _nucleus(ids: Ids, logits: Logits, largest: float, params: SamplingParams, total: float) -> tuple[Ids, Logits]:
    """The most probable of the candidates whose mass first reaches top_p of `total`, and their ties."""
    descending = np.sort(logits)[::-1]
    weights: NDArray[np.float64] = np.exp((descending.astype(np.float64) - largest) / params.temperature)
    last = int(np.searchsorted(np.cumsum(weights), params.top_p * total))
    threshold = descending[min(last, len(descending) - 1)]
    kept = logits >= threshold
    return ids[kept], logits[kept]
