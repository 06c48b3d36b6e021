"""The arrays of one `llama_batch`, made once and filled with slices."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Chain(NamedTuple):
    """Rows of one sequence, the first at `position`; the last `outputs` of them give logits."""

    sequence: int
    position: int
    tokens: Sequence[int]
    outputs: int


class Batch:
    """Rows for one `llama_decode`: a token, its position, its sequence and whether its logits are read.

    The library wants a pointer to a list of sequence ids for each row; ours point to one cell per sequence.
    """

    def __init__(self, llama: Any, rows: int, sequences: int, positions: int) -> None:
        self.capacity = rows
        self.size = 0
        self.outputs = 0
        self._layout: list[tuple[int, int, int]] = []
        self._token = np.zeros(rows, np.int32)
        self._position = np.zeros(rows, np.int32)
        self._sequence_count = np.ones(rows, np.int32)
        self._sequence = np.zeros(rows, np.uintp)
        self._output = np.zeros(rows, np.int8)
        self._ascending = np.arange(positions, dtype=np.int32)
        self._ids = np.arange(sequences, dtype=np.int32)
        first = self._ids.ctypes.data
        self._id_addresses = [first + index * self._ids.itemsize for index in range(sequences)]
        self.struct = self._structure(llama)

    def _structure(self, llama: Any) -> Any:
        kinds = dict(llama.llama_batch._fields_)

        def pointer(name: str, array: NDArray[Any]) -> Any:
            return ctypes.cast(array.ctypes.data, kinds[name])

        return llama.llama_batch(
            n_tokens=0,
            token=pointer("token", self._token),
            embd=None,
            pos=pointer("pos", self._position),
            n_seq_id=pointer("n_seq_id", self._sequence_count),
            seq_id=pointer("seq_id", self._sequence),
            logits=pointer("logits", self._output),
        )

    def fill(self, chains: Sequence[Chain]) -> None:
        """Take these chains of rows, one after the other.

        This is between any two forwards, with caches cold from the weights: it touches as little as it can.
        """
        start, layout = 0, []
        for chain in chains:
            count = len(chain.tokens)
            stop = start + count
            self._token[start:stop] = chain.tokens
            self._position[start:stop] = self._ascending[chain.position : chain.position + count]
            layout.append((chain.sequence, stop, chain.outputs))
            start = stop
        self.size = self.struct.n_tokens = start
        if layout != self._layout:  # rounds often have the shape of the one before
            self._lay_out(layout)
            self._layout = layout

    def _lay_out(self, layout: Sequence[tuple[int, int, int]]) -> None:
        """Write what depends on the shape only: for each chain its sequence, its end, and its rows with logits."""
        start = self.outputs = 0
        for sequence, stop, outputs in layout:
            self._sequence[start:stop] = self._id_addresses[sequence]
            self._output[start : stop - outputs] = 0
            self._output[stop - outputs : stop] = 1
            self.outputs += outputs
            start = stop
