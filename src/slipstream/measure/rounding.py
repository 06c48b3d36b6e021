"""How much a runtime's logits depend on what is computed beside them: measured, on the texts in question.

Rows of a text are computed once one by one, as plain decoding does, and once several together, as verification does
when every draft is right. Nothing is refused, so nothing is rolled back: what differs is the runtime's arithmetic.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np

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
LEAST = 0.01
"""Logits. What a runtime that promises no bits is allowed even where it was not seen to round."""
IMPLAUSIBLE = 4.0
"""Logits. No rounding moves a logit this far, whatever was measured; it is a factor of 50 in the odds of two tokens."""


@dataclass(slots=True)
class Rounding:
    """Differences between rows computed alone and beside others, each the largest over the vocabulary, in logits."""

    differences: list[float] = field(default_factory=list)

    @property
    def largest(self) -> float:
        return max(self.differences, default=0.0)

    @property
    def allowed(self) -> float:
        """A decision that hangs on more than this was not made by rounding."""
        return min(max(self.largest, LEAST), IMPLAUSIBLE)

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.differences, share)) if self.differences else 0.0


def differences(
    engine: Engine, case: Case, given: GenerationOptions, plain: Completion, watch: Watch, rows: int = ROWS
) -> Iterator[float]:
    """One figure for each row of the plain answer's first `rows` tokens and each number of rows in `TOGETHER`."""
    options = cast(GenerationOptions, {**given, "max_tokens": min(len(plain.tokens), rows)})
    alone = Witness()
    first = _rows(engine, case, options, alone, 1, watch)
    text = [*case.tokens, *plain.tokens]
    for together in TOGETHER:
        rehearsal = Rehearsal([text], together - 1, mistakes=False)
        tokens = _rows(engine, case, options, rehearsal, together - 1, watch)
        for place in range(common_prefix(first, tokens)):
            position = len(case.tokens) + place
            yield _distance(alone.rows[position], rehearsal.rows[position])


def _rows(
    engine: Engine, case: Case, given: GenerationOptions, witness: Witness, length: int, watch: Watch
) -> list[int]:
    """Answer so that the witness sees the rows; returns the tokens."""
    with with_drafter(engine, witness, length) as watched:
        return answer(watched, case, given, watch).tokens


def _distance(one: Logits, other: Logits) -> float:
    """The largest difference; entries that are the same infinity differ by nothing."""
    return float(np.max(np.abs(one - other), where=one != other, initial=0.0))
