"""The certificate: the same prompts and seeds, decoded plainly and in every other way, give the same answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.engine import Completion, Engine, GenerationOptions
from slipstream.measure.cases import Case, answer
from slipstream.measure.divergence import Parting, parting
from slipstream.measure.rounding import Rounding, measure_rounding
from slipstream.measure.watch import Watch
from slipstream.measure.ways import Way

EDITED = 12
"""Tokens of a prediction of which two are wrong."""
ROUNDED_CASES = 4
"""Answers on which rounding is measured before anything is compared; those that part are added."""


@dataclass(slots=True)
class Comparison:
    """What became of one way of decoding.

    texts:             answers that were compared
    tokens:            in those answers
    drafted, accepted: draft tokens that were verified, and that were right
    partings:          the first difference of every answer that has one
    """

    way: str
    drafts: bool = True
    texts: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    partings: list[Parting] = field(default_factory=list)

    @property
    def identical(self) -> int:
        return self.texts - len(self.partings)

    @property
    def real(self) -> list[Parting]:
        """Partings that rounding does not account for."""
        return [parting for parting in self.partings if parting.real]

    @property
    def proves_nothing(self) -> bool:
        """Whether it was to draft and did not."""
        return self.drafts and self.texts > 0 and self.drafted == 0

    def as_dict(self) -> dict[str, Any]:
        figures = {name: getattr(self, name) for name in ("way", "texts", "identical", "tokens", "drafted", "accepted")}
        return {
            **figures,
            "proves_nothing": self.proves_nothing,
            "partings": [parting.as_dict() for parting in self.partings],
        }


class Certificate:
    """Decodes cases plainly, then in other ways, and keeps what it finds; whatever ends it leaves that in place.

    engine: its target, template and defaults are what is certified
    given:  sampling parameters and `max_tokens`; the seeds are the cases'
    exact:  whether rows are bit-exact, so that anything but identity is a difference
    """

    def __init__(
        self, engine: Engine, cases: Sequence[Case], given: GenerationOptions, watch: Watch | None = None
    ) -> None:
        self.engine = engine
        self.cases = list(cases)
        self.given = given
        self.exact = engine.target.capabilities.bit_exact_rows
        self.plain: list[Completion] = []
        self.rounding = Rounding()
        self.comparisons: list[Comparison] = []
        self._watch = watch or Watch()
        self._rounded: set[int] = set()

    def decode_plainly(self) -> None:
        """What everything else is held against; where rows are not bit-exact, also how far they differ."""
        self._watch.begin("plain decoding", len(self.cases))
        with self.engine.sharing(draft="none", speculation="off") as plain:
            for case in self.cases:
                self.plain.append(answer(plain, case, self.given, self._watch))
                self._watch.advance()
        if not self.exact and self.engine.target.capabilities.rollback:
            some = range(min(ROUNDED_CASES, len(self.cases)))
            self._watch.begin("the runtime's rounding", len(some))
            for index in some:
                self._measure_rounding(index)
                self._watch.advance()

    def compare(self, way: Way, *, until_real: bool = False) -> Comparison:
        """Decode all cases in this way, too. `decode_plainly` comes first.

        until_real: the first real difference is enough
        """
        comparison = Comparison(way.name, way.drafts)
        self.comparisons.append(comparison)
        self._watch.begin(way.name, len(self.cases))
        with way.open(self.engine, self.texts) as engine:
            for index, case in enumerate(self.cases):
                given: GenerationOptions = {**self.given, "prediction": self._edited(index) if way.predicted else None}
                self._add(comparison, index, answer(engine, case, given, self._watch))
                self._watch.advance()
                if until_real and comparison.real:
                    break
        return comparison

    @property
    def texts(self) -> list[list[int]]:
        """Prompt and plain answer of each case."""
        return [[*case.tokens, *plain.tokens] for case, plain in zip(self.cases, self.plain, strict=True)]

    def _edited(self, index: int) -> list[int]:
        """A case's plain answer without one token in `EDITED`, and with another one taken for its neighbour."""
        tokens, size = self.plain[index].tokens, self.engine.target.vocabulary.size
        half = EDITED // 2
        return [
            (token + 1) % size if place % EDITED == half else token
            for place, token in enumerate(tokens)
            if place % EDITED != EDITED - 1
        ]

    def _add(self, comparison: Comparison, index: int, other: Completion) -> None:
        comparison.texts += 1
        comparison.tokens += len(other.tokens)
        comparison.drafted += other.statistics.drafted
        comparison.accepted += other.statistics.accepted
        found = self._parting(index, other)
        if found is not None and found.real and not self.exact and index not in self._rounded:
            self._measure_rounding(index)
            found = self._parting(index, other)
        if found is not None:
            comparison.partings.append(found)

    def _parting(self, index: int, other: Completion) -> Parting | None:
        rounding = None if self.exact else self.rounding
        return parting(self.engine, self.cases[index], self.given, self.plain[index], other, rounding, self._watch)

    def _measure_rounding(self, index: int) -> None:
        self._rounded.add(index)
        measure_rounding(self.rounding, self.engine, self.cases[index], self.given, self.plain[index], self._watch)
