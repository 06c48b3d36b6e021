"""Texts as rows of equal length, in an order that is a function of seed and epoch: what makes training resumable."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.train.states import StateStore
from slipstream.train.texts import Text


class Slice(NamedTuple):
    """Tokens `start` to `stop` of a text."""

    text: int
    start: int
    stop: int


class Batch(NamedTuple):
    """Rows of texts, one after the other; B rows of T tokens.

    tokens:  [B, T] int64
    texts:   [B, T] int64 which text a token belongs to, -1 for none
    wanted:  [B, T] bool whether what comes after the token is the target's choice, and is in the row
    hidden:  [B, T, layers, width] float16
    mass, best: [B, T] as in `States`
    """

    tokens: NDArray[np.int64]
    texts: NDArray[np.int64]
    wanted: NDArray[np.bool_]
    hidden: NDArray[np.float16]
    mass: NDArray[np.float32]
    best: NDArray[np.int64]

    def rows(self, start: int, stop: int) -> "Batch":
        """Some of its rows."""
        part = slice(start, stop)
        return Batch(
            self.tokens[part],
            self.texts[part],
            self.wanted[part],
            self.hidden[part],
            self.mass[part],
            self.best[part],
        )


class Order:
    """The rows of all epochs.

    lengths: tokens of each text
    pack:    tokens of a row
    """

    def __init__(self, lengths: Sequence[int], pack: int, seed: int) -> None:
        self._lengths = list(lengths)
        self._pack, self._seed = pack, seed
        self.rows = -(-sum(self._lengths) // pack)
        """In one epoch."""
        self._epoch = -1
        self._cut: list[list[Slice]] = []

    def row(self, number: int) -> list[Slice]:
        """The slices of a row, counted from the first of the first epoch."""
        epoch, place = divmod(number, self.rows)
        if epoch != self._epoch:
            self._epoch, self._cut = epoch, self._rows_of(epoch)
        return self._cut[place]

    def _rows_of(self, epoch: int) -> list[list[Slice]]:
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._lengths))
        rows: list[list[Slice]] = [[]]
        room = self._pack
        for text in order.tolist():
            start, length = 0, self._lengths[text]
            while start < length:
                if room == 0:
                    rows.append([])
                    room = self._pack
                stop = min(length, start + room)
                rows[-1].append(Slice(text, start, stop))
                room -= stop - start
                start = stop
        return rows


def gather(rows: Sequence[Sequence[Slice]], store: StateStore, pack: int) -> Batch:
    """The rows' tokens and states."""
    shape = (len(rows), pack)
    tokens, texts = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
    wanted, mass = np.zeros(shape, np.bool_), np.zeros(shape, np.float32)
    best, hidden = np.full(shape, -1, np.int64), None
    for row, slices in enumerate(rows):
        place = 0
        for number, (text, start, stop) in enumerate(slices):
            states = store[text]
            if hidden is None:
                hidden = np.zeros((*shape, *states.hidden.shape[1:]), np.float16)
            to = slice(place, place + stop - start)
            place = to.stop
            tokens[row, to] = store.texts[text].tokens[start:stop]
            texts[row, to] = number
            wanted[row, to] = _wanted(store.texts[text], start, stop)
            hidden[row, to] = states.hidden[start:stop]
            mass[row, to] = states.mass[start:stop]
            best[row, to] = states.best[start:stop]
    assert hidden is not None, "a batch has texts"
    return Batch(tokens, texts, wanted, hidden, mass, best)


def _wanted(text: Text, start: int, stop: int) -> NDArray[np.bool_]:
    """Tokens after which the target chose the next one. After the last of an answer it chose nothing."""
    places = np.arange(start, stop)
    return (places >= text.prompt - 1) & (places < len(text.tokens) - 1)
