"""The law of the noise: exact by arithmetic, and by statistics where arithmetic ends at the hash."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from slipstream.core.noise import (
    BLOCK_MEMBERS,
    SUPERBLOCK,
    Noise,
    block_count,
    block_ids,
    block_of,
    member_of,
)

IDS = np.arange(3 * SUPERBLOCK)


def test_blocks_partition_the_ids() -> None:
    assert np.array_equal(np.sort(block_ids(np.unique(block_of(IDS))).reshape(-1)), IDS)
    assert np.array_equal(block_ids(block_of(IDS))[np.arange(len(IDS)), member_of(IDS)], IDS)


@given(st.integers(1, 4 * SUPERBLOCK))
def test_block_count_is_the_number_of_blocks_in_use(size: int) -> None:
    assert block_count(size) == len(np.unique(block_of(np.arange(size))))


def test_noise_depends_on_seed_choice_position_and_id_alone() -> None:
    ids = np.array([5, 77, 40_000, 3])
    noise = Noise(7, 1).at(12).gumbel(ids)
    assert np.array_equal(noise, Noise(7, 1).at(12).gumbel(ids[::-1])[::-1])
    assert np.array_equal(noise[1:2], Noise(7, 1).at(12).gumbel(ids[1:2]))
    for other in (Noise(8, 1).at(12), Noise(7, 0).at(12), Noise(7, 1).at(13)):
        assert not np.isin(noise, other.gumbel(ids)).any()


def test_negative_and_huge_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert np.array_equal(Noise(-1).at(0).gumbel(IDS[:9]), Noise(2**64 - 1).at(0).gumbel(IDS[:9]))


def test_noise_is_pinned() -> None:
    """A seed written down today gives the same text tomorrow: these numbers must never change."""
    assert Noise(7).at(3).gumbel(np.array([0, 1, 49_151, 262_143])) == pytest.approx(PINNED, abs=1e-12)


PINNED = [1.1005457449899714, -0.8862832366843434, 0.29635355436651334, 0.5859292826687517]


def test_no_exponential_of_a_block_is_below_its_minimum_and_one_is_equal() -> None:
    noise = Noise(3).at(9)
    values = noise.exponential(IDS)
    blocks = np.unique(block_of(IDS))
    least = values[block_ids(blocks)].min(axis=1)
    minima, holders = noise.block_minima(len(blocks))
    assert np.array_equal(least, minima)
    assert np.array_equal(values[block_ids(blocks)].argmin(axis=1), holders)
    assert (np.sum(values[block_ids(blocks)] == least[:, None], axis=1) == 1).all()


def test_block_construction_gives_independent_exponentials_by_arithmetic() -> None:
    """P(E_1 > a, E_2 > b) = e^-a e^-b for two members of a block of m, from the construction alone.

    Given the block's minimum t, a member holds it with probability 1/m; the others are t + Exp(1).
    """
    m = BLOCK_MEMBERS

    def joint(a: float, b: float) -> float:
        def given_minimum(t: float) -> float:
            above_a, above_b = (float(np.exp(-max(x - t, 0.0))) for x in (a, b))
            first_holds = (t > a) * above_b
            second_holds = (t > b) * above_a
            neither = above_a * above_b
            return float((first_holds + second_holds + (m - 2) * neither) / m * m * np.exp(-m * t))

        value, _ = integrate.quad(given_minimum, 0, 3, points=[a, b], epsabs=1e-13, epsrel=1e-13, limit=500)
        return float(value)

    for a, b in [(0.01, 0.02), (0.1, 0.1), (0.5, 0.03), (1.0, 0.7)]:
        assert joint(a, b) == pytest.approx(np.exp(-a - b), abs=1e-12)


def test_gumbel_max_draws_from_p_by_quadrature() -> None:
    """P(argmax log p + G = x) = p(x): the law of the rule that `core.sampling` implements."""
    p = np.array([0.55, 0.25, 0.15, 0.049, 0.001])
    for x, px in enumerate(p):
        others = np.delete(p, x)

        def wins(e: float, px: float = px, others: np.ndarray = others) -> float:
            return float(np.exp(-e) * np.prod(np.exp(-others * e / px)))

        value, _ = integrate.quad(wins, 0, np.inf, epsabs=1e-14, epsrel=1e-13)
        assert value == pytest.approx(px, abs=1e-12)


def _p_value(values: np.ndarray) -> float:
    return float(stats.kstest(values, "expon").pvalue)


def test_exponentials_are_uniform_over_ids_positions_seeds_and_choices() -> None:
    every = np.arange(2000)
    some = np.array([1234])
    assert _p_value(Noise(1).at(1).exponential(np.arange(40_000))) > 1e-3
    assert _p_value(np.array([Noise(1).at(p).exponential(some)[0] for p in every])) > 1e-3
    assert _p_value(np.array([Noise(s).at(1).exponential(some)[0] for s in every])) > 1e-3
    assert _p_value(np.array([Noise(1, c).at(1).exponential(some)[0] for c in every])) > 1e-3


@pytest.mark.parametrize("what", ["seed", "choice", "position", "id", "block mate"])
def test_neighbours_are_independent(what: str) -> None:
    """Rank correlation, and correlation of the small values that decide, between adjacent arguments."""
    ids = np.arange(SUPERBLOCK * 2)
    here = Noise(11, 4).at(100).exponential(ids)
    other = {
        "seed": Noise(12, 4).at(100).exponential(ids),
        "choice": Noise(11, 5).at(100).exponential(ids),
        "position": Noise(11, 4).at(101).exponential(ids),
        "id": Noise(11, 4).at(100).exponential(ids + 1),
        "block mate": Noise(11, 4).at(100).exponential(ids + 512),
    }[what]
    assert abs(stats.spearmanr(here, other).statistic) < 5 / np.sqrt(len(ids))
    both_small = np.sum((here < 0.05) & (other < 0.05))
    expected = len(ids) * (1 - np.exp(-0.05)) ** 2
    assert abs(both_small - expected) < 5 * np.sqrt(expected)


def test_pairs_of_ids_are_independent_across_positions() -> None:
    """Each pair of ids over many positions, as a decoder meets them: chi-square of the joint quartiles."""
    pairs = [(0, 1), (0, 512), (17, 40_000), (3, SUPERBLOCK + 3), (1000, 1001)]
    quartiles = stats.expon.ppf([0.25, 0.5, 0.75])
    for pair in pairs:
        draws = np.array([Noise(5).at(position).exponential(np.array(pair)) for position in range(6000)])
        cells = np.digitize(draws, quartiles)
        counts = np.bincount(cells[:, 0] * 4 + cells[:, 1], minlength=16)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_all_ways_to_ask_give_the_same_bits() -> None:
    noise = Noise(4).at(2)
    minima, holders = noise.block_minima(block_count(len(IDS)))
    some = IDS[::7]
    assert np.array_equal(noise.member_exponentials(some, minima, holders), noise.exponential(some))


def test_the_holder_of_a_block_minimum_is_uniform() -> None:
    winners = np.concatenate([Noise(2).at(p).block_minima(768)[1] for p in range(20)])
    assert stats.chisquare(np.bincount(winners, minlength=BLOCK_MEMBERS)).pvalue > 1e-3
