"""Sampling parameters and their ranges."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slipstream.errors import UsageError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from a row of logits. Applied in the order of the fields below.

    logit_bias:         token id -> added to its logit; -inf bans the token, any other value is finite
    repetition_penalty: > 0; logits of tokens seen before are divided by it if positive, multiplied if negative
                        (Keskar et al. 2019, arXiv 1909.05858); 1 is off
    presence_penalty:   subtracted once from the logit of every token seen before; 0 is off
    frequency_penalty:  subtracted once for each time the token was seen; 0 is off
    temperature:        >= 0; logits are divided by it, 0 takes the largest
    top_k:              >= 0; keep the k largest, and all that tie with the last; 0 is off
    top_p:              in (0, 1]; keep the smallest set of the most probable tokens that has this mass; 1 is off
    min_p:              in [0, 1]; keep tokens at least this probable relative to the most probable; 0 is off
    seed:               the noise; None draws a random one, which is reported

    "Seen" means the prompt and everything generated so far. Raises UsageError for impossible values.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, self.temperature >= 0, "0 or more")
        _number("top_p", self.top_p, 0 < self.top_p <= 1, "more than 0 and at most 1")
        _number("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        _number(
            "top_k",
            self.top_k,
            self.top_k >= 0 and self.top_k == int(self.top_k),
            "a whole number, 0 or more",
        )
        _number("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0, "more than 0")
        _number("presence_penalty", self.presence_penalty, True, "a finite number")
        _number("frequency_penalty", self.frequency_penalty, True, "a finite number")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise UsageError(f"seed must be a whole number that fits 64 bits, not {self.seed}.")
        for token, bias in self.logit_bias.items():
            if math.isnan(bias) or bias == math.inf:
                raise UsageError(f"logit_bias of token {token} must be a finite number or -inf, not {bias}.")

    def seeded(self) -> "SamplingParams":
        """The same parameters with a seed, random where none was given."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(32))

    @property
    def has_filters(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def loosened(self) -> "SamplingParams":
        """Filters for a draft: a token that its target may keep must not be lost, one it never keeps may be.

        Where min-p cuts the tail already, top-p adds nothing to a draft but work.
        """
        top_p = 1.0 if self.min_p > 0 else (1 + self.top_p) / 2
        return replace(self, top_k=self.top_k * 2, top_p=top_p, min_p=self.min_p / 2)


def _number(name: str, value: float, possible: bool, allowed: str) -> None:
    if not possible or not math.isfinite(value):
        raise UsageError(f"{name} must be {allowed}, not {value}.")
