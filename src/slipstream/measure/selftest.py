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
from slipstream.measure.law_report import LawReport, places, planned, tables_at, try_laws
from slipstream.measure.watch import Watch
from slipstream.measure.ways import rehearsal_way

GENUINE = Mistake("none", "the verifier as it is", walk, shows_in_law=False)
ROWS = 2
CASES, TOKENS = 6, 48
"""Answers, and most tokens of each."""
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
            "as_it_should": self.as_it_should,
        }


def telling(params: SamplingParams, given: GenerationOptions) -> GenerationOptions | None:
    """Options under which a broken verifier shows where the given ones leave hardly anything to chance, else None."""
    hardly = params.temperature < 0.5 or params.top_k == 1 or params.top_p < 0.5 or params.min_p > 0.5
    others = {"temperature": TEMPERATURE, "top_k": 0, "top_p": TOP_P, "min_p": MIN_P}
    return cast(GenerationOptions, {**given, **others}) if hardly else None


class SelfTest:
    """One finding for each verifier, in the order of `verifiers`.

    engine, cases, given: as for a `Certificate`; `given` should be `telling`. The shortest prompts are taken
    draws: pairs of tokens in each test of the law
    """

    verifiers = (GENUINE, *MISTAKES)

    def __init__(
        self, engine: Engine, cases: Sequence[Case], given: GenerationOptions, draws: int, watch: Watch | None = None
    ) -> None:
        self.findings: list[Finding] = []
        self._engine = engine
        self._draws = draws
        self._watch = watch or Watch()
        chosen = sorted(cases, key=lambda case: len(case.tokens))[:CASES]
        # stale rows take room in the context beside the text that is there
        room = min(engine.target.context_length - len(case.tokens) for case in chosen) // 2
        length = max(1, min(given.get("max_tokens") or room, room, TOKENS))
        self._given = cast(GenerationOptions, {**given, "max_tokens": length})
        self._certificate = Certificate(engine, chosen, self._given, self._watch)

    def run(self) -> None:
        """Try all verifiers. The law comes first: a stale KV cache would be in the rows that it looks at."""
        self._certificate.decode_plainly()
        by_law = self._by_law()
        for mistake, found in zip(self.verifiers, by_law, strict=True):
            self.findings.append(Finding(mistake, self._by_ids(mistake), found))

    @property
    def complete(self) -> bool:
        return len(self.findings) == len(self.verifiers)

    def _by_law(self) -> list[bool]:
        """Whether the test of the law fails each verifier."""
        certificate = self._certificate
        rows = places(self._engine, certificate.cases, certificate.plain, self._given, ROWS)
        tables = tables_at(self._engine, rows)
        params = certificate.cases[0].params(self._engine, self._given)
        number = len(self.verifiers) * planned(len(tables), 0)
        self._watch.begin("self-test, the law", number)
        found = []
        for mistake in self.verifiers:
            report = LawReport(number)
            try_laws(report, tables, params, verify=mistake.verify, draws=self._draws, watch=self._watch)
            found.append(bool(report.failed))
        return found

    def _by_ids(self, mistake: Mistake) -> bool:
        """Whether rehearsals under this verifier give answers that differ for real."""
        shapes = [False, True] if self._engine.target.capabilities.trees else [False]
        ways = [rehearsal_way(LENGTH, tree) for tree in shapes]
        named = [replace(way, name=f"self-test, {mistake.name}: {way.name}") for way in ways]
        with planted(mistake.verify):
            return any(self._certificate.compare(way, until_real=True).real for way in named)
