"""Rows: views that end with the next forward."""

import numpy as np
import pytest

from slipstream.core.protocols import Segment
from slipstream.runtime.llamacpp import LlamaCppModel


def test_logits_are_views_that_cannot_be_written(model: LlamaCppModel) -> None:
    session = model.open_session()
    rows = model.forward([Segment(session, [40, 41, 42])])[0]
    first, again = rows.logits(1), rows.logits(1)
    assert first.shape == (model.vocabulary.size,)
    assert first.dtype == np.float32
    assert first.flags.c_contiguous
    assert np.shares_memory(first, again)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    session.close()


def test_rows_end_with_the_next_forward(model: LlamaCppModel) -> None:
    session = model.open_session()
    rows = model.forward([Segment(session, [40])])[0]
    model.forward([Segment(session, [41])])
    with pytest.raises(AssertionError, match="valid until the model's next forward"):
        rows.logits(0)
    session.close()


def test_only_rows_that_were_asked_for_have_logits(model: LlamaCppModel) -> None:
    """`outputs` counts from the last row; the others are not even computed."""
    first, second, third = (model.open_session() for _ in range(3))
    whole = model.forward([Segment(first, [40, 41, 42, 43])])[0]
    expected = {row: np.array(whole.logits(row)) for row in (2, 3)}
    batch = [
        Segment(first, [40, 41, 42, 43], outputs=2),
        Segment(second, [50, 51], outputs=0),
        Segment(third, [40, 41, 42, 43], outputs=1),
    ]
    some, none, last = model.forward(batch)
    for rows, present, absent in ((some, [2, 3], [0, 1, 4, -1]), (none, [], [0, 1]), (last, [3], [0, 2])):
        for row in present:
            np.testing.assert_allclose(rows.logits(row), expected[row], atol=2e-3)
        for row in absent:
            with pytest.raises(AssertionError, match="no logits were asked for"):
                rows.logits(row)
    ids, values = last.top(3, 5)
    assert ids[0] == expected[3].argmax()
    assert np.all(np.diff(values) <= 0)
    for session in (first, second, third):
        session.close()
