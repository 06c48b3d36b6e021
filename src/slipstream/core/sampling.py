"""One sampler for plain decoding, verification and drafting.

    token(position) = argmax over x of  log p(x) + G(seed, choice, position, x)

draws exactly from p (the Gumbel-max trick; Maddison, Tarlow, Minka 2014, arXiv 1411.0030). Since the noise is
a function of position and token id, the draw is a pure function of the row of logits, the tokens before it and
the seed: computing the row earlier, beside drafts, changes nothing.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.blocks import Logits, at_least, block_maxima, block_members, ranked, top
from slipstream.core.filters import mass_bounds, survivors, weights
from slipstream.core.history import History
from slipstream.core.noise import Floats, Ids, Noise, PositionNoise, block_of
from slipstream.core.params import SamplingParams
from slipstream.errors import RuntimeUnavailableError, UsageError


class Proposal(NamedTuple):
    """A drafter's ranked candidates for one position.

    tokens: best first
    margin: by how much the best beats the runner-up, noise included; inf when it has none
    """

    tokens: list[int]
    margin: float


class Sampler:
    """Chooses the tokens of one sequence.

    params: with a seed (`SamplingParams.seeded`)
    tokens: the prompt, for penalties
    noise:  made from the seed unless given; `Noise(seed, choice)` when one prompt is answered several times
    """

    def __init__(
        self, params: SamplingParams, vocabulary_size: int, tokens: Iterable[int] = (), noise: Noise | None = None
    ):
        assert params.seed is not None, "the caller draws the seed, so that it can report it"
        self.params = params
        self.vocabulary_size = vocabulary_size
        self._draft_params = params.loosened()
        self._noise = noise or Noise(params.seed)
        self._history = History(tokens if params.has_penalties else ())
        self._bias = _bias_arrays(params, vocabulary_size)

    def choose(self, row: Logits, position: int) -> int:
        """The token at `position`. row: [vocab] float32, the target's raw logits; it is not written to."""
        row = self._processed(row)
        if self.params.temperature == 0:
            token = int(row.argmax())
            _check(row[token])
            return token
        return int(best(row, self.params, self._noise.at(position), 1)[0][0])

    def accept(self, token: int) -> None:
        """The token was committed."""
        if self.params.has_penalties:
            self._history.add(token)

    def propose(self, row: Logits, position: int, prefix: Sequence[int], count: int = 1) -> Proposal:
        """Top `count` of log q + G for a drafter, with the target's noise and looser filters.

        row: [vocab] the draft model's raw logits; prefix: drafted tokens between the committed ones and here.
        """
        with self._history.extended(prefix if self.params.has_penalties else ()):
            row = self._processed(row)
        ids, scores = best(row, self._draft_params, self._noise.at(position), max(count, 2))
        margin = float(scores[0] - scores[1]) if len(scores) > 1 else np.inf
        return Proposal(ids[:count].tolist(), margin)

    def _processed(self, row: Logits) -> Logits:
        """Bias and penalties; the row itself when there are none."""
        if self._bias is None and not self.params.has_penalties:
            return row
        row = row.copy()
        if self._bias is not None:
            row[self._bias[0]] += self._bias[1]
        if self.params.has_penalties:
            self._history.penalise(row, self.params)
        return row


def log_probability(row: Logits, token: int) -> float:
    """Natural logarithm of the token's probability under the raw logits, in float64 from a float32 sum."""
    largest = row.max()
    shifted = row - largest
    mass = np.exp(shifted, out=shifted).sum()
    return float(row[token]) - float(largest) - float(np.log(mass))


def best(row: Logits, params: SamplingParams, noise: PositionNoise, count: int) -> tuple[Ids, NDArray[np.floating]]:
    """The `count` largest of log p + G and their scores, largest first, ties by the lowest id.

    Scores are exact up to one constant (log p is not normalised). Fewer come back where filters leave fewer.
    """
    maxima = block_maxima(row)
    _check(maxima.max())
    if params.temperature == 0:
        return ranked(*top(row, maxima, count), count)
    if not params.has_filters:
        return _best_unfiltered(row, maxima, params.temperature, noise, count)
    if count == 1 and (winner := _best_in_nucleus(row, maxima, params, noise)) is not None:
        return winner
    ids, logits = survivors(row, maxima, params)
    if len(ids) == 1:
        return ids, logits
    return ranked(ids, _scores(ids, logits, params.temperature, noise), count)


def _scores(ids: Ids, logits: Logits, temperature: float, noise: PositionNoise) -> Floats:
    return logits.astype(np.float64) / temperature + noise.gumbel(ids)


def _best_in_nucleus(
    row: Logits, maxima: Logits, params: SamplingParams, noise: PositionNoise
) -> tuple[Ids, NDArray[np.floating]] | None:
    """The winner under top-p and min-p where a look at its neighbours decides it, else None.

    A token is in the nucleus if the mass above it is less than top_p of the row's. Whoever wins among more tokens
    than the nucleus has and is in it, wins in it; and the mass of some tokens is a lower bound of the row's. So the
    winner is mostly known without the row's mass, which would cost more than all the rest.
    """
    if params.top_k > 0 or params.top_p == 1:
        return None
    temperature, largest = params.temperature, float(maxima.max())
    reach = largest + temperature * (math.log(params.min_p) if params.min_p > 0 else -6)
    ids, logits = at_least(row, maxima, reach)
    if len(ids) == 1 and params.min_p > 0:
        return ids, logits
    mass = weights(logits, largest, temperature)
    inside = mass.sum()
    if params.min_p == 0 and inside < params.top_p * mass_bounds(maxima, logits, reach, largest, params)[1]:
        ids, scores = _best_unfiltered(row, maxima, temperature, noise, 1)  # the nucleus may reach further
        mass, logits = weights(row, largest, temperature), row
        inside = mass.sum()
    else:
        ids, scores = ranked(ids, _scores(ids, logits, temperature, noise), 1)
    above = mass @ (logits > row[ids[0]])
    return (ids, scores) if above < params.top_p * inside else None


def _best_unfiltered(
    row: Logits, maxima: Logits, temperature: float, noise: PositionNoise, count: int
) -> tuple[Ids, Floats]:
    """The winner over the whole vocabulary, looking only where it can be.

    A token's logit with the least exponential of its block bounds its score. The best score is Gumbel around the
    logarithm of the row's mass, so it is rarely much less than that: tokens whose bound reaches a floor a little
    below are scored, and if `count` of them do reach it, no other token can be among the best.
    """
    minima, holders = noise.block_minima(len(maxima))
    ceilings = -np.log(minima)
    scaled = maxima.astype(np.float64) / temperature
    bounds = scaled + ceilings
    depth = 1.5 * count  # a single winner is lower by 1.5 once in 88 rows: exp(-exp(1.5))
    floor = scaled.max() + np.log(np.exp(scaled - scaled.max()).sum()) - depth
    while True:
        ids = block_members(row, np.flatnonzero(bounds >= floor))
        logits = row[ids].astype(np.float64) / temperature
        possible = np.flatnonzero(logits + ceilings[block_of(ids)] >= floor)
        ids, logits = ids[possible], logits[possible]
        ids, scores = ranked(ids, logits - np.log(noise.member_exponentials(ids, minima, holders)), count)
        # one part in 10^12 of slack: bound and score round differently
        if floor == -np.inf or (len(ids) == count and scores[-1] >= floor + 1e-12 * abs(floor)):
            return ids, scores
        depth *= 4
        floor = floor - depth if depth < 1e6 else -np.inf


def _bias_arrays(params: SamplingParams, vocabulary_size: int) -> tuple[Ids, Logits] | None:
    if not params.logit_bias:
        return None
    ids = np.fromiter(params.logit_bias, np.int64)
    if ids.min() < 0 or ids.max() >= vocabulary_size:
        raise UsageError(f"logit_bias names token ids outside 0 to {vocabulary_size - 1}.")
    return ids, np.fromiter(params.logit_bias.values(), np.float32)


def _check(largest: np.floating) -> None:
    if not np.isfinite(largest):
        raise RuntimeUnavailableError(
            f"The model's logits are not numbers (largest: {largest}); "
            "every token may be banned by logit_bias, or the model file is damaged."
        )
