"""How far the native runtime's logits are from llama.cpp's on the same file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.core.feed import feed as prefill
from slipstream.core.protocols import Model, Segment
from slipstream.runtime import load_llamacpp
from slipstream.runtime.native import load_native
from tests.runtime.native.helpers import feed

TOKENS = list(range(30, 90))

EXACT = 1e-3
"""Both keep keys and values as half precision; nothing else of an F32 file is rounded."""


def native_logits(path: Path) -> NDArray[np.float32]:
    """[n, vocab] after each of `TOKENS`."""
    model = load_native(path, context_length=128, threads=1)
    logits = feed(model, model.open_session(), TOKENS)
    model.close()
    return logits


def llamacpp_logits(path: Path) -> NDArray[np.float32]:
    """The same."""
    model = load_llamacpp(path, context_length=128, threads=1)
    logits = logits_of(model, TOKENS)
    model.close()
    return logits


def logits_of(model: Model, tokens: list[int], after: Sequence[int] = ()) -> NDArray[np.float32]:
    """[n, vocab] for all tokens, in one forward of a new session that has read those of `after`."""
    session = model.open_session()
    for _ in prefill(model, session, after):
        pass
    rows = model.forward([Segment(session, tokens)])[0]
    logits = np.array([rows.logits(row) for row in range(len(tokens))])
    session.close()
    return logits


def distance(path: Path) -> float:
    """Root mean square of the difference, in units of the logits' own spread."""
    ours, theirs = native_logits(path), llamacpp_logits(path)
    return float(np.sqrt(np.mean((ours - theirs) ** 2)) / theirs.std())


def divergence(path: Path) -> float:
    """Mean Kullback-Leibler divergence of our distributions from theirs, in nats."""
    return mean_divergence(llamacpp_logits(path), native_logits(path))


def mean_divergence(right: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Mean over rows of sum p log(p / q), p being the softmax of `right`."""
    log_p, log_q = _log_softmax(right), _log_softmax(other)
    return float((np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean())


def perplexity(logits: NDArray[np.float32], tokens: list[int]) -> float:
    """exp of the mean negative log-likelihood of all tokens but the first. logits: [n, vocab] after each."""
    return float(np.exp(-_log_softmax(logits[:-1])[np.arange(len(tokens) - 1), tokens[1:]].mean()))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
