"""How much a runtime's logits depend on what is computed beside them: measured, on the texts in question.

Rows of a text are computed once one by one, as plain decoding does, and once several together, as verification does
when every draft is right. Nothing is refused, so nothing is rolled back: what differs is the runtime's arithmetic.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from slipstream.core.blocks import top
from slipstream.core.feed import common_prefix
from slipstream.core.protocols import Logits
from slipstream.engine import Completion, Engine, GenerationOptions
from slipstream.measure.cases import Case, answer, with_drafter
from slipstream.measure.rehearsal import Rehearsal, Witness
from slipstream.measure.watch import Watch

TOGETHER = (2, 4, 8)
"""Rows in one forward."""
ROWS = 48
"""Of one text."""
CONTENDERS = 64
"""Tokens that a decision is between, the likeliest. The unlikely ones round the most, and matter the least."""
LEAST = 0.01
"""Logits. What a runtime that promises no bits is allowed even where it was not seen to round."""
IMPLAUSIBLE = 4.0
"""Logits. No rounding moves a decision this far, whatever was measured: the odds of two tokens would change by a factor
of 3000."""


@dataclass(slots=True)
class Rounding:
    """Differences between rows computed alone and beside others, one of each kind for a row, in logits.

    decisions:         half the range over the `CONTENDERS`: how far they move against each other, in the unit of
                       `core.gap`, which leaves out what they have in common
    everywhere:        the largest over the whole vocabulary
    log_probabilities: of the token that was chosen
    """

    decisions: list[float] = field(default_factory=list)
    everywhere: list[float] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)

    @property
    def allowed(self) -> float:
        """A decision that hangs on more than this was not made by rounding."""
        return min(max(self.decisions, default=0.0) + LEAST, IMPLAUSIBLE)

    @property
    def allowed_log_probability(self) -> float:
        """A log-probability that is further off belongs to another row.

        It is the token's logit less a mean of all, so it moves by at most the whole range of what moves decisions.
        """
        return 2 * self.allowed

    def add(self, alone: Logits, together: Logits) -> None:
        """Take in a row that was computed twice."""
        difference = np.subtract(alone, together, where=alone != together, out=np.zeros_like(alone))
        moved = difference[top(alone, min(CONTENDERS, len(alone)))[0]]
        self.decisions.append(float(moved.max() - moved.min()) / 2)
        self.everywhere.append(float(np.abs(difference).max()))

    def as_dict(self) -> dict[str, Any]:
        kinds = {"decisions": self.decisions, "everywhere": self.everywhere}
        kinds["log_probabilities"] = self.log_probabilities
        quantiles = {kind: _quantiles(values) for kind, values in kinds.items()}
        return {"rows": len(self.decisions), "together": list(TOGETHER), "allowed": self.allowed, **quantiles}


def _quantiles(values: list[float]) -> dict[str, float]:
    """Nothing where nothing was measured."""
    shares = {"median": 0.5, "p90": 0.9, "p99": 0.99, "largest": 1.0}
    return {name: float(np.quantile(values, share)) for name, share in shares.items()} if values else {}


def measure_rounding(
    rounding: Rounding, engine: Engine, case: Case, given: GenerationOptions, plain: Completion, watch: Watch
) -> None:
    """Add the first rows of a plain answer, for each number of rows in `TOGETHER`."""
    options = cast(GenerationOptions, {**given, "max_tokens": max(1, min(len(plain.tokens), ROWS))})
    alone = Witness()
    first = _rows(engine, case, options, alone, 1, watch)
    text = [*case.tokens, *plain.tokens]
    for together in TOGETHER:
        rehearsal = Rehearsal([text], together - 1, mistakes=False)
        second = _rows(engine, case, options, rehearsal, together - 1, watch)
        same = common_prefix(first.tokens, second.tokens)
        for position in range(len(case.tokens), len(case.tokens) + same):
            rounding.add(alone.rows[position], rehearsal.rows[position])
        pairs = zip(first.logprobs or (), second.logprobs or (), strict=False)
        rounding.log_probabilities += [abs(one - two) for one, two in list(pairs)[:same]]


def _rows(
    engine: Engine, case: Case, given: GenerationOptions, witness: Witness, length: int, watch: Watch
) -> Completion:
    """Answer so that the witness sees the rows."""
    with with_drafter(engine, witness, length) as watched:
        return answer(watched, case, given, watch)
