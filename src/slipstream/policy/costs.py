"""What a forward costs: seconds by number of rows and length of context, measured and kept current.

A table, no formula: real curves have cliffs, and three rows can cost more than four.
"""

import math
from collections.abc import Mapping, Sequence
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
_LARGEST_SURPRISE = 0.7
"""One forward that took more than twice what was expected says no more than that: a hiccup is no new speed. Two in a
row are no hiccup."""


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
        cells = _interpolated(self.points)
        known = [_CELL_MEASURED if rows in points else _CELL_GUESSED for rows in range(MOST_ROWS + 1)]
        self._parts: dict[int, _Part] = {0: _Part(cells, known)}
        self._part = self._parts[0]
        self._place = 0
        self._surprised = 0.0

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
        if rows <= MOST_ROWS:
            return part.speed * part.cells[rows]
        return part.speed * (part.cells[MOST_ROWS] + (rows - MOST_ROWS) * part.slope)

    def curve(self) -> tuple[float, Sequence[float]]:
        """(speed, cells): `seconds(rows) == speed * cells[rows]` up to `MOST_ROWS`, for whoever asks often."""
        return self._part.speed, self._part.cells

    def learn(self, rows: int, seconds: float) -> float:
        """A forward took so long; returns the expectation it is held against."""
        expected = self.seconds(rows)
        if seconds <= 0 or expected <= 0:
            return expected
        part = self._part
        surprise = math.log(seconds / expected)
        if abs(surprise) > _LARGEST_SURPRISE:
            again, self._surprised = self._surprised * surprise > 0, surprise
            if not again:
                surprise = math.copysign(_LARGEST_SURPRISE, surprise)
        else:
            self._surprised = 0.0
        part.doubt += _SPEED_DRIFT
        cell = part.known[rows] if rows <= MOST_ROWS else _CELL_GUESSED
        startled = surprise**2 > 9 * (part.doubt + cell + _ROUND_NOISE)
        if startled:
            # something changed, or the cell was never right; a plain round will tell, whose cell is best known
            part.doubt += surprise**2 / 2
            cell += surprise**2 / 2 if rows > 1 else 0.0
        total = part.doubt + cell + _ROUND_NOISE
        if startled and rows > 1:
            part.correct_neighbours(rows, surprise * cell / total)
        part.speed *= math.exp(surprise * part.doubt / total)
        part.doubt -= part.doubt**2 / total
        if rows <= MOST_ROWS:
            part.cells[rows] *= math.exp(surprise * cell / total)
            part.known[rows] = max(cell - cell**2 / total, _CELL_FLOOR)
        return expected

    def as_dict(self) -> dict[str, Any]:
        """For a file: what was measured, as it stands now."""
        part = self._parts[0]
        return {str(rows): part.speed * part.cells[rows] for rows in self.points if rows <= MOST_ROWS}

    @classmethod
    def from_dict(cls, values: Mapping[str, float]) -> "CostTable":
        """What `as_dict` gave. Raises ValueError for anything else."""
        points = {int(rows): float(seconds) for rows, seconds in values.items()}
        if 1 not in points or not all(math.isfinite(seconds) and seconds > 0 for seconds in points.values()):
            raise ValueError("not a cost table")
        return cls(points)


class _Part:
    """The cells of one range of contexts. doubt: variance of the speed's logarithm; known: those of the cells."""

    __slots__ = ("cells", "doubt", "known", "slope", "speed")

    def __init__(self, cells: list[float], known: list[float], speed: float = 1.0, doubt: float = 0.03**2) -> None:
        self.cells, self.known, self.speed, self.doubt = cells, known, speed, doubt
        self.slope = max((cells[MOST_ROWS] - cells[MOST_ROWS // 2]) / (MOST_ROWS - MOST_ROWS // 2), 0.0)

    def correct_neighbours(self, rows: int, change: float) -> None:
        """A cell was far off; those beside it probably are, too."""
        for other in range(2, MOST_ROWS + 1):
            if other != rows:
                nearness = 0.8 ** abs(other - rows)
                self.cells[other] *= math.exp(nearness * change)
                self.known[other] = max(self.known[other], _CELL_GUESSED * nearness)

    def copied(self) -> "_Part":
        """For another range of contexts, where nothing has been measured yet."""
        return _Part(list(self.cells), [max(one, _CELL_MEASURED) for one in self.known], self.speed, 0.1**2)


def _interpolated(points: Mapping[int, float]) -> list[float]:
    """[MOST_ROWS + 1] seconds for 0, 1, 2, ... rows: linear between points, and beyond the last as before it."""
    known = list(points.items())
    cells = [0.0]
    for rows in range(1, MOST_ROWS + 1):
        after = next((index for index, (count, _) in enumerate(known) if count >= rows), len(known) - 1)
        (low, before), (high, behind) = known[max(after - 1, 0)], known[after]
        slope = 0.0 if high == low else (behind - before) / (high - low)
        cells.append(max(behind + (rows - high) * slope, behind) if rows > high else behind + (rows - high) * slope)
    return cells
