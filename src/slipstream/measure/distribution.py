"""A test of the law itself: do tokens come as often as the target's distribution says, whatever was drafted?

Two tokens are drawn at a time with many seeds, through the real walk, below drafts that know the noise; the pair has
an exact law on rows that the target really computed. Pairs, because a mistake can be in how one token depends on the
other: noise that is used twice leaves each of them alone as it should be.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Drafter, Emission, Growth, Logits, Rows, StopRule
from slipstream.core.sampling import Sampler
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict
from slipstream.measure.chisquare import detectable, tail
from slipstream.measure.law import Floats, distribution, is_borderline

Tokens = tuple[int, ...]
Verify = Callable[[Draft, Rows, Sampler, StopRule, int], Verdict]
"""`core.verify.walk`, or something that claims to be."""
Propose = Callable[[Sampler, Tokens, int], Draft]
"""A draft below the context and these tokens, of at most so many nodes."""

Cell = tuple[int, float]
"""How often something was counted, and expected."""

PAIR, SIBLINGS = 2, 3
FLATTENED = "flattened"
SMALLEST = 5.0
"""Cells that are expected less often than this are counted together (Cochran's rule)."""
_ids = count(-1, -1)
"""No sequence of an engine has a negative id."""


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

    def top(self, row: int, count: int) -> tuple[NDArray[np.int64], Logits]:
        raise AssertionError("the walk reads whole rows")

    def hidden(self, row: int, layer: int) -> NDArray[np.float32]:
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

    accepted:   draft tokens among those drawn; without any, nothing but plain sampling was tested
    impossible: draws of tokens that have no probability, each of them proof enough
    cells:      that pairs were counted in; 1 where only one pair is possible
    p:          how often chance alone gives as large a statistic
    """

    draws: int
    accepted: int
    impossible: int
    cells: int
    statistic: float
    p: float

    def fails(self, level: float) -> bool:
        return self.impossible > 0 or self.p < level

    def detectable(self, level: float) -> float:
        """The total variation from the right law that such a test sees at least nine times of ten."""
        return detectable(self.draws, self.cells - 1, level) if self.cells > 1 else 0.0


def try_law(
    table: Table,
    params: SamplingParams,
    propose: Propose,
    verify: Verify,
    draws: int,
    pulse: Callable[[], None] = lambda: None,
) -> "LawTest":
    """Draw `draws` pairs and compare.

    params: its seed is the first of `draws` seeds
    pulse:  called after each draw; what it raises ends the test
    """
    assert params.seed is not None
    counts: Counter[Tokens] = Counter()
    accepted = 0
    for number in range(draws):
        seeded = replace(params, seed=(params.seed + number) % 2**64)
        sampler = Sampler(seeded, len(table.after(())), table.context)
        pair, right = _draw(table, sampler, propose, verify)
        counts[pair] += 1
        accepted += right
        pulse()
    cells, impossible = _cells(table, params, counts)
    return LawTest(draws, accepted, impossible, *_chi_square(_pooled(cells)))


def _draw(table: Table, sampler: Sampler, propose: Propose, verify: Verify) -> tuple[Tokens, int]:
    """Two tokens, and how many of them had been drafted."""
    out: Tokens = ()
    accepted, stop = 0, Countdown()
    while len(out) < PAIR:
        position = len(table.context) + len(out)
        draft = propose(sampler, out, position)
        verdict = verify(draft, TableRows(table, out, draft), sampler, stop, position)
        accepted += verdict.accepted
        out = (*out, *verdict.tokens)
    return out[:PAIR], accepted


def _cells(table: Table, params: SamplingParams, counts: Counter[Tokens]) -> tuple[list[Cell], int]:
    """Counted and expected, for pairs that are expected often enough and for what is left; and impossible draws.

    Which pairs have a cell of their own must not depend on what was drawn, or the statistic has another law.
    """
    draws, context = counts.total(), table.context
    first = distribution(table.after(()), params, context)
    cells: list[Cell] = []
    equals: list[Cell] = []
    impossible, followed = 0, 0.0
    frequent = {int(token) for token in np.flatnonzero(first * draws >= SMALLEST)}
    for one in frequent | {pair[0] for pair in counts}:
        following = Counter({pair[1]: times for pair, times in counts.items() if pair[0] == one})
        second = None if first[one] == 0 else _second(table, params, one)
        if first[one] == 0:
            impossible += following.total()
        if second is None:
            continue
        impossible += sum(times for token, times in following.items() if second[token] == 0)
        if one in frequent:
            branch, equal = _branch(one, following, second * first[one] * draws)
            cells += branch
            equals.append(equal)
            followed += first[one]
    cells.append((sum(counted for counted, _ in equals), sum(wanted for _, wanted in equals)))
    left = draws - sum(counted for counted, _ in cells)
    return [*cells, (left, (1 - followed) * draws)], impossible


def _second(table: Table, params: SamplingParams, one: int) -> Floats | None:
    """[vocab] the law of the second token after this first one, None where float32 and float64 may disagree on it."""
    row, seen = table.after((one,)), (*table.context, one)
    return None if is_borderline(row, params, seen) else distribution(row, params, seen)


def _branch(one: int, following: Counter[int], wanted: Floats) -> tuple[list[Cell], Cell]:
    """The cells of all pairs that begin with `one`: its frequent second tokens, and the rest together.

    Apart from them the pair of equal tokens, if it is not frequent: those of all first tokens are counted together,
    because equal tokens are what noise that is used twice leads to.
    """
    frequent = [int(token) for token in np.flatnonzero(wanted >= SMALLEST)]
    cells = [(following[token], float(wanted[token])) for token in frequent]
    equal = (0, 0.0) if one in frequent else (following[one], float(wanted[one]))
    counted, expected = (sum(column) for column in zip(*cells, equal, strict=True))
    return [*cells, (following.total() - int(counted), float(wanted.sum()) - expected)], equal


def _pooled(cells: list[Cell]) -> list[Cell]:
    """The same with all that are expected seldom in one, and that one with the next if it still is."""
    ordered = sorted(cells, key=lambda cell: cell[1])
    counted, wanted = 0, 0.0
    while ordered and (ordered[0][1] < SMALLEST or 0 < wanted < SMALLEST):
        more, expected = ordered.pop(0)
        counted, wanted = counted + more, wanted + expected
    return [*ordered, (counted, wanted)] if wanted > 1e-6 else ordered


def _chi_square(cells: list[Cell]) -> tuple[int, float, float]:
    """Number of cells, the statistic, and how often chance alone gives as much."""
    statistic = float(sum((counted - wanted) ** 2 / wanted for counted, wanted in cells))
    return len(cells), statistic, tail(statistic, len(cells) - 1) if len(cells) > 1 else 1.0


def flattened(table: Table) -> Propose:
    """A drafter that knows the target, but not well: its rows with the differences made smaller, and the same noise."""
    return coupled(lambda tokens: table.after(tokens) * np.float32(0.6), FLATTENED)


def coupled(after: Callable[[Tokens], Logits], source: str) -> Propose:
    """What a draft model proposes that has these rows after the context: the best of them with the target's noise.

    after: [vocab of the target] raw logits
    """

    def propose(sampler: Sampler, tokens: Tokens, position: int) -> Draft:
        draft, chain = Draft(), tokens
        for level in range(PAIR - len(tokens)):
            guess = sampler.propose(after(chain), position + level, chain[len(tokens) :], SIBLINGS)
            parent = draft.tip
            chain = (*chain, draft.tokens[draft.append(guess.tokens[0], source=source)])
            for token in guess.tokens[1:]:
                draft.add(token, parent, source=source)
        return draft

    return propose


class View:
    """What a drafter may see of a sequence that is only imagined."""

    def __init__(self, tokens: Tokens, sampler: Sampler) -> None:
        self.id = next(_ids)
        self.tokens = tokens
        self.sampler = sampler
        self.draft_limit = PAIR * SIBLINGS
        self.prediction: Tokens = ()
        self.session = None
        self.scope = ""


def drafted_by(drafter: Drafter, context: Tokens) -> Propose:
    """What a real drafter proposes after the context, siblings included."""

    def propose(sampler: Sampler, tokens: Tokens, position: int) -> Draft:
        view, draft = View((*context, *tokens), sampler), Draft()
        drafter.begin(view, 0)
        try:
            for _ in range(PAIR - len(tokens)):
                size = len(draft)
                drafter.extend([Growth(view, draft, view.draft_limit - size, SIBLINGS)])
                if len(draft) == size:
                    break
        finally:
            drafter.end(view)
        return draft

    return propose
