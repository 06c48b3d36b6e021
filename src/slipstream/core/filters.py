"""top-k, top-p and min-p by threshold.

All three keep a set of the largest logits, so what survives is one threshold on the row. Nothing sorts a
whole vocabulary: only candidates are ordered.
"""

import math

import numpy as np
from numpy.typing import NDArray

from slipstream.core.blocks import Logits, at_least, top
from slipstream.core.noise import Ids
from slipstream.core.params import SamplingParams

_SORTABLE = 2048
"""More candidates than this are narrowed down by a histogram before any are sorted."""


def survivors(row: Logits, largest: float, params: SamplingParams) -> tuple[Ids, Logits]:
    """Ids, ascending, and logits of the tokens that temperature, top-k, top-p and min-p leave.

    row: [vocab] processed logits; largest: their maximum; `params.temperature` > 0.
    """
    floor = min_p_floor(largest, params)
    if params.top_k > 0:
        ids, logits = top(row, params.top_k)
        total = mass(logits, largest, params.temperature)
    elif params.top_p == 1:
        return at_least(row, floor)
    else:
        ids, logits = at_least(row, floor) if params.min_p > 0 else (np.arange(len(row)), row)
        total = mass(row, largest, params.temperature)
    threshold = floor if params.top_p == 1 else max(floor, _nucleus(logits, largest, params, total))
    kept = logits >= threshold
    return ids[kept], logits[kept]


def min_p_floor(largest: float, params: SamplingParams) -> float:
    """The least logit that min-p keeps."""
    return largest + params.temperature * math.log(params.min_p) if params.min_p > 0 else -math.inf


def weights(logits: Logits, largest: float, temperature: float) -> Logits:
    """exp((logit - largest) / temperature): probabilities relative to the most probable."""
    scaled = logits - np.float32(largest)
    if temperature != 1:
        scaled *= np.float32(1 / temperature)
    np.exp(scaled, out=scaled)
    return scaled


def mass(logits: Logits, largest: float, temperature: float) -> float:
    """Sum of `weights`."""
    return float(weights(logits, largest, temperature).sum())


def _nucleus(logits: Logits, largest: float, params: SamplingParams, total: float) -> float:
    """The logit of the last token of the nucleus: the most probable tokens whose mass first reaches top_p.

    total: the mass of all tokens that count. -inf if the nucleus has more than these logits.
    """
    wanted, above = params.top_p * total, 0.0
    if len(logits) > _SORTABLE:
        logits, above = _narrowed(logits, largest, params.temperature, wanted)
    descending = np.sort(logits)[::-1]
    reached = np.cumsum(weights(descending, largest, params.temperature), dtype=np.float64) + above
    last = int(np.searchsorted(reached, wanted))
    return float(descending[last]) if last < len(descending) else -math.inf


def _narrowed(logits: Logits, largest: float, temperature: float, wanted: float) -> tuple[Logits, float]:
    """The logits of that bin of a histogram in which the mass reaches `wanted`, and the mass above the bin."""
    logits = logits[logits > largest - 100 * temperature]  # below exp(-100) nothing adds to a float32 sum
    masses = weights(logits, largest, temperature)
    scale = np.float32(1023 / max(largest - float(logits.min()), 1e-30))
    bins: NDArray[np.int64] = ((np.float32(largest) - logits) * scale).astype(np.int64)
    reached = np.cumsum(np.bincount(bins, masses))
    chosen = min(int(np.searchsorted(reached, wanted)), len(reached) - 1)
    return logits[bins == chosen], float(reached[chosen - 1]) if chosen else 0.0
