"""Where two answers part, and by how much: a near-tie is decided by rounding, a mistake is not."""

from dataclasses import dataclass
from typing import Any, cast

from slipstream.core.feed import common_prefix
from slipstream.core.gap import LARGEST, decision_gap
from slipstream.core.protocols import Logits
from slipstream.core.sampling import Sampler
from slipstream.engine import Completion, Engine, GenerationOptions
from slipstream.measure.cases import Case, answer, row_after, with_drafter
from slipstream.measure.rehearsal import Witness
from slipstream.measure.rounding import Rounding
from slipstream.measure.watch import Watch

TOKEN, LOG_PROBABILITY, END = "token", "log-probability", "end"


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place where an answer is not plain decoding's.

    prompt, seed: which answer
    index:        of the first token of the answer that differs
    what:         its id, its log-probability alone, or whether there is such a token
    plain, other: the tokens, None where there is none
    gap:          logits by which a row has to change for that (`core.gap`); for a log-probability, its change
    allowed:      what rounding can account for, 0 where rows are bit-exact
    """

    prompt: str
    seed: int
    index: int
    what: str
    plain: int | None
    other: int | None
    gap: float
    allowed: float

    @property
    def real(self) -> bool:
        """Whether it takes more than rounding."""
        return self.gap > self.allowed or self.allowed == 0

    def as_dict(self) -> dict[str, Any]:
        names = ("prompt", "seed", "index", "what", "plain", "other", "gap", "allowed", "real")
        return {name: getattr(self, name) for name in names}


def parting(
    engine: Engine,
    case: Case,
    given: GenerationOptions,
    plain: Completion,
    other: Completion,
    rounding: Rounding | None,
    watch: Watch,
) -> Parting | None:
    """The first difference of two answers to a case, None if there is none.

    rounding: what is allowed to differ; None compares log-probabilities bit by bit
    """
    index = common_prefix(plain.tokens, other.tokens)
    allowed, allowed_log = (0.0, 0.0) if rounding is None else (rounding.allowed, rounding.allowed_log_probability)
    place = _first_other_log_probability(plain, other, index, allowed_log)
    if place is not None:
        token, size = plain.tokens[place], abs(_logprobs(plain)[place] - _logprobs(other)[place])
        size = min(LARGEST, size)  # NaN, too
        return Parting(case.name, case.seed, place, LOG_PROBABILITY, token, token, size, allowed_log)
    if index == len(plain.tokens) == len(other.tokens):
        return None
    if index in (len(plain.tokens), len(other.tokens)):
        one, two = _token(plain, index), _token(other, index)
        return Parting(case.name, case.seed, index, END, one, two, LARGEST, allowed)
    gap = parting_gap(engine, case, given, plain, other, index, watch)
    return Parting(case.name, case.seed, index, TOKEN, plain.tokens[index], other.tokens[index], gap, allowed)


def _token(completion: Completion, index: int) -> int | None:
    return completion.tokens[index] if index < len(completion.tokens) else None


def parting_gap(
    engine: Engine, case: Case, given: GenerationOptions, plain: Completion, other: Completion, index: int, watch: Watch
) -> float:
    """The gap of the decision in which two answers part, on the row that plain decoding computed.

    Where a runtime does not even repeat itself, that row may give either token; the gap is that of the one it does
    not give.
    """
    history = [*case.tokens, *plain.tokens[:index]]
    row = _plain_row(engine, case, given, plain, index, watch)
    sampler = Sampler(case.params(engine, given), engine.target.vocabulary.size, history)
    return max(decision_gap(row, sampler, len(history), one.tokens[index]) for one in (plain, other))


def _plain_row(
    engine: Engine, case: Case, given: GenerationOptions, plain: Completion, index: int, watch: Watch
) -> Logits:
    """The row of the token at `index`, by decoding up to there once more."""
    witness, length = Witness(), index + 1
    options = cast(GenerationOptions, {**given, "max_tokens": length})
    with with_drafter(engine, witness) as watched:
        again = answer(watched, case, options, watch)
    if again.tokens[:index] == plain.tokens[:index]:
        return witness.rows[len(case.tokens) + index]
    return row_after(engine, [*case.tokens, *plain.tokens[:index]])


def _first_other_log_probability(plain: Completion, other: Completion, until: int, allowed: float) -> int | None:
    """The first token before `until` whose log-probability says that its row is another one."""
    pairs = zip(_logprobs(plain)[:until], _logprobs(other)[:until], strict=True)
    return next((place for place, (one, two) in enumerate(pairs) if not abs(one - two) <= allowed), None)


def _logprobs(completion: Completion) -> list[float]:
    assert completion.logprobs is not None, "a certificate asks for them"
    return completion.logprobs
