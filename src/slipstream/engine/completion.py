"""What a generation gives: tokens while it runs, a completion at its end, and the figures of both."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slipstream.core.stats import PHASES, RoundRecord, Statistics


class Token(NamedTuple):
    """One generated token.

    text:     what may be shown now; "" while half a character or part of a stop string is held back
    logprob:  natural logarithm under the model's raw logits, None if `logprobs=False`
    accepted: whether a drafter had proposed it
    drafter:  which one, "" otherwise
    round:    of its text, counted from 1
    top:      ids and log-probabilities of the likeliest tokens in its place, as many as `top_logprobs` asked for
    """

    text: str
    id: int
    logprob: float | None
    accepted: bool
    drafter: str
    round: int = 0
    top: Sequence[tuple[int, float]] = ()


@dataclass(slots=True)
class Timings:
    """Seconds and counts; `as_dict` uses llama-server's keys, in milliseconds."""

    prompt_n: int = 0
    """Prompt tokens the model had to read; those reused from an earlier prompt are `cache_n`."""
    cache_n: int = 0
    prompt_seconds: float = 0.0
    """Until the prompt was read. The forward that read its last part also made the first token, whose share by rows
    is in `predicted_seconds`."""
    predicted_n: int = 0
    predicted_seconds: float = 0.0
    """Wall time of the rounds, also where they served other sequences as well."""
    draft_n: int = 0
    draft_n_accepted: int = 0
    begun_at: float = 0.0
    """When its prompt began to be read, on the clock of `time.perf_counter`."""
    ended_at: float = 0.0
    """When its last token was there."""

    @classmethod
    def together(cls, several: Sequence["Timings"]) -> "Timings":
        """Those of texts that one request asked for: sums of tokens, and the time in which any of them was read, or
        decoded."""
        read = [(one.begun_at, one.begun_at + one.prompt_seconds) for one in several]
        decoded = [(one.begun_at + one.prompt_seconds, one.ended_at) for one in several if one.predicted_n]
        return cls(
            prompt_n=sum([one.prompt_n for one in several]),
            cache_n=sum([one.cache_n for one in several]),
            prompt_seconds=_covered(read),
            predicted_n=sum([one.predicted_n for one in several]),
            predicted_seconds=_covered(decoded),
            draft_n=sum([one.draft_n for one in several]),
            draft_n_accepted=sum([one.draft_n_accepted for one in several]),
            begun_at=min([one.begun_at for one in several]),
            ended_at=max([one.ended_at for one in several]),
        )

    def as_dict(self) -> dict[str, float]:
        return {
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_seconds * 1e3,
            "prompt_per_token_ms": _rate(self.prompt_seconds * 1e3, self.prompt_n),
            "prompt_per_second": _rate(self.prompt_n, self.prompt_seconds),
            "cache_n": self.cache_n,
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_seconds * 1e3,
            "predicted_per_token_ms": _rate(self.predicted_seconds * 1e3, self.predicted_n),
            "predicted_per_second": _rate(self.predicted_n, self.predicted_seconds),
            "draft_n": self.draft_n,
            "draft_n_accepted": self.draft_n_accepted,
        }


def _rate(count: float, of: float) -> float:
    return count / of if of > 0 else 0.0


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that are in at least one of these (beginning, end)."""
    covered, until = 0.0, -float("inf")
    for begin, end in sorted(spans):
        covered += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return covered


@dataclass(slots=True)
class Completion:
    """A finished generation, or what there is of one that was cancelled.

    tokens:        generated ids, the one that ended the text (EOS, end of a stop string) included
    logprobs:      [len(tokens)] or None
    finish_reason: "stop" (end token or stop string), "length" (max_tokens or context), "cancelled"
    seed:          reproduces the text with the same model, prompt and parameters
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

    @property
    def rounds(self) -> list[RoundRecord]:
        """One record for each round, in order."""
        return self.statistics.records

    @property
    def estimated_speed_up(self) -> float | None:
        """Plain decoding's time for the same tokens over the time they took, from measured costs; None if unknown."""
        known = [(record.plain, sum(record.seconds.values())) for record in self.rounds if record.plain is not None]
        actual = sum(seconds for _, seconds in known)
        return sum(plain for plain, _ in known) / actual if actual > 0 else None

    def drafted_by(self, drafter: str) -> tuple[int, int]:
        """(tokens accepted, tokens refused) of what a drafter proposed and the target checked."""
        records = [record for record in self.rounds if record.drafter == drafter]
        accepted = sum(record.accepted for record in records)
        return accepted, sum(record.drafted for record in records) - accepted

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
            "estimated_speed_up": self.estimated_speed_up,
            "time_ms": {phase: statistics.seconds[phase] * 1e3 for phase in PHASES},
        }


def figures_of(several: Sequence[Completion]) -> Completion:
    """The texts of one request as if they were one, for its figures: there is no text in it."""
    if len(several) == 1:
        return several[0]
    statistics = Statistics()
    for one in several:
        for record in one.rounds:
            statistics.add(record)
    drafting = next((one.drafter for one in several if one.drafter != "none"), "none")
    timings = Timings.together([one.timings for one in several])
    return Completion([], drafter=drafting, timings=timings, statistics=statistics)
