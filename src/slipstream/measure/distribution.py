"""A test of the law itself: do tokens come as often as the target's distribution says, whatever was drafted?

Two tokens are drawn at a time with many seeds, through the real walk, below drafts that know the noise: their first
and second token together have an exact law on rows that the target really computed. Two tokens, because a draft's
mistake can be in how one token depends on the other; noise that is used twice leaves each of them alone as it should be.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Drafter, Emission, Growth, Logits, Rows, StopRule
from slipstream.core.sampling import Sampler
from slipstream.core.tree import ROOT, Draft
from slipstream.core.verify import Verdict
from slipstream.measure.chisquare import detectable, tail
from slipstream.measure.law import distribution, is_borderline

Tokens = tuple[int, ...]
Verify = Callable[[Draft, Rows, Sampler, StopRule, int], Verdict]
"""`core.verify.walk`, or something that claims to be."""
Propose = Callable[[Sampler, Tokens, int], Draft]
"""A draft below the context and these tokens, of at most so many nodes."""

PAIR = 2
SMALLEST = 5.0
"""Cells that are expected less often than this are counted together (Cochran's rule)."""
LEVEL = 1e-3
"""How often a whole test, all its rows together, may blame a law that is right."""
GUESS, SAME_ROW = "a flattened copy", "a flattened copy, one row twice"


class Table:
    """Rows after a context, each computed once, so that thousands of rounds cost a few hundred forwards.

    context: the tokens that all of them follow
    compute: [vocab] the target's raw logits after these tokens
    same:    give the row after the context whatever follows: two draws from it are independent only if their noise is
    """

    def __init__(self, context: Tokens, compute: Callable[[Tokens], Logits], *, same: bool = False) -> None:
        self.context = context
        self._compute = compute
        self._same = same
        self._rows: dict[Tokens, Logits] = {}

    def after(self, tokens: Tokens) -> Logits:
        tokens = () if self._same else tokens
        if tokens not in self._rows:
            self._rows[tokens] = self._compute((*self.context, *tokens))
        return self._rows[tokens]

    def twice(self) -> "Table":
        """The same context, whose row stands for all that follow."""
        return Table(self.context, lambda _: self.after(()), same=True)


class TableRows:
    """The rows of a draft that hangs below a table's context and these tokens."""

    def __init__(self, table: Table, tokens: Tokens, draft: Draft) -> None:
        self._table, self._tokens, self._draft = table, tokens, draft

    def logits(self, row: int) -> Logits:
        return self._table.after((*self._tokens, *self._draft.path_tokens(row - 1)))

    def top(self, row: int, count: int) -> object:
        raise AssertionError("the walk reads whole rows")

    def hidden(self, row: int, layer: int) -> object:
        raise AssertionError("a table has no hidden states")


class Countdown:
    """The stop rule of a draw: it ends after `PAIR` tokens, whatever they are."""

    def __init__(self) -> None:
        self.left = PAIR

    def push(self, token: int) -> Emission:
        self.left -= 1
        return Emission("", None if self.left > 0 else "length")


@dataclass(frozen=True, slots=True)
class LawTest:
    """What became of one test.

    row:        which row, for people
    drafter:    who drafted
    accepted:   draft tokens among those drawn; without any, nothing but plain sampling was tested
    cells:      that pairs were counted in; 1 where only one pair is possible
    impossible: draws of tokens that have no probability, each of them proof enough
    detectable: the total variation that a test of these draws sees nine times of ten
    """

    row: str
    drafter: str
    draws: int
    accepted: int
    cells: int
    impossible: int
    statistic: float
    p: float
    detectable: float

    def fails(self, level: float) -> bool:
        return self.impossible > 0 or self.p < level


def test_law(
    table: Table, params: SamplingParams, propose: Propose, verify: Verify, draws: int, *, row: str, drafter: str,
    level: float,
) -> Iterator[LawTest | None]:  # fmt: skip
    """Draw `draws` pairs and compare; yields None now and then while it draws, so that a caller can stop, then the test.

    params: its seed is the first of `draws` seeds
    level:  that `detectable` is for
    """
    assert params.seed is not None
    counts: Counter[Tokens] = Counter()
    accepted = 0
    for number in range(draws):
        sampler = Sampler(replace(params, seed=(params.seed + number) % 2**64), len(table.after(())), table.context)
        pair, right = _draw(table, sampler, propose, verify)
        counts[pair] += 1
        accepted += right
        if number % 100 == 99:
            yield None
    expected = _expected(table, params, counts, draws)
    impossible = sum(times for pair, times in counts.items() if _cell(pair, expected) is None)
    cells = _pooled([(counted, wanted) for counted, wanted in _cells(counts, expected, draws) if wanted > 0])
    statistic = sum((counted - wanted) ** 2 / wanted for counted, wanted in cells)
    freedom = len(cells) - 1
    p = tail(statistic, freedom) if freedom else 1.0
    seen = detectable(draws, freedom, level) if freedom else 0.0
    yield LawTest(row, drafter, draws, accepted, len(cells), impossible, statistic, 0.0 if impossible else p, seen)
