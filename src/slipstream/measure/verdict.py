"""From measured speed-ups to one sentence: which drafter to use, for what, or none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Literal

from slipstream.measure.ratios import INTERVAL, Ratio
from slipstream.measure.student import student_quantile

WORTH = 1.05
"""A smaller speed-up is not worth a second model, nor a thought."""
SAME = 1.03
"""Of two drafters that differ by less the one that takes less memory is better."""

CHANCE = 0.05
"""How often a drafter that gains nothing anywhere may be said to gain for some kind."""

Answer = Literal["yes", "some", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class Measured:
    """A drafter's speed-ups. memory: bytes that it takes."""

    name: str
    overall: Ratio
    kinds: Mapping[str, Ratio] = field(default_factory=dict)
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do.

    answer: "yes", "some" (for some kinds only), "none" (plain decoding), "unknown" (nothing was measured)
    use:    name of the drafter, None for plain decoding
    kinds:  kinds of prompts that gain
    """

    answer: Answer
    sentence: str
    use: str | None = None
    kinds: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"answer": self.answer, "use": self.use, "kinds": list(self.kinds), "sentence": self.sentence}


def is_worth(ratio: Ratio) -> bool:
    """Whether a speed-up is large enough and more than chance; a single pair proves nothing."""
    return ratio.value >= WORTH and ratio.is_certain


def decide(measured: Sequence[Measured], *, partial: bool = False) -> Verdict:
    """The verdict. partial: the measurement was ended early, which the sentence says."""
    verdict = _decided(measured)
    note = " This is from an unfinished measurement." if partial else ""
    return Verdict(verdict.answer, verdict.sentence + note, verdict.use, verdict.kinds)


def _decided(measured: Sequence[Measured]) -> Verdict:
    if not measured:
        return Verdict("unknown", "no verdict: nothing was measured.")
    for one in _best_first(one for one in measured if is_worth(one.overall)):
        return _yes(one)
    for one in _best_first((one for one in measured if _gaining(one)), by_gain=True):
        return _some(one)
    return _none(measured)


def _yes(one: Measured) -> Verdict:
    gaining = _gaining(one)
    idle = [kind for kind, ratio in one.kinds.items() if ratio.value < WORTH]
    exception = f"; for {_listed(idle)} it brings nothing, and auto switches itself off" if gaining and idle else ""
    return Verdict("yes", f"yes: use {one.name}, {one.overall}{exception}.", one.name, gaining)


def _some(one: Measured) -> Verdict:
    gaining = _gaining(one)
    ratios = ", ".join(f"{kind} {one.kinds[kind]}" for kind in gaining)
    return Verdict(
        "some",
        f"yes, for {_listed(gaining)} only: use {one.name}, {ratios}; auto switches itself off elsewhere "
        f"(all kinds together: {one.overall}).",
        one.name,
        gaining,
    )


def _none(measured: Sequence[Measured]) -> Verdict:
    best = max(measured, key=lambda one: one.overall.value)
    if best.overall.value >= WORTH:
        reason = f"{best.name} came to {best.overall}, which may be chance; more --minutes would tell"
    elif best.overall.high < 1:
        reason = f"the best drafter, {best.name}, is slower: {best.overall}"
    else:
        reason = f"the best drafter, {best.name}, came to {best.overall}"
    return Verdict("none", f"none: plain decoding is as fast ({reason}).")


def _best_first(measured: Iterable[Measured], *, by_gain: bool = False) -> list[Measured]:
    """Fastest first, where about the same is settled by memory. by_gain: only kinds that gain count."""
    ranked = sorted(measured, key=lambda one: _score(one, by_gain), reverse=True)
    close = [one for one in ranked if _score(one, by_gain) * SAME >= _score(ranked[0], by_gain)]
    return sorted(close, key=lambda one: one.memory) + ranked[len(close) :]


def _score(one: Measured, by_gain: bool) -> float:
    if not by_gain:
        return one.overall.value
    gains = [one.kinds[kind].value - 1 for kind in _gaining(one)]
    return 1 + sum(gains) / max(len(one.kinds), 1)


def _gaining(one: Measured) -> tuple[str, ...]:
    """Kinds that gain more than chance, of which every kind has one."""
    return tuple(kind for kind, ratio in one.kinds.items() if is_worth(ratio) and _is_sure(ratio, len(one.kinds)))


def _is_sure(ratio: Ratio, kinds: int) -> bool:
    """Whether a gain stays one where it is the best of so many kinds (Bonferroni) and rests on few prompts.

    The interval's width gives the standard error, and Student's quantile what it has to be exceeded by. With repeats of
    one prompt alone, those are what is counted.
    """
    if ratio.pairs < 3:  # two agree too easily
        return False
    count = ratio.prompts if ratio.prompts > 1 else ratio.pairs
    error = log(ratio.high / ratio.low) / (2 * student_quantile((1 + INTERVAL) / 2, count - 1))
    return log(ratio.value) > error * student_quantile(1 - CHANCE / kinds, count - 1)


def _listed(words: Sequence[str]) -> str:
    """The words with commas, and with "and" before the last."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
