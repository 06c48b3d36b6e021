"""One sampler for plain decoding, verification and drafting.

    token(position) = argmax over x of  log p(x) + G(seed, choice, position, x)

draws exactly from p (the Gumbel-max trick; Maddison, Tarlow, Minka 2014, arXiv 1411.0030). Since the noise is
a function of position and token id, the draw is a pure function of the row of logits, the tokens before it and
the seed: computing the row earlier, beside drafts, changes nothing.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.blocks import Logits, at_least, ranked, reaching, top
from slipstream.core.filters import mass, min_p_floor, survivors, weights
from slipstream.core.history import History
from slipstream.core.noise import Floats, Ids, Noise, PositionNoise, block_count, block_of
from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Constraint
from slipstream.errors import GrammarError, RuntimeUnavailableError, UsageError

Ranking = tuple[Ids, NDArray[np.floating]]
"""Token ids and their scores, best first."""

_REACH = 6
"""A nucleus seldom reaches further below the largest logit than this, in units of the temperature."""
_MANY, _FEW = 4096, 1024
"""More candidates than the first are thinned to the second before any noise is computed for them."""


class Proposal(NamedTuple):
    """A drafter's ranked candidates for one position.

    tokens:  best first
    margins: by how much the best beats the runner-up (inf when it has none), then how far each of the others is
             behind the best; noise included
    """

    tokens: list[int]
    margins: list[float]


class Sampler:
    """Chooses the tokens of one sequence.

    params: with a seed (`SamplingParams.seeded`)
    tokens: the prompt, for penalties
    noise:  made from the seed unless given; `Noise(seed, choice)` when one prompt is answered several times
    constraint: says which tokens may come; applied after bias and penalties, before temperature and filters
    """

    def __init__(
        self,
        params: SamplingParams,
        vocabulary_size: int,
        tokens: Iterable[int] = (),
        noise: Noise | None = None,
        constraint: Constraint | None = None,
    ):
        assert params.seed is not None, "the caller draws the seed, so that it can report it"
        self.params = params
        self.vocabulary_size = vocabulary_size
        self.constraint = constraint
        self._draft_params = params.loosened()
        self._noise = noise or Noise(params.seed)
        self._history = History(tokens if params.has_penalties else ())
        self._bias = _bias_arrays(params, vocabulary_size)

    def choose(self, row: Logits, position: int) -> int:
        """The token at `position`. row: [vocab] float32, the target's raw logits; it is not written to."""
        row = self._processed(row)
        if self.params.temperature == 0:
            token = int(row.argmax())
            _check(float(row[token]))
            return token
        return int(best(row, self.params, self._noise.at(position), 1)[0][0])

    def accept(self, token: int) -> None:
        """The token was committed."""
        if self.params.has_penalties:
            self._history.add(token)
        if self.constraint is not None:
            self.constraint.advance(token)

    def propose(self, row: Logits, position: int, prefix: Sequence[int], count: int = 1) -> Proposal:
        """Top `count` of log q + G for a drafter, with the target's noise and looser filters.

        row: [vocab] the draft model's raw logits; prefix: drafted tokens between the committed ones and here.
        Fewer come back where a constraint leaves fewer, none where it forbids the prefix or fails.
        """
        if self.constraint is not None:
            try:
                row = self._processed_after(row, prefix)
            except GrammarError:
                return Proposal([], [])
        elif self.params.has_penalties and prefix:
            row = self._processed_after(row, prefix)
        else:
            row = self._processed(row)
        if self.constraint is not None and row.max() == -np.inf:
            return Proposal([], [])
        if count == 1 and self.params.temperature == 0:
            return _greedy_proposal(row)
        ids, scores = best(row, self._draft_params, self._noise.at(position), max(count, 2), exact=count)
        if self.constraint is not None:
            ids, scores = ids[scores > -np.inf], scores[scores > -np.inf]
        return _proposal(ids, scores, count)

    def propose_among(self, ids: Ids, logits: Logits, position: int, prefix: Sequence[int], count: int = 1) -> Proposal:
        """As `propose`, for a drafter that knows logits of a few tokens: no other is proposed, none if all are banned.

        ids: [n] ascending; logits: [n] float32, at least one of them
        """
        if self._bias is not None or self.params.has_penalties or self.constraint is not None:
            row = np.full(self.vocabulary_size, -np.inf, np.float32)
            row[ids] = logits
            if self._bias is not None:
                row[self._bias[0][self._bias[1] == -np.inf]] = -np.inf
            if row.max() == -np.inf:
                return Proposal([], [])
            tokens, margins = self.propose(row, position, prefix, count)
            known = [place for place, token in enumerate(tokens) if row[token] > -np.inf]
            return Proposal([tokens[place] for place in known], [margins[place] for place in known])
        params, largest = self._draft_params, float(logits.max())
        _check(largest)
        if params.temperature == 0:
            return _proposal(*ranked(ids, logits, max(count, 2)), count)
        if params.has_filters:
            places, logits = survivors(logits, largest, params)
            ids = ids[places]
        scores = _scores(ids, logits, params.temperature, self._noise.at(position))
        return _proposal(*ranked(ids, scores, max(count, 2)), count)

    def rank(self, ids: NDArray[np.integer[Any]], logits: NDArray[np.floating[Any]], position: int) -> Ranking:
        """Candidates by log q + G, best first, for a drafter that knows the logits of no others.

        ids, logits: [n], likeliest first. Of filters only min-p counts, bias, penalties and constraints do not.
        """
        if self.params.temperature == 0:
            return ids.astype(np.int64), logits
        if self.params.min_p > 0:
            likely = logits >= min_p_floor(float(logits[0]), self.params)
            ids, logits = ids[likely], logits[likely]
        wide = ids.astype(np.int64)
        scores = _scores(wide, logits, self.params.temperature, self._noise.at(position))
        order = np.argsort(-scores)
        return wide[order], scores[order]

    def _processed_after(self, row: Logits, prefix: Sequence[int]) -> Logits:
        """As if the tokens of a draft's prefix had been committed; all -inf where the constraint forbids them."""
        advanced = 0
        with self._history.extended(prefix if self.params.has_penalties else ()):
            try:
                if self.constraint is not None:
                    while advanced < len(prefix) and self.constraint.advance(prefix[advanced]):
                        advanced += 1
                    if advanced < len(prefix):
                        return np.full_like(row, -np.inf)
                return self._processed(row)
            finally:
                if self.constraint is not None:
                    self.constraint.rollback(advanced)

    def _processed(self, raw: Logits) -> Logits:
        """Bias, penalties and constraint; the row itself when there are none."""
        if self._bias is None and not self.params.has_penalties and self.constraint is None:
            return raw
        row = self._adjusted(raw, self._bias)
        if self.constraint is not None and self._bias is not None and row.max() == -np.inf:
            return self._adjusted(raw, None)  # all that may come is banned: the constraint prevails
        return row

    def _adjusted(self, row: Logits, bias: tuple[Ids, Logits] | None) -> Logits:
        row = row.copy()
        if bias is not None:
            row[bias[0]] += bias[1]
        if self.params.has_penalties:
            self._history.penalise(row, self.params)
        if self.constraint is not None:
            self.constraint.mask(row)
        return row


def _proposal(ids: Ids, scores: NDArray[np.floating], count: int) -> Proposal:
    """ids and scores: best first, two at least where there are two."""
    behind = (scores[0] - scores[:count]).tolist()
    behind[0] = float(scores[0] - scores[1]) if len(scores) > 1 else math.inf
    return Proposal(ids[:count].tolist(), behind)


def _greedy_proposal(row: Logits) -> Proposal:
    """The largest logit and its lead, in three passes."""
    token = int(row.argmax())
    others = [part.max() for part in (row[:token], row[token + 1 :]) if len(part)]
    return Proposal([token], [float(row[token] - max(others)) if others else math.inf])


def log_probability(row: Logits, token: int) -> float:
    """Natural logarithm of the token's probability under the raw logits, in float64 from a float32 sum."""
    largest = row.max()
    shifted = row - largest
    mass = np.exp(shifted, out=shifted).sum()
    return float(row[token]) - float(largest) - float(np.log(mass))


def log_probabilities(row: Logits, ranking: Ranking) -> list[tuple[int, float]]:
    """Token ids and their log-probabilities under the raw logits. ranking: ids and logits of this row."""
    ids, logits = ranking
    if not len(ids):
        return []
    first = log_probability(row, int(ids[0]))
    return [(int(token), first + float(logit) - float(logits[0])) for token, logit in zip(ids, logits, strict=True)]


def best(row: Logits, params: SamplingParams, noise: PositionNoise, count: int, *, exact: int | None = None) -> Ranking:
    """The `count` largest of log p + G and their scores, largest first, ties by the lowest id.

    Scores are exact up to one constant (log p is not normalised). Fewer come back where filters leave fewer.
    exact: how many must be the largest; those after them are then merely large, which is cheaper
    """
    largest = float(row.max())
    _check(largest)
    if params.temperature == 0:
        return ranked(*top(row, count), count)
    if not params.has_filters:
        return _best_unfiltered(row, largest, params.temperature, noise, count, exact or count)
    if count == 1 and params.top_p < 1 and params.top_k == 0:
        winner = _best_in_nucleus(row, largest, params, noise)
        if winner is not None:
            return winner
    ids, logits = survivors(row, largest, params)
    if len(ids) == 1:
        return ids, logits
    return ranked(ids, _scores(ids, logits, params.temperature, noise), count)


def _scores(ids: Ids, logits: Logits, temperature: float, noise: PositionNoise) -> Floats:
    return logits.astype(np.float64) / temperature + noise.gumbel(ids)


def _best_in_nucleus(row: Logits, largest: float, params: SamplingParams, noise: PositionNoise) -> Ranking | None:
    """The winner under top-p and min-p where a look at what is above it decides, else None.

    A token is in the nucleus if the mass above it is less than top_p of the row's. Whoever wins among more tokens
    than the nucleus has and is in it, wins in it.
    """
    temperature = params.temperature
    reach = min_p_floor(largest, params) if params.min_p > 0 else largest - _REACH * temperature
    ids, logits = at_least(row, reach)
    if len(ids) == 1 and params.min_p > 0:
        return ids, logits
    masses = weights(logits, largest, temperature)
    inside = float(masses.sum())
    # with min-p no token outside can win, and the mass inside, less than the row's, is mostly enough to decide
    total = inside if params.min_p > 0 else mass(row, largest, temperature)
    if inside >= params.top_p * total:
        winner: Ranking = ranked(ids, _scores(ids, logits, temperature, noise), 1)
    else:
        winner = _best_unfiltered(row, largest, temperature, noise, 1, 1)
        masses, logits = weights(row, largest, temperature), row
    above = float(np.multiply(masses, logits > row[winner[0][0]]).sum())
    return winner if above < params.top_p * total else None


def _best_unfiltered(
    row: Logits, largest: float, temperature: float, noise: PositionNoise, count: int, exact: int
) -> Ranking:
    """The winner over the whole vocabulary, looking only where it can be.

    A token's logit with the least exponential of its block bounds its score. The best score is seldom far below
    the largest logit, so tokens whose bound reaches a floor a little below are scored; if `exact` of them do reach
    it, no other token can be among the best.
    """
    minima, holders = noise.block_minima(block_count(len(row)))
    floors = np.log(minima)  # minus the noise that no token of the block exceeds
    depth = 1.5 * exact  # the best of any row is lower by 1.5 less than once in 88 times: exp(-exp(1.5))
    floor = largest / temperature - depth
    while True:
        thresholds = (floor + floors) * temperature
        # slack for what comparing in float32 rounds
        ids = reaching(row, (thresholds - 1e-6 * np.abs(thresholds)).astype(np.float32))
        ids, floor = _thinned(row, ids, floors, floor, temperature)
        exponentials = noise.member_exponentials(ids, minima, holders)
        winners = ranked(ids, row[ids].astype(np.float64) / temperature - np.log(exponentials), count)
        if floor == -np.inf or (len(winners[0]) >= exact and winners[1][exact - 1] >= floor):
            return winners
        depth *= 4
        floor = largest / temperature - depth if depth < 1e6 else -np.inf


def _thinned(row: Logits, ids: Ids, floors: Floats, floor: float, temperature: float) -> tuple[Ids, float]:
    """A higher floor where a flat row leaves thousands of candidates, whose best is far above it."""
    if len(ids) < _MANY or floor == -np.inf:
        return ids, floor
    bounds = row[ids].astype(np.float64) / temperature - floors[block_of(ids)]
    floor = float(np.partition(bounds, len(bounds) - _FEW)[len(bounds) - _FEW])
    return ids[bounds >= floor], floor


def _bias_arrays(params: SamplingParams, vocabulary_size: int) -> tuple[Ids, Logits] | None:
    if not params.logit_bias:
        return None
    ids = np.fromiter(params.logit_bias, np.int64)
    if ids.min() < 0 or ids.max() >= vocabulary_size:
        raise UsageError(f"logit_bias names token ids outside 0 to {vocabulary_size - 1}.")
    return ids, np.fromiter(params.logit_bias.values(), np.float32)


def _check(largest: float) -> None:
    if not math.isfinite(largest):
        raise RuntimeUnavailableError(
            f"The model's logits are not numbers (largest: {largest}); "
            "every token may be banned by logit_bias, or the model file is damaged."
        )
