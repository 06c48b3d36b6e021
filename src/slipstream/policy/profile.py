"""Measuring a model's cost table when it is loaded, in about two seconds."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

from slipstream.core.feed import feed
from slipstream.core.protocols import Model, Segment
from slipstream.policy.costs import CostTable

ROWS = (1, 2, 4, 8, 3, 5, 6, 9, 16, 12, 32)
"""Most useful first: a slow model gets as far as the time goes."""
READ_ROWS = 128
"""Of a draft model, which reads what it has missed in one forward: how long that takes by row."""
CONTEXT = 16
"""Tokens in the KV cache while forwards are timed."""
MOST_TURNS = 9
CHECKED = (4, 8)
"""Rows, beside one, at which a remembered table is looked at."""
MISFIT = 0.25
"""A remembered table whose curve has another shape than is measured now by this much is measured anew."""


def profile(
    model: Model, seconds: float = 2.0, timer: Callable[[], float] = perf_counter, *, drafts: bool = False
) -> CostTable:
    """Time forwards of 1 to 32 rows, in turns, so that a change of the machine's speed hits all alike.

    seconds: about what it may take; the rows from `ROWS` that fit in once are measured, others are interpolated
    drafts:  for a draft model, which also reads many tokens at once
    """
    with _Bench(model, timer) as bench:
        end = timer() + seconds
        sizes = [rows for rows in (*ROWS, *([READ_ROWS] if drafts else [])) if rows <= bench.most]
        bench.time(1)  # warms up
        times: dict[int, list[float]] = {}
        for _ in range(MOST_TURNS):
            for rows in sizes:
                if timer() > end and len(times) >= min(4, len(sizes)):
                    break
                times.setdefault(rows, []).append(bench.time(rows))
    return CostTable({rows: median(taken) for rows, taken in times.items()})


def fits(model: Model, table: CostTable, timer: Callable[[], float] = perf_counter) -> bool:
    """Whether a remembered table still has the shape of what a few forwards take; brings its speed up to date."""
    with _Bench(model, timer) as bench:
        bench.time(1)
        one, *several = (min(bench.time(rows) for _ in range(3)) for rows in (1, *CHECKED) if rows <= bench.most)
    if one <= 0:
        return False  # a clock too coarse to tell
    for _ in range(4):
        table.learn(1, one)
    shapes = [
        taken / one / (table.seconds(rows) / table.seconds(1)) for rows, taken in zip(CHECKED, several, strict=False)
    ]
    return all(1 / (1 + MISFIT) < shape < 1 + MISFIT for shape in shapes)


class _Bench:
    """A session with some tokens in it, on which forwards are timed."""

    def __init__(self, model: Model, timer: Callable[[], float]) -> None:
        self._model, self._timer = model, timer

    def __enter__(self) -> "_Bench":
        self._session = self._model.open_session()
        try:
            for _ in feed(self._model, self._session, _some_tokens(self._model, self._context)):
                pass
        except BaseException:
            self._session.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    @property
    def most(self) -> int:
        """Rows that a forward can have here."""
        return min(self._model.max_rows, self._model.context_length - self._context)

    @property
    def _context(self) -> int:
        return max(min(CONTEXT, self._model.context_length - 2 * max(ROWS)), 0)

    def time(self, rows: int) -> float:
        """Seconds of a forward of so many rows; nothing of it stays."""
        tokens = _some_tokens(self._model, rows)
        started = self._timer()
        outputs = 1 if rows == READ_ROWS else None
        result = self._model.forward([Segment(self._session, tokens, outputs=outputs)])
        result[0].logits(rows - 1)
        return self._timer() - started


def _some_tokens(model: Model, count: int) -> Sequence[int]:
    """Any ids will do: what a dense model computes takes the same time for all."""
    size = model.vocabulary.size
    return [(17 * index + 5) % size for index in range(count)]
