"""The chi-square test: how often a statistic this large comes by chance, and what a test would have seen.

Whole degrees of freedom have finite formulas whose terms are all positive, so a few lines are exact to rounding.
"""

import math

POWER = 0.9
"""How often a deviation that `detectable` gives is seen."""


def tail(statistic: float, freedom: int) -> float:
    """P(X >= statistic) for chi-square with `freedom` >= 1 degrees: Q(freedom / 2, statistic / 2).

    By Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1) from Q(1, x) = e^-x or Q(1/2, x) = erfc(sqrt x)
    (Abramowitz and Stegun 6.5.17, 6.5.21).
    """
    x = statistic / 2
    if x <= 0:
        return 1.0
    a, total = (0.5, math.erfc(math.sqrt(x))) if freedom % 2 else (1.0, math.exp(-x))
    while a < freedom / 2:
        total += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(total, 1.0)


def critical(level: float, freedom: int) -> float:
    """The statistic whose tail is `level`."""
    low, high = 0.0, 1.0
    while tail(high, freedom) > level:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > level else (low, middle)
    return high


def power(noncentrality: float, freedom: int, level: float) -> float:
    """How often a test at `level` sees a deviation: the tail of the noncentral chi-square.

    That is a Poisson mixture of central ones (Johnson, Kotz, Balakrishnan 1995, 29.1), summed where its weight is.
    """
    half, threshold = noncentrality / 2, critical(level, freedom)
    reach = 10 + 8 * math.sqrt(half)
    total = 0.0
    for count in range(max(0, int(half - reach)), int(half + reach) + 1):
        weight = math.exp(count * math.log(half) - half - math.lgamma(count + 1)) if half > 0 else float(count == 0)
        total += weight * tail(threshold, freedom + 2 * count)
    return total


def detectable(draws: int, freedom: int, level: float) -> float:
    """The total variation between two laws of the cells that is seen in at least `POWER` of all tests.

    A deviation d of cells with probabilities p has the noncentrality draws * sum(d^2 / p), which is at least
    draws * (sum |d|)^2 (Cauchy-Schwarz) and so 4 * draws * TV^2. Can exceed 1: then nothing is sure to be seen.
    """
    low, high = 0.0, 1.0
    while power(high, freedom, level) < POWER:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, freedom, level) < POWER else (low, middle)
    return math.sqrt(high / (4 * draws))
