"""Sampling parameters and their ranges."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from slipstream.errors import UsageError

MOST_TOP_K = 2**31


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from a row of logits. Applied in the order of the fields below.

    logit_bias:         token id -> added to its logit, from -10000 to 10000; -inf bans the token
    repetition_penalty: from 0.01 to 100; logits of tokens seen before are divided by it if positive, multiplied if
                        negative (Keskar et al. 2019, arXiv 1909.05858); 1 is off
    presence_penalty:   from -100 to 100, subtracted once from the logit of every token seen; 0 is off
    frequency_penalty:  from -100 to 100, subtracted once for each time the token was seen; 0 is off
    temperature:        0, or from 0.0001 to 100; logits are divided by it, 0 takes the largest
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
        check_number("temperature", self.temperature, 0, 100)
        if 0 < self.temperature < 1e-4:
            raise UsageError(f"temperature must be 0, or from 0.0001 to 100, not {self.temperature}.")
        check_number("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise UsageError("top_p must be more than 0 and at most 1, not 0.")
        check_number("min_p", self.min_p, 0, 1)
        check_whole("top_k", self.top_k, 0, MOST_TOP_K)
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        check_number("presence_penalty", self.presence_penalty, -100, 100)
        check_number("frequency_penalty", self.frequency_penalty, -100, 100)
        if self.seed is not None:
            check_whole("seed", self.seed, -(2**63), 2**64 - 1)
        if not isinstance(self.logit_bias, Mapping):
            raise UsageError("logit_bias must map token ids to numbers.")
        for token, bias in self.logit_bias.items():
            check_whole("a token id of logit_bias", token, 0, 2**31)
            if bias != -math.inf:
                check_number(f"logit_bias of token {token}", bias, -10_000, 10_000)

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
        return replace(self, top_k=min(2 * self.top_k, MOST_TOP_K), top_p=top_p, min_p=self.min_p / 2)


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Raise UsageError unless `value` is a number in the range; the message names the range."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not real or not low <= value <= high:  # type: ignore[operator]
        raise UsageError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}.")


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raise UsageError unless `value` is a whole number in the range; the message names the range."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not low <= value <= high:  # type: ignore[operator]
        raise UsageError(f"{name} must be a whole number from {low} to {high}, not {value!r}.")
