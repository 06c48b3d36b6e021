import numpy as np
import pytest

from slipstream.core.gap import LARGEST, decision_gap
from slipstream.core.noise import Noise
from slipstream.core.params import SamplingParams
from slipstream.core.sampling import Sampler

NEUTRAL = SamplingParams(temperature=1.0, top_p=1.0, min_p=0.0, seed=3)


def gap(logits: list[float], params: SamplingParams, other: int) -> float:
    return decision_gap(np.array(logits, np.float32), Sampler(params, len(logits)), 5, other)


def test_greedy_gap_is_half_the_difference() -> None:
    """Both move: one up, one down."""
    assert gap([2.0, 1.0, 0.0], SamplingParams(temperature=0, seed=1), 1) == pytest.approx(0.5, rel=2e-3)


def test_sampled_gap_counts_noise_and_temperature() -> None:
    logits, params = [2.0, 1.5, 1.0], SamplingParams(temperature=0.5, top_p=1.0, min_p=0.0, seed=3)
    scores = np.array(logits) / 0.5 + Noise(3).at(5).gumbel(np.arange(3))
    first, second = np.argsort(-scores)[:2]
    expected = 0.5 * (scores[first] - scores[second]) / 2
    assert gap(logits, params, int(second)) == pytest.approx(expected, rel=2e-3)


def test_a_token_just_outside_a_filter_has_a_small_gap() -> None:
    """Its score wins by far; only membership keeps it out."""
    border, logits = -np.log(10), np.zeros(8)  # min_p 0.1 keeps what is within ln(10) of the largest
    logits[2] = border - 0.01
    for seed in range(100):
        scores = logits + Noise(seed).at(5).gumbel(np.arange(8))
        if scores[2] > np.sort(scores)[-2] + 0.5:
            break
    params = SamplingParams(temperature=1.0, top_p=1.0, min_p=0.1, seed=seed)
    assert gap(logits.tolist(), params, 2) == pytest.approx(0.005, rel=0.02)


def test_what_no_small_change_flips_has_the_largest_gap() -> None:
    assert gap([100.0, 0.0], SamplingParams(temperature=0, seed=1), 1) == LARGEST


def test_only_the_other_token_counts_not_just_any() -> None:
    """The two largest all but tie, yet the third was chosen elsewhere: that is no near-tie."""
    assert gap([10.0, 9.99, -50.0], SamplingParams(temperature=0, seed=1), 2) > LARGEST / 2


def test_a_token_pushed_out_of_the_nucleus_has_a_small_gap() -> None:
    """The choice stands at the border of top-p: others rise, it falls out, and the next best score wins."""
    logits = np.log(np.array([0.5, 0.3999, 0.1001]))
    for seed in range(200):
        scores = logits + Noise(seed).at(5).gumbel(np.arange(3))
        if scores.argmax() == 1 and scores[0] > scores[2]:
            break
    params = SamplingParams(temperature=1.0, top_p=0.5001, min_p=0.0, seed=seed)
    assert gap(logits.tolist(), params, 0) < 0.001


def test_no_gap_where_the_row_already_says_the_other() -> None:
    assert gap([0.0, 1.0], SamplingParams(temperature=0, seed=1), 1) == 0.0
