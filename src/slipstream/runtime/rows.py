"""The rows of one segment of a forward, as views into a runtime's table of logits."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.core.blocks import ranked, top
from slipstream.core.protocols import Logits


class Generation(Protocol):
    """Counts a model's forwards, so that rows can tell when they are over."""

    generation: int


class TableRows:
    """Implements `core.protocols.Rows` without hidden states. Valid until the model's next forward.

    table:   [rows, vocab] float32, a view of the runtime's buffer: all rows of the forward that gave logits
    shift:   index in `table` of the segment's row 0, negative where the first rows gave none
    first, count: the segment's rows that gave logits
    """

    __slots__ = ("_born", "_first", "_model", "_shift", "_stop", "_table")

    def __init__(self, model: Generation, table: NDArray[np.float32], shift: int, first: int, count: int) -> None:
        self._model = model
        self._born = model.generation
        self._table = table
        self._shift = shift
        self._first = first
        self._stop = first + count

    def logits(self, row: int) -> Logits:
        """[vocab] float32, raw, contiguous. A view: do not write into it and do not keep it."""
        self.require_valid()
        assert self._first <= row < self._stop, f"no logits were asked for row {row} (see Segment.outputs)"
        view: Logits = self._table[row + self._shift]
        return view

    def top(self, row: int, count: int) -> tuple[NDArray[np.int64], Logits]:
        """Ids and logits of the `count` largest, largest first, ties by the lowest id."""
        return ranked(*top(self.logits(row), count), count)

    def hidden(self, row: int, layer: int) -> NDArray[np.float32]:
        """A runtime without hidden states says so in its `Capabilities`."""
        raise AssertionError("this runtime has no hidden states")

    def require_valid(self) -> None:
        """Rows of an earlier forward are a mistake of ours."""
        assert self._born == self._model.generation, "rows are valid until the model's next forward"
