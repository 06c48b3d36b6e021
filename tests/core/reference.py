"""The sampler written the slow, obvious way: sorted, in float64, over the whole vocabulary."""

import numpy as np
from numpy.typing import NDArray

from slipstream.core.noise import Noise
from slipstream.core.params import SamplingParams
from slipstream.measure.law import distribution, processed

__all__ = ["choose", "distribution", "processed"]


def choose(row: NDArray[np.float32], params: SamplingParams, seen: list[int], position: int) -> int:
    """argmax of log p + G over the tokens that have a probability."""
    p = distribution(row, params, seen)
    ids = np.flatnonzero(p)
    assert params.seed is not None
    return int(ids[np.argmax(np.log(p[ids]) + Noise(params.seed).at(position).gumbel(ids))])
