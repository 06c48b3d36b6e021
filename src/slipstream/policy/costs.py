"""What a forward costs: seconds by number of rows and length of context, measured and kept current.

A table, no formula: real curves have cliffs, and three rows can cost more than four.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_ROWS = 64
"""Rows that have a cell of their own; more are extrapolated."""
CONTEXTS = (256, 768, 1792, 4096, 8192, 16384, 32768)
"""Tokens of context at which a new part of the table begins."""

_SPEED_DRIFT = 0.02**2
_ROUND_NOISE = 0.06**2
_CELL_FLOOR = 0.01**2
_CELL_MEASURED = 0.03**2
_CELL_GUESSED = 0.10**2
"""Variances of logarithms. A machine's speed drifts by 2 % from one forward to the next, a forward scatters by 6 %,
a cell that was measured is off by 3 % and one between two of them by 10 %."""
_LARGEST_SURPRISE = 0.35
"""Logarithm. One forward that took far longer than expected says no more than this: a hiccup is no new speed. A second
one of as many rows is no hiccup."""
_CONFIRMED = 4
"""Forwards of as many rows after which a cell that jumped by two surprises is believed for good."""
_RETRY, _CHECKED = 256, 32
"""Two hiccups can follow each other, and rows that look dear are avoided from then on. So a cell that jumped and was
not confirmed gets its old value back after `_RETRY` forwards, and after twice as many each time that it jumps again;
this is looked at every `_CHECKED` forwards."""


class CostTable:
    """Seconds of a forward, as `speed * cell[rows]` for each range of contexts.

    A forward's time moves two things: the speed, which all cells share (other programs come and go, clocks change),
    and its own cell. How much of a surprise goes to which is decided by how well each is known, as in a Kalman filter
    with two states: a cell seen a hundred times stays, one that was interpolated gives way.

    points: seconds by number of rows, at least that of one row
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        assert 1 in points, "one row is what everything is compared with"
        self.points = dict(sorted(points.items()))
        self._parts: dict[int, _Part] = {0: _Part(self.points)}
        self._part = self._parts[0]
        self._place = 0
        self._surprised: dict[tuple[int, int], tuple[float, float]] = {}
        self._jumped: dict[tuple[int, int], _Jump] = {}
        self._forwards = 0

    def at(self, context: int) -> bool:
        """The forwards that follow have about this many tokens of context; whether another part of the table begins."""
        place = 0
        while place < len(CONTEXTS) and context >= CONTEXTS[place]:
            place += 1
        if place == self._place:
            return False
        if place not in self._parts:
            nearest = min(self._parts, key=lambda other: abs(other - place))
            self._parts[place] = self._parts[nearest].copied()
        self._place, self._part = place, self._parts[place]
        self._part.doubt = max(self._part.doubt, 0.05**2)
        return True

    def seconds(self, rows: int) -> float:
        """Expected time of a forward of so many rows."""
        part = self._part
        return part.speed * part.cells[rows] if rows <= MOST_ROWS else part.seconds(rows)

    def curve(self) -> tuple[float, Sequence[float]]:
        """(speed, cells): `seconds(rows) == speed * cells[rows]` up to `MOST_ROWS`, for whoever asks often."""
        return self._part.speed, self._part.cells

    def learn(self, rows: int, seconds: float) -> float:
        """A forward took so long; returns the expectation it is held against."""
        expected = self.seconds(rows)
        if seconds <= 0 or expected <= 0:
            return expected
        self._forwards += 1
        self._part.learn(rows, self._believed(rows, math.log(seconds / expected)))
        if self._jumped and self._forwards % _CHECKED == 0:
            self._retry()
        return expected

    def _believed(self, rows: int, surprise: float) -> float:
        """How much of a surprise is taken: little of a large one, unless it is the second in a row."""
        place = self._place, rows
        if abs(surprise) <= _LARGEST_SURPRISE:
            self._surprised.pop(place, None)
            self._confirm(rows)
            return surprise
        cell = self._part.cells[rows] if rows <= MOST_ROWS else 0.0
        before, cell = self._surprised.get(place, (0.0, cell))
        self._surprised[place] = surprise, cell
        if before * surprise <= 0:
            return math.copysign(_LARGEST_SURPRISE, surprise)
        if surprise > 0 and 1 < rows <= MOST_ROWS:
            self._jumped.setdefault(place, _Jump(cell)).again(self._forwards)
        return surprise

    def _confirm(self, rows: int) -> None:
        """A forward took about what was expected: a cell that jumped belongs where it is now."""
        if self._jumped and (jump := self._jumped.get((self._place, rows))) is not None:
            jump.seen += 1
            if jump.seen == _CONFIRMED:
                del self._jumped[self._place, rows]

    def _retry(self) -> None:
        """Cells that jumped and were avoided since are what they were before."""
        for (place, rows), jump in self._jumped.items():
            if jump.due(self._forwards):
                self._parts[place].restore(rows, jump.before)

    def as_dict(self) -> dict[str, Any]:
        """For a file: what was measured, as it stands now, and as it was before a jump that is not confirmed."""
        part, values = self._parts[0], {}
        for rows in self.points:
            jump = self._jumped.get((0, rows))
            values[str(rows)] = part.seconds(rows) if jump is None else part.speed * jump.before
        return values

    def copied(self) -> "CostTable":
        """A table that learns on its own from here."""
        return CostTable.from_dict(self.as_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, float]) -> "CostTable":
        """What `as_dict` gave. Raises ValueError for anything else."""
        points = {int(rows): float(seconds) for rows, seconds in values.items()}
        if 1 not in points or not all(math.isfinite(seconds) and seconds > 0 for seconds in points.values()):
            raise ValueError("not a cost table")
        return cls(points)


@dataclass(slots=True)
class _Jump:
    """A cell that two surprises in a row made dearer.

    before:  its value until then
    seen:    forwards since then that took what was expected
    since:   number of the forward that made it dear last
    wait:    forwards from then until it gets its old value back
    waiting: whether it has not got it back yet
    """

    before: float
    seen: int = 0
    since: int = 0
    wait: int = _RETRY // 2
    waiting: bool = False

    def again(self, now: int) -> None:
        """It is dear, for the first time or once more."""
        self.seen, self.since, self.waiting = 0, now, True
        self.wait *= 2

    def due(self, now: int) -> bool:
        """Whether it is time to see whether it still is; True once."""
        if not self.waiting or now - self.since < self.wait:
            return False
        self.waiting = False
        return True


class _Part:
    """The cells of one range of contexts.

    doubt: variance of the speed's logarithm; known: those of the cells'
    Cells that were measured, then or later, are anchors; those between them are interpolated.
    """

    __slots__ = ("_anchors", "_beyond", "cells", "doubt", "known", "speed")

    def __init__(self, points: Mapping[int, float]) -> None:
        self.speed, self.doubt = 1.0, 0.03**2
        self._anchors = [rows for rows in points if rows <= MOST_ROWS]
        self.cells = [points.get(rows, 0.0) for rows in range(MOST_ROWS + 1)]
        self.known = [_CELL_MEASURED if rows in points else _CELL_GUESSED for rows in range(MOST_ROWS + 1)]
        last = max(points)
        self._beyond = (last, points[last]) if last > MOST_ROWS else None
        for rows in self._anchors:
            self._interpolate(rows)

    def copied(self) -> "_Part":
        """For another range of contexts, where nothing has been measured yet."""
        part = _Part({1: 1.0})
        part._anchors, part._beyond, part.cells = list(self._anchors), self._beyond, list(self.cells)
        part.known = [max(one, _CELL_MEASURED) for one in self.known]
        part.speed, part.doubt = self.speed, 0.1**2
        return part

    def seconds(self, rows: int) -> float:
        """Expected time, also of more rows than have cells."""
        if rows <= MOST_ROWS:
            return self.speed * self.cells[rows]
        last, most = self._beyond or (MOST_ROWS // 2, self.cells[MOST_ROWS // 2])
        slope = max((most - self.cells[MOST_ROWS]) / (last - MOST_ROWS), 0.0)
        return self.speed * (self.cells[MOST_ROWS] + (rows - MOST_ROWS) * slope)

    def learn(self, rows: int, surprise: float) -> None:
        """A forward took `exp(surprise)` times as long as expected."""
        self.doubt += _SPEED_DRIFT
        cell = self.known[rows] if rows <= MOST_ROWS else _CELL_GUESSED
        if surprise**2 > 9 * (self.doubt + cell + _ROUND_NOISE):
            # something changed, or the cell was never right; a plain round will tell, whose cell is best known
            self.doubt += surprise**2 / 2
            cell += surprise**2 / 2 if rows > 1 else 0.0
        total = self.doubt + cell + _ROUND_NOISE
        self.speed *= math.exp(surprise * self.doubt / total)
        self.doubt -= self.doubt**2 / total
        if rows <= MOST_ROWS:
            self.cells[rows] *= math.exp(surprise * cell / total)
            self.known[rows] = max(cell - cell**2 / total, _CELL_FLOOR)
            if len(self._anchors) < MOST_ROWS:
                if rows not in self._anchors:
                    insort(self._anchors, rows)
                self._interpolate(rows)

    def restore(self, rows: int, cell: float) -> None:
        """A cell is believed to be what it was, but not for sure."""
        self.cells[rows], self.known[rows] = cell, _CELL_GUESSED
        self._interpolate(rows)

    def _interpolate(self, rows: int) -> None:
        """Bring the cells between an anchor and its neighbours into line; beyond the last, go on as before it."""
        anchors, cells = self._anchors, self.cells
        place = bisect_left(anchors, rows)
        for low in anchors[max(place - 1, 0) : place + 1]:
            following = bisect_left(anchors, low + 1)
            high = anchors[following] if following < len(anchors) else MOST_ROWS + 1
            if following < len(anchors):
                slope = (cells[high] - cells[low]) / (high - low)
            else:
                before = anchors[following - 2] if following > 1 else 0
                slope = max((cells[low] - cells[before]) / (low - before), 0.0)
            for between in range(low + 1, high):
                cells[between] = cells[low] + (between - low) * slope
