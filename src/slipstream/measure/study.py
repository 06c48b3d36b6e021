"""The measurements behind advice: candidates loaded together, plain answers with their proposals, answers in turn."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TypedDict

from slipstream.engine import Engine, GenerationOptions
from slipstream.errors import RuntimeUnavailableError, SlipstreamError
from slipstream.measure.assessment import Assessment, CostFigures, differing_answers, figures
from slipstream.measure.candidates import Candidate, LeftOut
from slipstream.measure.configurations import PLAIN
from slipstream.measure.evidence import gather, machine_of, tables_of
from slipstream.measure.memory_bill import MemoryBill, memory_bill
from slipstream.measure.prediction import Evidence, Prediction, predict
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.ratios import is_looping, tokens_per_second
from slipstream.measure.records import Answer, Failure
from slipstream.measure.runner import in_turn, run_bench
from slipstream.measure.simulated import Curve
from slipstream.policy import CostTable

PROBE_SHARE, MOST_PROBE_SHARE = 1 / 5, 1 / 2
"""Of the time: what goes into answers that predictions are made from, and the most, until all kinds have had one."""
MOST_REPEATS = 5
"""Answers of one configuration to one prompt; more would not make up for the prompts being few."""

LoadCandidate = Callable[[Candidate], Engine]
"""An engine with this drafter and the policy that is to be judged, on the target that is there already."""


class PolicyOptions(TypedDict, total=False):
    """How the policy differs from its defaults."""

    most: int | None
    max_slowdown: float


Progress = Callable[[float, str], None]
"""Called with the share of the time that has gone, 0 to 1, and what is being done."""


@dataclass(slots=True)
class Entrant:
    """A candidate that is loaded. tables: the costs of each drafter's model, None without one."""

    candidate: Candidate
    engine: Engine
    memory: MemoryBill
    tables: list[CostTable | None]
    prediction: Prediction | None = None

    @property
    def runtime(self) -> str:
        """Of its models, "" without one."""
        return "+".join(dict.fromkeys(model.runtime for model in self.engine.draft_models))

    @property
    def has_head(self) -> bool:
        """Whether one of its drafters goes on from the target's hidden states."""
        return any(drafter.requires.hidden_layers for drafter in self.engine.drafters)

    @property
    def curve(self) -> Curve | None:
        """Of the first model."""
        return next((table.seconds for table in self.tables if table is not None), None)


@dataclass(slots=True)
class Wave:
    """Candidates that are loaded together, those that cannot be, and those that wait for memory."""

    entrants: list[Entrant] = field(default_factory=list)
    refused: list[LeftOut] = field(default_factory=list)
    postponed: list[Candidate] = field(default_factory=list)


@contextmanager
def loaded(waiting: Sequence[Candidate], load: LoadCandidate, kv_bytes: float | None) -> Iterator[Wave]:
    """As many candidates as memory holds, at least one unless it cannot be loaded at all; closed at the end."""
    wave = Wave()
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


def _entered(candidate: Candidate, engine: Engine, kv_bytes: float | None) -> Entrant:
    bill = memory_bill(engine.drafters, kv_bytes, engine.draft_files)
    return Entrant(candidate, engine, bill, tables_of(engine.drafters))


class Study:
    """The time that is left, the prompts, and all answers so far."""

    def __init__(
        self,
        plain: Engine,
        prompts: Sequence[BenchPrompt],
        seconds: float,
        max_tokens: int,
        options: GenerationOptions,
        policy: PolicyOptions,
        progress: Progress | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.interrupted = False
        self.failures: list[str] = []
        self._plain, self._prompts = plain, prompts
        self._started, self._seconds = monotonic(), seconds
        self._max_tokens, self._options, self._policy = max_tokens, options, policy
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

    def assess(self, wave: Wave, target: CostTable, share: float) -> list[Assessment]:
        """Measure what is loaded, in this share of the time that is left."""
        if not wave.entrants:
            return []
        end = monotonic() + share * self._left
        prompts = self._probe(wave, target, end)
        answers, failures = self._measure(wave, prompts, end)
        self._answers += answers
        self.failures += [one.sentence for one in failures if one.configuration in (None, PLAIN)]
        return [self._assessed(entrant, answers, failures, target) for entrant in wave.entrants]

    def _probe(self, wave: Wave, target: CostTable, end: float) -> list[BenchPrompt]:
        """Plain answers, what candidates propose for them, and the predictions; returns the prompts that were reached.

        All kinds have one before the time is over, if half of it is enough for that. Heads get no prediction: what they
        propose for a token depends on where the round began.
        """
        started = monotonic()
        reached: list[BenchPrompt] = []
        drafters = {
            entrant.candidate.name: entrant.engine.drafters for entrant in wave.entrants if not entrant.has_head
        }
        evidence: dict[str, list[Evidence]] = {name: [] for name in drafters}
        options: GenerationOptions = {"seed": 0, **self._options, "max_tokens": self._max_tokens, "logprobs": False}
        for prompt in in_turn(self._prompts):
            lacking = {*self._kinds()} - {one.kind for one in reached}
            if self._ends(started + (MOST_PROBE_SHARE if lacking else PROBE_SHARE) * (end - started)):
                break
            self._progress(self._share, f"predicting: {prompt.kind}")
            for name, found in gather(self._plain, drafters, prompt, options, self._should_stop).items():
                evidence[name].append(found)
            reached.append(prompt)
        for entrant in wave.entrants:
            if found_all := evidence.get(entrant.candidate.name):
                machine = machine_of(self._plain, target, entrant.engine.drafters, entrant.tables)
                entrant.prediction = predict(found_all, replace(machine, **self._policy))
        return reached or list(self._prompts[:1])

    def _measure(self, wave: Wave, prompts: Sequence[BenchPrompt], end: float) -> tuple[list[Answer], list[Failure]]:
        """Plain decoding and all candidates in turn until the time is over."""
        engines = {PLAIN: self._plain} | {one.candidate.name: one.engine for one in wave.entrants}
        results = run_bench(
            engines,
            prompts,
            repeats=MOST_REPEATS,
            max_tokens=self._max_tokens,
            options=self._options,
            progress=lambda done, total, what: self._progress(self._share, f"measuring: {what}"),
            should_stop=lambda: self._ends(end),
        )
        return results.answers, results.failures

    def _ends(self, until: float) -> bool:
        self.interrupted = self.interrupted or self._should_stop()
        return self.interrupted or monotonic() >= until

    @property
    def _share(self) -> float:
        """Of the time, that has gone."""
        return min(1 - self._left / self._seconds, 1.0)

    def _assessed(
        self, entrant: Entrant, answers: Sequence[Answer], failures: Sequence[Failure], target: CostTable
    ) -> Assessment:
        name, prediction = entrant.candidate.name, entrant.prediction
        kinds = [kind for kind in self._kinds() if any(answer.kind == kind for answer in answers)]
        return Assessment(
            candidate=entrant.candidate,
            runtime=entrant.runtime,
            overall=figures(answers, name, prediction),
            kinds={kind: figures(answers, name, prediction, kind) for kind in kinds},
            costs=CostFigures.of(target.seconds, entrant.curve),
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
