"""Which drafter is worth having for a target: measured on the user's prompts and machine, within a given time.

Candidates are loaded beside one copy of the target, as many at once as memory holds. In a first part of the time plain
decoding answers prompts, and from what candidates propose for these answers their speed-up is predicted
(`measure.prediction`). In the rest plain decoding and all candidates, with the policy that run and chat use, answer the
same prompts in turn (`measure.study`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.engine import Engine, GenerationOptions
from slipstream.measure.assessment import Assessment
from slipstream.measure.candidates import Candidates, LeftOut
from slipstream.measure.evidence import PROFILE_SECONDS
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.study import LoadCandidate, PolicyOptions, Progress, Study, loaded
from slipstream.measure.verdict import Verdict, decide
from slipstream.models.families import Suggestion
from slipstream.policy.profile import profile


@dataclass(slots=True)
class Advice:
    """What came out.

    kv_bytes:  of one token of the target's context; None where it has none
    plain:     tokens a second without drafts, by kind
    partial:   ended by the user
    unreached: kinds of prompts for which there was no time
    looping:   prompts that were left out because the answer repeats itself
    failures:  sentences about prompts that plain decoding could not answer
    """

    target: str
    runtime: str
    context: int
    kv_bytes: float | None
    verdict: Verdict
    assessments: list[Assessment] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    suggestions: list[Suggestion] = field(default_factory=list)
    plain: dict[str, float] = field(default_factory=dict)
    partial: bool = False
    unreached: list[str] = field(default_factory=list)
    looping: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def winner(self) -> Assessment | None:
        """The assessment of the drafter that the verdict names."""
        return next((one for one in self.assessments if one.candidate.name == self.verdict.use), None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "runtime": self.runtime,
            "context": self.context,
            "kv_bytes_per_token": self.kv_bytes,
            "verdict": self.verdict.as_dict(),
            "partial": self.partial,
            "plain_tokens_per_second": self.plain,
            "candidates": [one.as_dict() for one in self.assessments],
            "left_out": [{"name": one.name, "reason": one.reason} for one in self.left_out],
            "worth_fetching": [
                {"name": one.name, "parameters_billions": one.parameters, "why": one.why} for one in self.suggestions
            ],
            "kinds_not_reached": self.unreached,
            "looping_prompts": self.looping,
            "failures": self.failures,
        }


def advise(
    plain: Engine,
    candidates: Candidates,
    load: LoadCandidate,
    prompts: Sequence[BenchPrompt],
    *,
    seconds: float,
    kv_bytes: float | None,
    max_tokens: int,
    options: GenerationOptions | None = None,
    policy: PolicyOptions | None = None,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Advice:
    """Measure the candidates against `plain`, an engine without drafters whose session pool is unused so far.

    seconds:  about what it may take
    kv_bytes: of one token of the target's context
    policy:   what `load` gives to the policy, for predictions

    Candidates that cannot be loaded are left out with the reason. Raises what the target raises.
    """
    study = Study(plain, prompts, seconds, max_tokens, options or {}, policy or {}, progress, should_stop)
    left_out = list(candidates.left_out)
    assessments: list[Assessment] = []
    waiting = list(candidates.chosen)
    if not plain.target.capabilities.rollback:
        left_out += [LeftOut(one.name, plain.target.notice or "the target cannot take tokens back") for one in waiting]
        waiting = []
    target = profile(plain.target, PROFILE_SECONDS) if waiting else None
    while waiting and not study.stopped:
        with loaded(waiting, load, kv_bytes) as wave:
            left_out += wave.refused
            assert target is not None
            assessments += study.assess(wave, target, len(wave.entrants) / max(len(waiting) - len(wave.refused), 1))
        waiting = wave.postponed
    left_out += [LeftOut(one.name, "there was no time for it") for one in waiting]
    return Advice(
        target=plain.target.name,
        runtime=plain.target.runtime,
        context=plain.target.context_length,
        kv_bytes=kv_bytes,
        verdict=_verdict(plain, assessments, study, fitting=bool(assessments or waiting)),
        assessments=assessments,
        left_out=left_out,
        suggestions=list(candidates.suggestions),
        plain=study.plain_speeds(),
        partial=study.interrupted,
        unreached=study.unreached() if assessments else [],
        looping=study.looping(),
        failures=study.failures,
    )


def _verdict(plain: Engine, assessments: Sequence[Assessment], study: Study, *, fitting: bool) -> Verdict:
    """fitting: whether there is a candidate that could draft at all."""
    if not plain.target.capabilities.rollback:
        return Verdict("none", f"none: {plain.target.name} cannot take tokens back, so nothing can draft for it.")
    if not fitting:
        return Verdict("none", f"none: no candidate can draft for {plain.target.name}; the reasons are above.")
    measured = [one.measured for one in assessments]
    return decide([one for one in measured if one is not None], partial=study.interrupted)
