"""The target's distribution after all filters, written the slow, obvious way: sorted, in float64, no shortcut.

What is drawn is held against this; nothing here is shared with the sampler.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Logits

Floats = NDArray[np.float64]


def processed(row: Logits, params: SamplingParams, seen: Sequence[int]) -> Logits:
    """[vocab] logits after bias and penalties. seen: the prompt and everything generated before the token."""
    out = row.copy()
    for token, bias in params.logit_bias.items():
        out[token] += np.float32(bias)
    if params.has_penalties:
        penalty = np.float32(params.repetition_penalty)
        for token, times in Counter(seen).items():
            out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
            out[token] -= np.float32(params.frequency_penalty * times + params.presence_penalty)
    return out


def distribution(row: Logits, params: SamplingParams, seen: Sequence[int]) -> Floats:
    """[vocab] the target's distribution p: what the next token's law is, in plain decoding as in verification."""
    logits = processed(row, params, seen).astype(np.float64)
    if params.temperature == 0:
        return np.asarray(np.arange(len(logits)) == logits.argmax(), np.float64)
    p: Floats = np.exp((logits - logits.max()) / params.temperature)
    if params.top_k:
        p[p < np.sort(p)[::-1][min(params.top_k, len(p)) - 1]] = 0
    p /= p.sum()
    if params.top_p < 1:
        order = np.sort(p)[::-1]
        last = int(np.searchsorted(np.cumsum(order), params.top_p))
        p[p < order[min(last, len(p) - 1)]] = 0
    p[p < params.min_p * p.max()] = 0
    p /= p.sum()
    return p


def is_borderline(row: Logits, params: SamplingParams, seen: Sequence[int]) -> bool:
    """Whether a token stands so close to the border of a filter that float32 may decide otherwise than float64."""
    if params.temperature == 0 or not params.has_filters:
        return False
    kept = [int(np.count_nonzero(distribution(row, _moved(params, by), seen))) for by in (-1e-5, 1e-5)]
    return kept[0] != kept[1]


def _moved(params: SamplingParams, by: float) -> SamplingParams:
    """Filters that are a little tighter (`by` > 0) or looser; those that are off stay off."""
    top_p = params.top_p if params.top_p == 1 else min(1.0, params.top_p * (1 - by))
    return replace(params, top_p=top_p, min_p=min(1.0, params.min_p * (1 + by)))
