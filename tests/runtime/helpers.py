"""Steps that the runtime's tests share."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.core.protocols import Segment
from slipstream.runtime.llamacpp import LlamaCppModel
from slipstream.runtime.llamacpp.session import LlamaCppSession

TOLERANCE = 2e-3
"""Largest difference of a logit (they are a few units) that computing the same rows in another batch may make.

llama.cpp takes other kernels for other row counts, and keys and values are rounded to f16. Wrong
context moves logits by whole units (`test_context_matters` shows it).
"""


def compute(model: LlamaCppModel, session: LlamaCppSession, tokens: Sequence[int]) -> NDArray[np.float32]:
    """[n, vocab] logits of these rows, copied; nothing is committed."""
    rows = model.forward([Segment(session, tokens)])[0]
    return np.array([rows.logits(index) for index in range(len(tokens))])


def feed(model: LlamaCppModel, session: LlamaCppSession, tokens: Sequence[int]) -> NDArray[np.float32]:
    """`compute`, and commit all rows."""
    logits = compute(model, session, tokens)
    session.commit(range(len(tokens)))
    return logits


def assert_same(left: NDArray[np.float32], right: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(left, right, atol=TOLERANCE)


def assert_different(left: NDArray[np.float32], right: NDArray[np.float32]) -> None:
    assert np.abs(left - right).max() > 100 * TOLERANCE
