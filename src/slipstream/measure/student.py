"""Few observations: how much wider an interval has to be than the bootstrap's percentiles."""

from math import sqrt
from statistics import NormalDist

NORMAL = NormalDist()


def student_quantile(share: float, freedom: int) -> float:
    """The quantile of Student's distribution, by Fisher's expansion: a little low for 1 and 2 degrees of freedom."""
    z = NORMAL.inv_cdf(share)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def widening(interval: float, count: int) -> float:
    """How many times wider an interval over so many observations is than a bootstrap's (Hesterberg 2015, section 4.1).

    Percentiles of a bootstrap are too narrow by sqrt(n / (n - 1)), and by what Student's quantile exceeds the normal
    one. 1 for a single observation, of which nothing is known.
    """
    share = (1 + interval) / 2
    if count < 2:
        return 1.0
    return sqrt(count / (count - 1)) * student_quantile(share, count - 1) / NORMAL.inv_cdf(share)
