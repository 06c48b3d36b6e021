"""The test of the law on several rows and with several drafters, as one test."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slipstream.core.params import SamplingParams
from slipstream.core.pool import SessionPool
from slipstream.core.protocols import Drafter
from slipstream.core.verify import walk
from slipstream.engine import Completion, Engine, GenerationOptions
from slipstream.measure.cases import Case, row_after
from slipstream.measure.distribution import (
    FLATTENED,
    PAIR,
    LawTest,
    Propose,
    Table,
    Verify,
    flattened,
    try_law,
)
from slipstream.measure.law import Floats, distribution, is_borderline
from slipstream.measure.proposals import DraftRows, proposals
from slipstream.measure.watch import Watch

LEVEL = 1e-3
"""How often all tests together may blame a law that is right."""
DRAWS = 2000
ROWS = 4
LOOKED_AT = 16
"""Rows at the beginning of an answer, of which one is tested."""
ENTROPY = 2.0
"""Nats. A row that is more certain leaves little to test; after a less certain one hardly a pair comes twice."""
TWICE = f"{FLATTENED}, one row twice"


@dataclass(frozen=True, slots=True)
class Place:
    """A row to test: the target's after `tokens`. name: for people."""

    name: str
    tokens: tuple[int, ...]


@dataclass(slots=True)
class LawReport:
    """All tests so far. planned: how many there were to be; a single one must be this much surer (Bonferroni)."""

    planned: int
    tests: list[tuple[str, str, LawTest]] = field(default_factory=list)

    @property
    def level(self) -> float:
        return LEVEL / max(self.planned, 1)

    @property
    def failed(self) -> list[tuple[str, str, LawTest]]:
        return [test for test in self.tests if test[2].fails(self.level)]

    @property
    def detectable(self) -> float:
        """The total variation that every one of the tests sees at least nine times of ten."""
        return max((test.detectable(self.level) for *_, test in self.tests), default=0.0)

    def as_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "detectable": self.detectable,
            "tests": [_as_dict(place, drafter, test, self.level) for place, drafter, test in self.tests],
        }


def _as_dict(place: str, drafter: str, test: LawTest, level: float) -> dict[str, Any]:
    names = ("draws", "accepted", "impossible", "cells", "statistic", "p")
    figures = {name: getattr(test, name) for name in names}
    return {
        "row": place,
        "drafter": drafter,
        **figures,
        "detectable": test.detectable(level),
        "fails": test.fails(level),
    }


def places(
    engine: Engine, cases: Sequence[Case], plain: Sequence[Completion], given: GenerationOptions, rows: int = ROWS
) -> list[Place]:
    """From the beginning of each of the first answers the row that tells the most."""
    found = []
    for case, completion in list(zip(cases, plain, strict=False))[:rows]:
        room = engine.target.context_length - len(case.tokens) - PAIR
        lengths = range(min(LOOKED_AT, len(completion.tokens), room))
        contexts = [(*case.tokens, *completion.tokens[:length]) for length in lengths]
        telling = [(_off(engine, tokens, case.params(engine, given)), tokens) for tokens in contexts]
        off, tokens = min(telling, default=(math.inf, ()))
        if off < math.inf:
            found.append(Place(f"{case.name}, token {len(tokens) - len(case.tokens) + 1}", tokens))
    return found


def _off(engine: Engine, tokens: tuple[int, ...], params: SamplingParams) -> float:
    """How far the entropy of a row's law is from `ENTROPY`; infinite where float32 and float64 may disagree on it."""
    row = row_after(engine, tokens)
    if is_borderline(row, params, tokens):
        return math.inf
    return abs(_entropy(distribution(row, params, tokens)) - ENTROPY)


def _entropy(p: Floats) -> float:
    """In nats."""
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def tables_at(engine: Engine, found: Sequence[Place]) -> dict[str, Table]:
    """The target's rows from these places on, by the places' names."""
    return {place.name: Table(place.tokens, lambda tokens: row_after(engine, tokens)) for place in found}


def try_laws(
    report: LawReport,
    tables: Mapping[str, Table],
    params: SamplingParams,
    *,
    verify: Verify = walk,
    draws: int = DRAWS,
    watch: Watch | None = None,
) -> None:
    """Test all of these rows, and each with itself, below drafts of a flattened copy of the target.

    tables: by the row's name. What there is goes into the report at once.
    """
    for name, table in tables.items():
        for drafter, rows in ((FLATTENED, table), (TWICE, table.twice())):
            _try(report, name, drafter, rows, params, flattened(rows), verify, draws, watch or Watch())


def try_drafters(
    report: LawReport,
    tables: Mapping[str, Table],
    params: SamplingParams,
    drafters: Sequence[tuple[str, Drafter]],
    *,
    sessions: SessionPool | None = None,
    draws: int = DRAWS,
    watch: Watch | None = None,
) -> None:
    """Test all of these rows below what drafters propose, siblings included.

    drafters: with the names to report
    sessions: the target's, for drafters that want them
    """
    for drafter, one in drafters:
        size = max(len(table.after(())) for table in tables.values())
        with ExitStack() as stack:
            lent = sessions if one.requires.session else None
            rows = None if one.model is None else DraftRows(one.model, size, lent)
            if rows is not None:
                stack.callback(rows.close)
            for name, table in tables.items():
                propose = proposals(one, rows, table.context)
                _try(report, name, drafter, table, params, propose, walk, draws, watch or Watch())


def _try(
    report: LawReport,
    place: str,
    drafter: str,
    table: Table,
    params: SamplingParams,
    propose: Propose,
    verify: Verify,
    draws: int,
    watch: Watch,
) -> None:
    assert params.seed is not None
    fresh = replace(params, seed=(params.seed + len(report.tests) * draws) % 2**64)  # no two tests share a draw
    test = try_law(table, fresh, propose, verify, draws, watch.pulse)
    report.tests.append((place, drafter, test))
    watch.advance()


def planned(tables: int, drafters: int) -> int:
    """How many tests so many rows and drafters come to."""
    return tables * (2 + drafters)
