"""Which drafter is worth having for a target: measured on the user's prompts and machine, within a given time.

Candidates are loaded beside one copy of the target, as many at once as memory holds. In the first third of the time
each answers prompts with drafts of a fixed length, from which its speed-up is predicted (`measure.prediction`). In the
rest plain decoding and all candidates, with the policy that run and chat use, answer the same prompts in turn.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from slipstream.core.protocols import Drafter
from slipstream.engine import Engine, GenerationOptions
from slipstream.errors import RuntimeUnavailableError, SlipstreamError
from slipstream.measure.assessment import Assessment, CostFigures, differing_answers, figures
from slipstream.measure.candidates import Candidate, Candidates, LeftOut
from slipstream.measure.configurations import PLAIN
from slipstream.measure.contestants import EngineContestant, measured
from slipstream.measure.memory_bill import MemoryBill, memory_bill
from slipstream.measure.prediction import Curve, Evidence, Prediction, predict
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.ratios import is_looping, tokens_per_second
from slipstream.measure.records import Answer, Failure, Record
from slipstream.measure.runner import run_bench
from slipstream.measure.verdict import Verdict, decide
from slipstream.models.families import Suggestion
from slipstream.policy.profile import profile

PROBE_LENGTH = 4
"""Draft tokens of the answers that predictions are made from."""
PROBE_SHARE, MOST_PROBE_SHARE = 1 / 3, 1 / 2
"""Of the time: what goes into answers that predictions are made from, and the most, until all kinds have had one."""
PROFILE_SECONDS = 1.5
"""For the cost curve of one model."""
MOST_REPEATS = 5
"""Answers of one configuration to one prompt; more would not make up for the prompts being few."""

LoadCandidate = Callable[[Candidate], Engine]
"""An engine with this drafter and the policy that is to be judged, on the target that is there already."""
Progress = Callable[[float, str], None]
"""Called with the share of the time that has gone, 0 to 1, and what is being done."""


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
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Advice:
    """Measure the candidates against `plain`, an engine without drafters whose session pool is unused so far.

    seconds:  about what it may take; each kind gets one turn at least, if that fits at all
    kv_bytes: of one token of the target's context

    Candidates that cannot be loaded are left out with the reason. Raises what the target raises.
    """
    study = _Study(plain, prompts, seconds, max_tokens, options or {}, progress, should_stop)
    left_out = list(candidates.left_out)
    assessments: list[Assessment] = []
    waiting = list(candidates.chosen)
    if not plain.target.capabilities.rollback:
        left_out += [LeftOut(one.name, plain.target.notice or "the target cannot take tokens back") for one in waiting]
        waiting = []
    target = profile(plain.target, PROFILE_SECONDS).seconds if waiting else None
    while waiting and not study.stopped:
        with _loaded(waiting, load, kv_bytes) as wave:
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
        verdict=_verdict(plain, [one.measured for one in assessments], study),
        assessments=assessments,
        left_out=left_out,
        suggestions=list(candidates.suggestions),
        plain=study.plain_speeds(),
        partial=study.interrupted,
        unreached=study.unreached() if assessments else [],
        looping=study.looping(),
        failures=study.failures,
    )


def _verdict(plain: Engine, measured: Sequence[Any], study: "_Study") -> Verdict:
    if not plain.target.capabilities.rollback:
        sentence = f"none: {plain.target.name} cannot take tokens back, so nothing can draft for it."
        return Verdict("none", sentence)
    return decide([one for one in measured if one is not None], partial=study.interrupted)


@dataclass(slots=True)
class _Entrant:
    """A candidate that is loaded. curve: its draft model's costs, None without one."""

    candidate: Candidate
    engine: Engine
    runtime: str
    memory: MemoryBill
    curve: Curve | None
    prediction: Prediction | None = None

    @property
    def drafter(self) -> Drafter | None:
        """The only drafter, None where there are several."""
        drafters = self.engine.drafters
        return drafters[0] if len(drafters) == 1 else None


@dataclass(slots=True)
class _Wave:
    """Candidates that are loaded together, those that cannot be, and those that wait for memory."""

    entrants: list[_Entrant] = field(default_factory=list)
    refused: list[LeftOut] = field(default_factory=list)
    postponed: list[Candidate] = field(default_factory=list)


@contextmanager
def _loaded(waiting: Sequence[Candidate], load: LoadCandidate, kv_bytes: float | None) -> Iterator[_Wave]:
    """As many candidates as memory holds, at least one unless it cannot be loaded at all; closed at the end."""
    wave = _Wave()
    with ExitStack() as stack:
        for candidate in waiting:
            try:
                engine = stack.enter_context(load(candidate))
                wave.entrants.append(_entered(candidate, engine, kv_bytes))
            except RuntimeUnavailableError as error:
                if any(entrant.runtime for entrant in wave.entrants):  # it may fit when the others are gone
                    wave.postponed.append(candidate)
                else:
                    wave.refused.append(LeftOut(candidate.name, str(error)))
            except SlipstreamError as error:
                wave.refused.append(LeftOut(candidate.name, str(error)))
        yield wave


def _entered(candidate: Candidate, engine: Engine, kv_bytes: float | None) -> _Entrant:
    models = engine.draft_models
    curve = profile(models[0], PROFILE_SECONDS).seconds if models else None
    runtimes = "+".join(dict.fromkeys(model.runtime for model in models))
    return _Entrant(candidate, engine, runtimes, memory_bill(models, kv_bytes), curve)


class _Remembering(EngineContestant):
    """Keeps the ids of its answers, by prompt: prompt and answer."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.ids: dict[str, tuple[list[int], list[int]]] = {}

    def answer(self, prompt: BenchPrompt, options: GenerationOptions, should_stop: Callable[[], bool]) -> Answer | None:
        given = prompt.for_model(has_template=self.engine.template is not None)
        with self.engine.stream(given, **options) as stream:
            for _ in stream:
                if should_stop():
                    return None
        self.ids[prompt.id] = stream.completion.prompt_tokens, stream.completion.tokens
        return measured(stream.completion)


class _Study:
    """The time that is left, the prompts, and all answers so far."""

    def __init__(
        self,
        plain: Engine,
        prompts: Sequence[BenchPrompt],
        seconds: float,
        max_tokens: int,
        options: GenerationOptions,
        progress: Progress | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.interrupted = False
        self.failures: list[str] = []
        self._plain, self._prompts = plain, prompts
        self._started, self._seconds = monotonic(), seconds
        self._max_tokens, self._options = max_tokens, options
        self._progress = progress or (lambda share, what: None)
        self._should_stop = should_stop or (lambda: False)
        self._answers: list[Answer] = []

    @property
    def stopped(self) -> bool:
        """Whether the user has ended it or the time is over."""
        self.interrupted = self.interrupted or self._should_stop()
        return self.interrupted or self._left <= 0

    @property
    def _left(self) -> float:
        return self._started + self._seconds - monotonic()

    def assess(self, wave: _Wave, target: Curve, share: float) -> list[Assessment]:
        """Measure what is loaded, in this share of the time that is left."""
        if not wave.entrants:
            return []
        end = monotonic() + share * self._left
        prompts = self._probe(wave, target, end)
        answers, failures = self._measure(wave, prompts, end)
        self._answers += answers
        self.failures += [one.sentence for one in failures if one.configuration in (None, PLAIN)]
        return [self._assessed(entrant, answers, failures, target) for entrant in wave.entrants]

    def _probe(self, wave: _Wave, target: Curve, end: float) -> list[BenchPrompt]:
        """Answers with drafts of a fixed length, and the predictions; returns the prompts that there was time for."""
        contestants = {PLAIN: _Remembering(self._plain)}
        for entrant in wave.entrants:
            if entrant.drafter is not None:
                fixed = self._plain.sharing(draft=entrant.drafter, speculation="on", num_draft_tokens=PROBE_LENGTH)
                contestants[entrant.candidate.name] = _Remembering(fixed)
        answered: list[Record] = []
        results = run_bench(
            contestants,
            self._prompts,
            max_tokens=self._max_tokens,
            options=self._options,
            on_record=answered.append,
            progress=self._reporter("predicting"),
            should_stop=self._probed_enough(answered, end),
        )
        for entrant in wave.entrants:
            evidence = _evidence(entrant.candidate.name, results.answers, contestants)
            if evidence:
                free = entrant.drafter if entrant.curve is None else None
                entrant.prediction = predict(evidence, target, entrant.curve, free)
        reached = {answer.prompt for answer in results.answers if answer.configuration == PLAIN}
        return [prompt for prompt in self._prompts if prompt.id in reached] or list(self._prompts[:1])

    def _probed_enough(self, answered: Sequence[Record], end: float) -> Callable[[], bool]:
        started = monotonic()
        usual, latest = (started + share * (end - started) for share in (PROBE_SHARE, MOST_PROBE_SHARE))

        def enough() -> bool:
            lacking = {*self._kinds()} - {one.kind for one in answered if isinstance(one, Answer)}
            return self._ends(latest if lacking else usual)

        return enough

    def _measure(self, wave: _Wave, prompts: Sequence[BenchPrompt], end: float) -> tuple[list[Answer], list[Failure]]:
        """Plain decoding and all candidates in turn until the time is over."""
        engines = {PLAIN: self._plain} | {one.candidate.name: one.engine for one in wave.entrants}
        results = run_bench(
            engines,
            prompts,
            repeats=MOST_REPEATS,
            max_tokens=self._max_tokens,
            options=self._options,
            progress=self._reporter("measuring"),
            should_stop=lambda: self._ends(end),
        )
        return results.answers, results.failures

    def _ends(self, until: float) -> bool:
        self.interrupted = self.interrupted or self._should_stop()
        return self.interrupted or monotonic() >= until

    def _reporter(self, what: str) -> Callable[[int, int, str], None]:
        def report(done: int, total: int, detail: str) -> None:
            self._progress(min(1 - self._left / self._seconds, 1.0), f"{what}: {detail}")

        return report

    def _assessed(
        self, entrant: _Entrant, answers: Sequence[Answer], failures: Sequence[Failure], target: Curve
    ) -> Assessment:
        name, prediction = entrant.candidate.name, entrant.prediction
        kinds = [kind for kind in self._kinds() if any(answer.kind == kind for answer in answers)]
        return Assessment(
            candidate=entrant.candidate,
            runtime=entrant.runtime,
            overall=figures(answers, name, prediction),
            kinds={kind: figures(answers, name, prediction, kind) for kind in kinds},
            costs=CostFigures.of(target, entrant.curve),
            memory=entrant.memory,
            prediction=prediction,
            differing=differing_answers(answers, name),
            failures=[failure.sentence for failure in failures if failure.configuration == name],
        )

    def plain_speeds(self) -> dict[str, float]:
        """Tokens a second without drafts, by kind."""
        speeds = {kind: tokens_per_second(self._of_plain(kind)) for kind in self._kinds()}
        return {kind: speed for kind, speed in speeds.items() if speed is not None}

    def unreached(self) -> list[str]:
        return [kind for kind in self._kinds() if not self._of_plain(kind)]

    def looping(self) -> list[str]:
        return sorted({answer.prompt for answer in self._answers if is_looping(answer)})

    def _kinds(self) -> list[str]:
        return list(dict.fromkeys(prompt.kind for prompt in self._prompts))

    def _of_plain(self, kind: str) -> list[Answer]:
        return [answer for answer in self._answers if answer.configuration == PLAIN and answer.kind == kind]


def _evidence(name: str, answers: Sequence[Answer], contestants: Mapping[str, _Remembering]) -> list[Evidence]:
    """What a candidate's prediction is made from: prompts that it and plain decoding have answered without looping."""
    if name not in contestants:
        return []
    plain = {answer.prompt: answer for answer in answers if answer.configuration == PLAIN}
    ids = contestants[name].ids
    return [
        Evidence(one.prompt, one.kind, plain[one.prompt].rounds, one.rounds, *ids[one.prompt])
        for one in answers
        if one.configuration == name and one.prompt in plain and one.rounds and not is_looping(one)
    ]
