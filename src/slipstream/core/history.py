"""Which tokens a sequence has seen and how often, for penalties."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from slipstream.core.params import SamplingParams

Logits = NDArray[np.float32]


class History:
    """Token counts in two growing arrays, so that a row is penalised by a few vector operations.

    ids, counts: [distinct tokens]; a count falls back to 0 when a draft's prefix is taken out again.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._slots: dict[int, int] = {}
        self._ids = np.empty(256, np.int64)
        self._counts = np.zeros(256, np.float32)
        for token in tokens:
            self.add(token)

    def add(self, token: int, times: int = 1) -> None:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._new_slot(token)
        self._counts[slot] += times

    def _new_slot(self, token: int) -> int:
        slot = self._slots[token] = len(self._slots)
        if slot == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[slot] = token
        return slot

    @contextmanager
    def extended(self, prefix: Sequence[int]) -> Iterator[None]:
        """As if the tokens of a draft's prefix had been committed."""
        for token in prefix:
            self.add(token)
        try:
            yield
        finally:
            for token in prefix:
                self.add(token, -1)

    def penalise(self, row: Logits, params: SamplingParams) -> None:
        """Apply the penalties to `row: [vocab]` in place."""
        size = len(self._slots)
        counts = self._counts[:size]
        ids = self._ids[:size][counts > 0]
        counts = counts[counts > 0]
        logits = row[ids]
        if params.repetition_penalty != 1:
            penalty = np.float32(params.repetition_penalty)
            logits = np.where(logits > 0, logits / penalty, logits * penalty)
        row[ids] = logits - (params.frequency_penalty * counts + np.float32(params.presence_penalty))
