"""The test of the law on several rows and with several drafters, as one test."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Drafter
from slipstream.core.verify import walk
from slipstream.engine import Completion, Engine, GenerationOptions
from slipstream.measure.cases import Case, row_after
from slipstream.measure.distribution import FLATTENED, LawTest, Propose, Table, Verify, drafted_by, flattened, try_law
from slipstream.measure.law import Floats, distribution, is_borderline
from slipstream.measure.watch import Watch

LEVEL = 1e-3
"""How often all tests together may blame a law that is right."""
DRAWS = 2000
ROWS = 4
LOOKED_AT = 16
"""Rows at the beginning of an answer, of which the least certain is tested."""
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
    """From each of the first answers the row whose law is the least certain, none near the border of a filter."""
    found = []
    for case, completion in list(zip(cases, plain, strict=False))[:rows]:
        lengths = [
            length for length in range(min(LOOKED_AT, len(completion.tokens)))
            if len(case.tokens) + length + 2 < engine.target.context_length
        ]  # fmt: skip
        params = case.params(engine, given)
        contexts = [(*case.tokens, *completion.tokens[:length]) for length in lengths]
        uncertain = [(_uncertainty(engine, tokens, params), tokens) for tokens in contexts]
        if uncertain:
            most, tokens = max(uncertain)
            if most >= 0:
                found.append(Place(f"{case.name}, token {len(tokens) - len(case.tokens) + 1}", tokens))
    return found


def _uncertainty(engine: Engine, tokens: tuple[int, ...], params: SamplingParams) -> float:
    """The entropy of the row's law in nats; -1 where float32 and float64 may disagree about its filters."""
    row = row_after(engine, tokens)
    return -1.0 if is_borderline(row, params, tokens) else _entropy(distribution(row, params, tokens))


def _entropy(p: Floats) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def table_at(engine: Engine, place: Place) -> Table:
    """The target's rows from there on."""
    return Table(place.tokens, lambda tokens: row_after(engine, tokens))


def try_laws(
    report: LawReport,
    tables: Sequence[tuple[str, Table]],
    params: SamplingParams,
    drafters: Sequence[tuple[str, Drafter]] = (),
    *,
    verify: Verify = walk,
    draws: int = DRAWS,
    watch: Watch | None = None,
) -> None:
    """Test all of these rows with a flattened copy of the target as the drafter, each with itself, and with the
    drafters. What there is goes into the report at once."""
    watch = watch or Watch()
    for name, table in tables:
        for drafter, rows, propose in _tries(table, drafters):
            report.tests.append((name, drafter, try_law(rows, params, propose, verify, draws, watch.pulse)))
            watch.advance()


def _tries(table: Table, drafters: Sequence[tuple[str, Drafter]]) -> Iterator[tuple[str, Table, Propose]]:
    """Who drafts, and on which rows."""
    twice = table.twice()
    yield FLATTENED, table, flattened(table)
    yield TWICE, twice, flattened(twice)
    for name, drafter in drafters:
        yield name, table, drafted_by(drafter, table.context)


def planned(tables: int, drafters: int) -> int:
    """How many tests `try_laws` makes of so many rows."""
    return tables * (2 + drafters)
