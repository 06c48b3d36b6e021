"""The sampler written the slow, obvious way: sorted, in float64, over the whole vocabulary."""

import numpy as np
from numpy.typing import NDArray

from slipstream.core.noise import Noise
from slipstream.core.params import SamplingParams


def processed(row: NDArray[np.float32], params: SamplingParams, seen: list[int]) -> NDArray[np.float32]:
    out = row.copy()
    for token, bias in params.logit_bias.items():
        out[token] += np.float32(bias)
    for token in set(seen):
        penalty = np.float32(params.repetition_penalty)
        out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
        out[token] -= np.float32(params.frequency_penalty * seen.count(token) + params.presence_penalty)
    return out


def distribution(row: NDArray[np.float32], params: SamplingParams, seen: list[int]) -> NDArray[np.float64]:
    """[vocab] the target's distribution p after all filters."""
    logits = processed(row, params, seen).astype(np.float64)
    if params.temperature == 0:
        return (np.arange(len(logits)) == logits.argmax()).astype(np.float64)
    p = np.exp((logits - logits.max()) / params.temperature)
    if params.top_k:
        p[p < np.sort(p)[::-1][min(params.top_k, len(p)) - 1]] = 0
    p /= p.sum()
    if params.top_p < 1:
        order = np.sort(p)[::-1]
        p[p < order[min(np.searchsorted(np.cumsum(order), params.top_p), len(p) - 1)]] = 0
    p[p < params.min_p * p.max()] = 0
    return p / p.sum()


def choose(row: NDArray[np.float32], params: SamplingParams, seen: list[int], position: int) -> int:
    """argmax of log p + G over the tokens that have a probability."""
    p = distribution(row, params, seen)
    ids = np.flatnonzero(p)
    assert params.seed is not None
    return int(ids[np.argmax(np.log(p[ids]) + Noise(params.seed).at(position).gumbel(ids))])
