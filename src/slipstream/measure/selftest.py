"""Broken verifiers through the certificate's own machinery: each must be caught, and the genuine one must pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from slipstream.core.params import SamplingParams
from slipstream.core.verify import walk
from slipstream.engine import Engine, GenerationOptions
from slipstream.measure.broken import MISTAKES, Mistake, planted
from slipstream.measure.cases import Case
from slipstream.measure.certificate import Certificate
from slipstream.measure.law_report import LawReport, places, planned, table_at, try_laws
from slipstream.measure.watch import Watch
from slipstream.measure.ways import rehearsal_way

GENUINE = Mistake("none", "the verifier as it is", walk, shows_in_law=False)
ROWS = 1
DRAWS = 1000
LENGTH = 4
"""Of drafts."""
TEMPERATURE, TOP_P, MIN_P = 0.8, 0.95, 0.05


@dataclass(frozen=True, slots=True)
class Finding:
    """What the certificate made of one verifier: whether the ids, and whether the test of the law, gave it away."""

    mistake: Mistake
    by_ids: bool
    by_law: bool

    @property
    def caught(self) -> bool:
        return self.by_ids or self.by_law

    @property
    def as_it_should(self) -> bool:
        """Broken ones are caught, by the law where it can be; the genuine one is not."""
        if self.mistake is GENUINE:
            return not self.caught
        return self.by_ids and self.by_law >= self.mistake.shows_in_law

    def as_dict(self) -> dict[str, Any]:
        mistake = self.mistake
        return {
            "verifier": mistake.name,
            "what": mistake.what,
            "caught_by_ids": self.by_ids,
            "caught_by_law": self.by_law,
        }


def telling(params: SamplingParams, given: GenerationOptions) -> GenerationOptions | None:
    """Options under which a broken verifier shows where the given ones leave hardly anything to chance, else None."""
    hardly = params.temperature < 0.5 or params.top_k == 1 or params.top_p < 0.5 or params.min_p > 0.5
    others = {"temperature": TEMPERATURE, "top_k": 0, "top_p": TOP_P, "min_p": MIN_P}
    return cast(GenerationOptions, {**given, **others}) if hardly else None


class SelfTest:
    """One finding for each verifier, in the order of `verifiers`.

    engine, cases, given: as for a `Certificate`; `given` should be `telling`
    """

    verifiers = (GENUINE, *MISTAKES)

    def __init__(
        self, engine: Engine, cases: Sequence[Case], given: GenerationOptions, watch: Watch | None = None
    ) -> None:
        self.findings: list[Finding] = []
        self._watch = watch or Watch()
        # stale rows take room in the context beside the text that is there
        room = min(engine.target.context_length - len(case.tokens) for case in cases) // 2
        self._given = cast(
            GenerationOptions, {**given, "max_tokens": max(1, min(given.get("max_tokens") or room, room))}
        )
        self._certificate = Certificate(engine, cases, self._given, self._watch)

    def run(self) -> None:
        """Try all verifiers. The law comes first: a stale KV cache would be in the rows that it looks at."""
        certificate = self._certificate
        certificate.decode_plainly()
        case = certificate.cases[0]
        rows = places(certificate.engine, certificate.cases, certificate.plain, self._given, ROWS)
        tables = [(place.name, table_at(certificate.engine, place)) for place in rows]
        params = case.params(certificate.engine, self._given)
        self._watch.begin("broken verifiers, by the law", len(self.verifiers) * planned(len(tables), 0))
        by_law = []
        for mistake in self.verifiers:
            report = LawReport(len(self.verifiers) * planned(len(tables), 0))
            try_laws(report, tables, params, verify=mistake.verify, draws=DRAWS, watch=self._watch)
            by_law.append(bool(report.failed))
        for mistake, found in zip(self.verifiers, by_law, strict=True):
            self.findings.append(Finding(mistake, self._by_ids(mistake), found))

    @property
    def complete(self) -> bool:
        return len(self.findings) == len(self.verifiers)

    def _by_ids(self, mistake: Mistake) -> bool:
        """Whether rehearsals under this verifier give answers that differ for real."""
        comparisons = []
        for tree in [False, True] if self._certificate.engine.target.capabilities.trees else [False]:
            way = rehearsal_way(LENGTH, tree)
            with planted(mistake.verify):
                comparisons.append(self._certificate.compare(replace(way, name=f"{mistake.name}: {way.name}")))
        return any(comparison.real for comparison in comparisons)
