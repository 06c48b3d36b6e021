"""How much of the prompts one forward reads: whoever comes or goes meanwhile waits for it to end."""

READING_SECONDS = 0.15
"""What a forward that reads nothing but prompts may take, about."""
FEWEST = 128
"""Rows at which a prompt is read about as fast as by longer forwards: fewer would only read it more slowly."""


class Pace:
    """Learns what rows of prompts cost, from forwards that read nothing else."""

    def __init__(self) -> None:
        self._seconds_per_row: float | None = None

    def rows(self, most: int) -> int:
        """How many rows the next such forward reads, `most` at most; `FEWEST` until it is known what they cost."""
        known = self._seconds_per_row
        rows = FEWEST if known is None else int(READING_SECONDS / known)
        return min(max(rows, FEWEST), most)

    def learn(self, rows: int, seconds: float) -> None:
        """A forward read so many rows; a short one says nothing, because reading the weights is most of its time."""
        if rows >= FEWEST and seconds > 0:
            self._seconds_per_row = seconds / rows
