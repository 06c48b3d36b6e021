"""How much faster than plain decoding: ratios of paired answers, with bootstrap intervals.

A pair is plain's and a configuration's answer to the same prompt in the same repeat, run one after the other; its ratio
is plain's seconds a token over the configuration's. A prompt's ratio is the median of its repeats, because another
process disturbs single answers. A kind's is the geometric mean of its prompts: a speed-up of 2 and one of 1/2 make 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from slipstream.measure.configurations import PLAIN
from slipstream.measure.looping import LOOPING
from slipstream.measure.records import Answer
from slipstream.measure.student import widening

RESAMPLES = 2000
INTERVAL = 0.95

Pairs = Mapping[str, Sequence[float]]
"""By prompt, the ratios of its repeats."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speed-up with its interval; above 1 is faster than plain. `low` and `high` are `value` for a single pair."""

    value: float
    low: float
    high: float
    prompts: int
    pairs: int

    @property
    def is_certain(self) -> bool:
        """Whether the interval leaves out 1; a single pair has none."""
        return self.pairs > 1 and (self.low > 1 or self.high < 1)

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"


def paired(answers: Iterable[Answer], configuration: str, plain: str = PLAIN) -> dict[str, list[float]]:
    """Ratios of all pairs, by prompt. Pairs with a looping answer are left out."""
    found = {(answer.configuration, answer.prompt, answer.repeat): answer for answer in answers}
    ratios: dict[str, list[float]] = {}
    for (name, prompt, repeat), answer in found.items():
        reference = found.get((plain, prompt, repeat))
        if name == configuration and reference is not None and not (is_looping(answer) or is_looping(reference)):
            ratios.setdefault(prompt, []).append(reference.seconds_per_token / answer.seconds_per_token)
    return ratios


def is_looping(answer: Answer) -> bool:
    """Whether an answer repeats itself so much that its speed says nothing."""
    return answer.looping > LOOPING


def speed_up(pairs: Pairs, *, seed: int = 0, resamples: int = RESAMPLES) -> Ratio | None:
    """The ratio over all prompts with its 95 % interval; None without pairs.

    The bootstrap draws prompts, and for each repeats, with replacement (Efron and Tibshirani 1993). Its percentiles
    are moved apart where prompts, or repeats of a single one, are few (`student.widening`).
    """
    logs = [np.log(np.asarray(ratios, np.float64)) for ratios in pairs.values() if len(ratios)]
    if not logs:
        return None
    # The median of logarithms differs from the logarithm of the median where two values are in the middle; by little.
    value = float(np.exp(np.mean([np.median(ratios) for ratios in logs])))
    rng = np.random.default_rng(seed)
    # [resamples, prompts]: each prompt's median of redrawn repeats; then prompts are redrawn within each row
    medians = np.stack([np.median(_redrawn(ratios, resamples, rng), axis=1) for ratios in logs], axis=1)
    drawn = rng.integers(len(logs), size=medians.shape)
    means = np.exp(np.take_along_axis(medians, drawn, axis=1).mean(axis=1))
    tail = (1 - INTERVAL) / 2
    wider = widening(INTERVAL, len(logs) if len(logs) > 1 else len(logs[0]))
    low, high = value * (np.quantile(means, [tail, 1 - tail]) / value) ** wider
    return Ratio(value, float(low), float(high), len(logs), sum(map(len, logs)))


def _redrawn(values: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """The values drawn again with replacement: [count, len(values)]."""
    return values[rng.integers(len(values), size=(count, len(values)))]


def ratio(answers: Iterable[Answer], configuration: str, kind: str | None = None, plain: str = PLAIN) -> Ratio | None:
    """The speed-up of a configuration on prompts of a kind (None: all), None where nothing can be compared."""
    chosen = [answer for answer in answers if kind is None or answer.kind == kind]
    return speed_up(paired(chosen, configuration, plain))


def tokens_per_second(answers: Sequence[Answer]) -> float | None:
    """The median over answers that do not loop."""
    speeds = [1 / answer.seconds_per_token for answer in answers if not is_looping(answer)]
    return median(speeds) if speeds else None


def differing(answers: Iterable[Answer], plain: str = PLAIN) -> list[Answer]:
    """Answers whose ids are not plain's for the same prompt and repeat; servers do not tell ids and are left out."""
    answers = list(answers)
    reference = {(one.prompt, one.repeat): one.ids_hash for one in answers if one.configuration == plain}
    return [
        one for one in answers if one.ids_hash and reference.get((one.prompt, one.repeat), one.ids_hash) != one.ids_hash
    ]
