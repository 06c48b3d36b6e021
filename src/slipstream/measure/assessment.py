"""The figures of one candidate: what was measured, what was predicted, what it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.measure.candidates import Candidate
from slipstream.measure.memory_bill import MemoryBill
from slipstream.measure.prediction import Prediction
from slipstream.measure.ratios import Ratio, differing, is_looping, ratio
from slipstream.measure.records import Answer
from slipstream.measure.simulated import Curve
from slipstream.measure.verdict import Measured

FAR = 0.1
"""A prediction that is further from the measurement than this share of it is said to differ."""
VERIFIED_ROWS = 5
"""Rows of the forward by which verification is judged: the pending token and a draft of four."""


@dataclass(frozen=True, slots=True)
class CostFigures:
    """In units of one plain step of the target.

    draft_step: one step of the draft model; None where none drafts
    verify:     a forward of `VERIFIED_ROWS` rows
    """

    draft_step: float | None
    verify: float

    @classmethod
    def of(cls, target: Curve, draft: Curve | None) -> "CostFigures":
        step = target(1)
        return cls(None if draft is None else draft(1) / step, target(VERIFIED_ROWS) / step)


@dataclass(frozen=True, slots=True)
class KindFigures:
    """A candidate on one kind of prompts, or on all.

    ratio:            speed-up; None where nothing could be compared
    predicted:        the same from costs and acceptance; None where there was nothing to predict from
    acceptance_rate:  accepted / tested; None where nothing was drafted
    tokens_per_round: committed / rounds
    """

    ratio: Ratio | None
    predicted: float | None
    acceptance_rate: float | None
    tokens_per_round: float | None

    @property
    def surprising(self) -> bool:
        """Whether measurement and prediction differ by over a tenth of the measurement."""
        if self.ratio is None or self.predicted is None:
            return False
        return abs(self.predicted / self.ratio.value - 1) > FAR

    def as_dict(self) -> dict[str, Any]:
        return {
            "speed_up": None if self.ratio is None else asdict(self.ratio),
            "predicted": self.predicted,
            "prediction_differs": self.surprising,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_round": self.tokens_per_round,
        }


@dataclass(frozen=True, slots=True)
class Assessment:
    """Everything about one candidate.

    runtime:   of its draft model, "" without one
    differing: answers whose ids are not plain's
    failures:  sentences about what went wrong while it was measured
    """

    candidate: Candidate
    runtime: str
    overall: KindFigures
    kinds: Mapping[str, KindFigures]
    costs: CostFigures
    memory: MemoryBill
    prediction: Prediction | None
    differing: int
    failures: Sequence[str] = ()

    @property
    def measured(self) -> Measured | None:
        """For the verdict; None where nothing could be compared."""
        if self.overall.ratio is None:
            return None
        kinds = {kind: figures.ratio for kind, figures in self.kinds.items() if figures.ratio is not None}
        return Measured(self.candidate.name, self.overall.ratio, kinds, self.memory.total)

    def as_dict(self) -> dict[str, Any]:
        prediction = self.prediction
        return {
            "name": self.candidate.name,
            "draft": self.candidate.draft,
            "runtime": self.runtime or None,
            "overall": self.overall.as_dict(),
            "kinds": {kind: figures.as_dict() for kind, figures in self.kinds.items()},
            "costs": {"draft_step": self.costs.draft_step, f"verify_{VERIFIED_ROWS}_rows": self.costs.verify},
            "memory": self.memory.as_dict(),
            "predicted_by_length": {} if prediction is None else {str(n): x for n, x in prediction.by_length().items()},
            "differing_answers": self.differing,
            "failures": list(self.failures),
        }


def figures(
    answers: Sequence[Answer], name: str, prediction: Prediction | None, kind: str | None = None
) -> KindFigures:
    """Figures of the configuration `name` on prompts of a kind; None is all of them."""
    mine = [one for one in answers if one.configuration == name and kind in (None, one.kind) and not is_looping(one)]
    rounds = [round_ for answer in mine for round_ in answer.rounds]
    tested = sum(one.tested for one in rounds)
    return KindFigures(
        ratio=ratio(answers, name, kind),
        predicted=None if prediction is None else prediction.for_prompts({answer.prompt for answer in mine}),
        acceptance_rate=sum(one.accepted for one in rounds) / tested if tested else None,
        tokens_per_round=sum(one.committed for one in rounds) / len(rounds) if rounds else None,
    )


def differing_answers(answers: Sequence[Answer], name: str) -> int:
    """Answers of a configuration whose ids are not those of plain decoding."""
    return sum(one.configuration == name for one in differing(answers))
