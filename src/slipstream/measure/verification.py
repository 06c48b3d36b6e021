"""All that `slipstream verify` does, and what it comes to: the certificate, the test of the law, the self-test."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from slipstream.core.params import SamplingParams
from slipstream.engine import Engine, GenerationOptions
from slipstream.measure.cases import Case
from slipstream.measure.certificate import Certificate
from slipstream.measure.law_report import DRAWS, LawReport, places, planned, tables_at, try_drafters, try_laws
from slipstream.measure.selftest import SelfTest, telling
from slipstream.measure.watch import Stopped, Watch
from slipstream.measure.ways import Drafting, short, ways

Outcome = Literal["identical", "near-ties", "different", "nothing drafted"]


@dataclass(frozen=True, slots=True)
class Scope:
    """What is verified.

    drafters:     as `Engine.load` takes them
    distribution: test the law, too
    self_test:    try the broken verifiers, too
    draws:        pairs of tokens in each test of the law; the self-test takes half as many
    """

    drafters: Sequence[str]
    drafting: Drafting = field(default_factory=Drafting)
    distribution: bool = False
    self_test: bool = False
    draws: int = DRAWS


class Verification:
    """Runs everything in `scope`; what there is when it is stopped stays, and `partial` says so.

    engine: without drafters of its own, made by `Engine.load`; its target is verified
    """

    def __init__(
        self,
        engine: Engine,
        cases: Sequence[Case],
        given: GenerationOptions,
        scope: Scope,
        watch: Watch | None = None,
    ) -> None:
        self.engine = engine
        self.cases = list(cases)
        self.given = given
        self.scope = scope
        self.partial = False
        self._watch = watch or Watch()
        self.certificate = Certificate(engine, cases, given, self._watch)
        self.law: LawReport | None = None
        self.self_test: SelfTest | None = None
        self.own_settings: GenerationOptions | None = None
        """What the self-test had to choose instead of the given options, None if nothing."""

    @cached_property
    def params(self) -> SamplingParams:
        """The sampling parameters, with the first seed."""
        return self.cases[0].params(self.engine, self.given)

    def run(self) -> None:
        """Everything, or until the watch raises `Stopped`."""
        try:
            self._compare()
            if self.scope.distribution:
                self._test_law()
            if self.scope.self_test:
                self._test_itself()
        except Stopped:
            self.partial = True

    def _compare(self) -> None:
        self.certificate.decode_plainly()
        for way in ways(self.scope.drafters, self.scope.drafting, trees=self.engine.target.capabilities.trees):
            self.certificate.compare(way)

    def _test_law(self) -> None:
        specs = self.scope.drafters
        found = places(self.engine, self.cases, self.certificate.plain, self.given)
        self.law = LawReport(planned(len(found), len(specs)))
        tables = tables_at(self.engine, found)
        self._watch.begin("the law of what is drawn", self.law.planned)
        try_laws(self.law, tables, self.params, draws=self.scope.draws, watch=self._watch)
        for spec in specs:
            drafting = self.scope.drafting
            with self.engine.sharing(draft=spec, speculation="on", options=drafting.options) as engine:
                drafters = [(short(spec), drafter) for drafter in engine.drafters]
                sessions, draws = engine.sessions, self.scope.draws
                try_drafters(self.law, tables, self.params, drafters, sessions=sessions, draws=draws, watch=self._watch)

    def _test_itself(self) -> None:
        self.own_settings = telling(self.params, self.given)
        given, draws = self.own_settings or self.given, self.scope.draws // 2
        self.self_test = SelfTest(self.engine, self.cases, given, draws, self._watch)
        self.self_test.run()

    @property
    def outcome(self) -> Outcome:
        """What the texts say."""
        comparisons = self.certificate.comparisons
        if any(comparison.real for comparison in comparisons):
            return "different"
        if not sum(comparison.accepted for comparison in comparisons):
            return "nothing drafted"
        return "near-ties" if any(comparison.partings for comparison in comparisons) else "identical"

    @property
    def failed(self) -> bool:
        """Whether anything is not as it should be."""
        broken_law = self.law is not None and bool(self.law.failed)
        blind = self.self_test is not None and not all(one.as_it_should for one in self.self_test.findings)
        return self.outcome == "different" or broken_law or blind

    def as_dict(self) -> dict[str, Any]:
        target, certificate = self.engine.target, self.certificate
        return {
            "target": {"name": target.name, "runtime": target.runtime, "bit_exact_rows": certificate.exact},
            "drafters": list(self.scope.drafters),
            "cases": [{"prompt": c.name, "prompt_tokens": len(c.tokens), "seed": c.seed} for c in self.cases],
            "max_tokens": self.given.get("max_tokens"),
            "sampling": _sampling(self.params),
            "outcome": self.outcome,
            "failed": self.failed,
            "partial": self.partial,
            "rounding": None if certificate.exact else certificate.rounding.as_dict(),
            "comparisons": [comparison.as_dict() for comparison in certificate.comparisons],
            "distribution": None if self.law is None else self.law.as_dict(),
            "self_test": None if self.self_test is None else self._self_test(self.self_test),
        }

    def _self_test(self, test: SelfTest) -> dict[str, Any]:
        own = {name: value for name, value in (self.own_settings or {}).items() if self.given.get(name) != value}
        return {"own_settings": own, "complete": test.complete, "verifiers": [one.as_dict() for one in test.findings]}


def _sampling(params: SamplingParams) -> dict[str, Any]:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    bias = {str(token): None if value == float("-inf") else value for token, value in params.logit_bias.items()}
    return {name: getattr(params, name) for name in names} | {"logit_bias": bias}
