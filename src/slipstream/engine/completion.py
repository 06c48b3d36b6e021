"""What a generation gives: tokens while it runs, a completion at its end, and the figures of both."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slipstream.core.protocols import Constraint
from slipstream.core.stats import PHASES, RoundRecord, Statistics


class Token(NamedTuple):
    """One generated token.

    text:     what may be shown now; "" while half a character or part of a stop string is held back
    logprob:  natural logarithm under the model's raw logits, None if `logprobs=False`
    accepted: whether a drafter had proposed it
    drafter:  which one, "" otherwise
    """

    text: str
    id: int
    logprob: float | None
    accepted: bool
    drafter: str


@dataclass(slots=True)
class Timings:
    """Seconds and counts; `as_dict` uses llama-server's keys, in milliseconds."""

    prompt_n: int = 0
    """Prompt tokens the model had to read; those reused from an earlier prompt are `cache_n`. The last one is read
    by the first round, so its time is in `predicted_seconds`."""
    cache_n: int = 0
    prompt_seconds: float = 0.0
    predicted_n: int = 0
    predicted_seconds: float = 0.0
    """Wall time of the rounds, also where they served other sequences as well."""
    draft_n: int = 0
    draft_n_accepted: int = 0

    def as_dict(self) -> dict[str, float]:
        return {
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_seconds * 1e3,
            "prompt_per_second": _rate(self.prompt_n, self.prompt_seconds),
            "cache_n": self.cache_n,
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_seconds * 1e3,
            "predicted_per_second": _rate(self.predicted_n, self.predicted_seconds),
            "draft_n": self.draft_n,
            "draft_n_accepted": self.draft_n_accepted,
        }


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


@dataclass(slots=True)
class Completion:
    """A finished generation, or what there is of one that was cancelled.

    tokens:        generated ids, the one that ended the text (EOS, end of a stop string) included
    logprobs:      [len(tokens)] or None
    finish_reason: "stop" (end token or stop string), "length" (max_tokens or context), "cancelled", "error" (`failure`)
    seed:          reproduces the text with the same model, prompt and parameters
    constraint:    the grammar's state, None without one
    """

    prompt_tokens: list[int]
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    finish_reason: str = "cancelled"
    seed: int = 0
    drafter: str = "none"
    timings: Timings = field(default_factory=Timings)
    statistics: Statistics = field(default_factory=Statistics)
    constraint: Constraint | None = field(default=None, repr=False)

    @property
    def failure(self) -> str | None:
        """Why the text ended although its grammar was not fulfilled (a sentence), None if it was not so."""
        return None if self.constraint is None else self.constraint.failure

    @property
    def rounds(self) -> list[RoundRecord]:
        """One record for each round, in order."""
        return self.statistics.records

    def speculation(self) -> dict[str, Any]:
        """The figures of speculative decoding as `--json` prints them."""
        statistics = self.statistics
        return {
            "enabled": self.drafter != "none",
            "drafter": self.drafter,
            "rounds": statistics.rounds,
            "mean_accepted_length": statistics.mean_accepted_length,
            "acceptance_rate": statistics.acceptance_rate,
            "accepted_per_position": statistics.accepted_per_position,
            "time_ms": {phase: statistics.seconds[phase] * 1e3 for phase in PHASES},
        }
