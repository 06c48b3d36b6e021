import numpy as np
import pytest
from scipy import stats

from slipstream.measure.ratios import speed_up
from slipstream.measure.student import student_quantile, widening


@pytest.mark.parametrize("freedom", [3, 5, 10, 100])
def test_the_quantile_is_student_s(freedom: int) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.05)


def test_few_observations_widen_much_and_many_hardly() -> None:
    assert widening(0.95, 1) == 1
    assert widening(0.95, 3) > 2
    assert 1 < widening(0.95, 100) < 1.03


@pytest.mark.parametrize("prompts", [3, 6, 20])
def test_intervals_cover_the_truth_about_as_often_as_they_say(prompts: int) -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        pairs = {str(prompt): [float(np.exp(rng.normal(0.2, 0.1)))] for prompt in range(prompts)}
        ratio = speed_up(pairs, resamples=400)
        assert ratio is not None
        covered += ratio.low <= np.exp(0.2) <= ratio.high
    assert covered / 200 > 0.9
