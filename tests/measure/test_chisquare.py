import numpy as np
import pytest
from scipy import stats

from slipstream.measure.chisquare import POWER, critical, detectable, power, tail


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 51, 300])
def test_the_tail_is_scipy_s(freedom: int) -> None:
    for statistic in (1e-9, 0.3, freedom / 2, freedom, 2.0 * freedom, 9.0 * freedom):
        assert tail(statistic, freedom) == pytest.approx(stats.chi2.sf(statistic, freedom), rel=1e-10, abs=1e-300)
    assert tail(0.0, freedom) == 1.0


@pytest.mark.parametrize("freedom", [1, 4, 77])
def test_the_critical_value_and_the_power_are_scipy_s(freedom: int) -> None:
    assert critical(1e-4, freedom) == pytest.approx(stats.chi2.isf(1e-4, freedom))
    assert power(0.0, freedom, 1e-3) == pytest.approx(1e-3)
    for noncentrality in (3.0, 25.0, 400.0):
        expected = stats.ncx2.sf(stats.chi2.isf(1e-3, freedom), freedom, noncentrality)
        assert power(noncentrality, freedom, 1e-3) == pytest.approx(expected, rel=1e-6)


def test_what_is_called_detectable_is_detected() -> None:
    """The least favourable deviation of that size: every cell is off by the same share."""
    draws, cells, level = 2000, 10, 1e-3
    off = detectable(draws, cells - 1, level)
    p = np.full(cells, 1 / cells)
    q = p * (1 + 2 * off * np.where(np.arange(cells) % 2, 1, -1))
    counts = np.random.default_rng(5).multinomial(draws, q, size=2000)
    statistics = ((counts - draws * p) ** 2 / (draws * p)).sum(axis=1)
    seen = (statistics > critical(level, cells - 1)).mean()
    assert POWER - 0.03 < seen < POWER + 0.03
