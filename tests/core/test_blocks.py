"""Large entries without a sort, whatever the vocabulary's size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.blocks import block_maxima, ranked, reaching, top
from slipstream.core.noise import SUPERBLOCK, block_count, block_of

SIZES = [1, 511, 512, 513, 5000, SUPERBLOCK - 1, SUPERBLOCK, SUPERBLOCK + 1, SUPERBLOCK + 513, 2 * SUPERBLOCK + 5000]


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=400),
    st.integers(1, 50),
)
def test_largest_is_a_stable_sort(values: list[int], count: int) -> None:
    """Few different values, so that ties are everywhere."""
    logits = np.array(values, np.float32)
    ids, values_ = ranked(*top(logits, count), count)
    expected = np.argsort(-logits, kind="stable")[:count]
    assert ids.tolist() == expected.tolist()
    assert values_.tolist() == logits[expected].tolist()


@pytest.mark.parametrize("size", SIZES)
def test_block_maxima_are_the_blocks_maxima(size: int) -> None:
    row = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    expected = np.full(block_count(size), -np.inf, np.float32)
    np.maximum.at(expected, block_of(np.arange(size)), row)
    assert np.array_equal(block_maxima(row), expected)


@pytest.mark.parametrize("size", SIZES)
def test_nan_shows_in_its_block(size: int) -> None:
    row = np.zeros(size, np.float32)
    row[-1] = np.nan
    assert np.isnan(block_maxima(row).max())


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 1000))
def test_reaching_compares_each_token_with_its_block(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    row = random.standard_normal(size).astype(np.float32)
    thresholds = random.normal(2, 1, block_count(size)).astype(np.float32)
    expected = np.flatnonzero(row >= thresholds[block_of(np.arange(size))])
    assert np.array_equal(reaching(row, thresholds), expected)
