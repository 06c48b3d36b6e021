"""The fast sampler against the obvious one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

from slipstream.core.filters import survivors
from slipstream.core.history import History
from slipstream.core.noise import SUPERBLOCK, Noise
from slipstream.core.params import SamplingParams
from slipstream.core.sampling import Sampler, best, log_probability
from slipstream.errors import RuntimeUnavailableError, UsageError
from tests.core.reference import choose, distribution

SIZES = [1, 2, 7, 300, 512, 513, 1500, SUPERBLOCK - 1, SUPERBLOCK, SUPERBLOCK + 700]
PLAIN = SamplingParams(seed=1, temperature=1.0, top_p=1.0, min_p=0.0)


def make_row(size: int, seed: int, scale: float, step: float = 0.0) -> NDArray[np.float32]:
    """Normal logits; `step` rounds them, so that there are ties."""
    random = np.random.default_rng(seed)
    row = random.standard_normal(size) * scale
    row = np.round(row / step) * step if step else row
    if seed % 3 == 0:  # banned tokens, or those that only the target's vocabulary has
        row[random.random(size) < 0.3] = -np.inf
        row[seed % size] = 0.0
    return row.astype(np.float32)


rows = st.builds(
    make_row,
    st.sampled_from(SIZES),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0]),
    st.sampled_from([0.0, 0.0, 0.5]),
)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-3, 0.3, 0.7, 1.0, 1.5, 5.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 5000, 10**6]),
    top_p=st.sampled_from([1.0, 0.95, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.1, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.25]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=400, deadline=None)
@given(rows, params, st.integers(0, 5000), st.lists(st.integers(0, 10**6), max_size=20))
def test_choice_is_the_reference_s(
    row: NDArray[np.float32], params: SamplingParams, position: int, seen: list[int]
) -> None:
    seen = [token % len(row) for token in seen]
    chosen = Sampler(params, len(row), seen).choose(row, position)
    expected = choose(row, params, seen, position)
    if chosen != expected:  # membership may hang on the last bit of a float32 sum; then p must say so
        assert _on_the_edge(row, params, seen, chosen, expected)


def _on_the_edge(row: NDArray[np.float32], params: SamplingParams, seen: list[int], chosen: int, expected: int) -> bool:
    """Whether a filter's border passes within float32 rounding of one of the two tokens."""
    nudged = [
        replace(params, top_p=min(params.top_p * (1 + e), 1.0), min_p=params.min_p * (1 + e)) for e in (1e-5, -1e-5)
    ]
    kept = [distribution(row, one, seen) > 0 for one in nudged]
    return any(kept[0][token] != kept[1][token] for token in (chosen, expected))


@pytest.mark.parametrize("row_scale", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(
    "params", [PLAIN, replace(PLAIN, top_k=3), replace(PLAIN, top_p=0.8), replace(PLAIN, min_p=0.2, temperature=0.6)]
)
def test_draws_follow_the_law(params: SamplingParams, row_scale: float) -> None:
    """Chi-square over positions and seeds; the exact law is arithmetic in test_noise.py."""
    row = make_row(12, 3, row_scale)
    p = distribution(row, params, [])
    counts = np.zeros(12)
    for seed in range(4):
        sampler = Sampler(replace(params, seed=seed), 12)
        for position in range(1500):
            counts[sampler.choose(row, position)] += 1
    assert counts[p == 0].sum() == 0
    common = p * counts.sum() >= 5  # chi-square wants no smaller cells: the rest counts as one
    if common.sum() > 1:
        cells = [[*c[common].tolist(), c[~common].sum()] for c in (counts, p * counts.sum())]
        kept = [index for index, expected in enumerate(cells[1]) if expected > 0]
        assert stats.chisquare(*[np.array(c)[kept] for c in cells]).pvalue > 1e-4


@settings(max_examples=100, deadline=None)
@given(rows, params, st.integers(1, 5))
def test_ranking_starts_with_the_choice_and_descends(
    row: NDArray[np.float32], params: SamplingParams, count: int
) -> None:
    noise = Noise(3).at(8)
    ids, scores = best(row, params, noise, count)
    assert ids[0] == best(row, params, noise, 1)[0][0]
    assert len(set(ids.tolist())) == len(ids) <= count
    assert (np.diff(scores) <= 0).all()
    if not params.has_filters:
        assert len(ids) == min(count, len(row))


@settings(max_examples=200, deadline=None)
@given(rows, params.filter(lambda p: p.temperature > 0.1))
def test_survivors_are_the_reference_s(row: NDArray[np.float32], params: SamplingParams) -> None:
    ids, logits = survivors(row, float(row.max()), params)
    params = replace(params, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    assert np.array_equal(row[ids], logits)
    ids = ids[np.isfinite(logits)]  # without any filter banned tokens stay, and never win
    kept = np.zeros(len(row), bool)
    kept[ids] = True
    nudges = (1 - 1e-5, 1, 1 + 1e-5)
    allowed = [
        distribution(row, replace(params, top_p=min(params.top_p * n, 1.0), min_p=min(params.min_p / n, 1.0)), []) > 0
        for n in nudges
    ]
    assert (kept >= allowed[0] & allowed[1] & allowed[2]).all()
    assert (kept <= allowed[0] | allowed[1] | allowed[2]).all()


def test_ties_go_to_the_lowest_id() -> None:
    row = np.zeros(SUPERBLOCK + 9, np.float32)
    row[[700, 20, SUPERBLOCK + 1]] = 5
    assert Sampler(SamplingParams(temperature=0, seed=1), len(row)).choose(row, 0) == 20
    ids, _ = best(row, SamplingParams(temperature=0, seed=1), Noise(1).at(0), 3)
    assert ids.tolist() == [20, 700, SUPERBLOCK + 1]


def test_penalties_see_prompt_committed_and_draft_prefix() -> None:
    row = np.array([2.0, 1.9, 1.8, -1.0], np.float32)
    sampler = Sampler(SamplingParams(temperature=0, seed=1, frequency_penalty=0.15), 4, [0])
    assert sampler.choose(row, 1) == 1  # 0 was in the prompt
    sampler.accept(1)
    assert sampler.choose(row, 2) == 0  # 1.85, 1.75, 1.8
    assert sampler.propose(row, 3, [0]).tokens == [2]  # 0 twice now: 1.7
    assert sampler.choose(row, 2) == 0  # the prefix left no trace


@given(st.lists(st.integers(0, 30)), st.lists(st.integers(0, 30)))
def test_a_prefix_leaves_no_trace(tokens: list[int], prefix: list[int]) -> None:
    params = SamplingParams(repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1)
    fresh, used = History(tokens), History(tokens)
    with used.extended(prefix):
        pass
    one, other = make_row(31, 1, 1.0), make_row(31, 1, 1.0)
    fresh.penalise(one, params)
    used.penalise(other, params)
    assert np.array_equal(one, other)


@settings(max_examples=200, deadline=None)
@given(params, st.integers(0, 5000), st.integers(1, 80), st.integers(1, 3), st.booleans())
def test_a_few_tokens_are_ranked_as_in_a_row_of_nothing_else(
    params: SamplingParams, position: int, known: int, count: int, biased: bool
) -> None:
    random = np.random.default_rng(position)
    ids = np.sort(random.choice(1500, known, replace=False))
    logits = (3 * random.standard_normal(known)).astype(np.float32)
    row = np.full(1500, -np.inf, np.float32)
    row[ids] = logits
    bias = {int(ids[0]): 2.0} if biased else {}
    sampler = Sampler(replace(params, logit_bias=bias), 1500, ids[:3].tolist())
    among, whole = (
        sampler.propose_among(ids, logits, position, [7], count),
        sampler.propose(row, position, [7], count),
    )
    assert among.tokens == [token for token in whole.tokens if row[token] > -np.inf]
    assert among.margins[1:] == pytest.approx(whole.margins[1 : len(among.tokens)])
    assert not 1 < count <= known or among.margins[0] == pytest.approx(whole.margins[0])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nothing_is_proposed_where_all_that_is_known_is_banned(temperature: float) -> None:
    banned = dict.fromkeys((3, 5), -math.inf)
    sampler = Sampler(replace(PLAIN, temperature=temperature, logit_bias=banned), 10)
    assert sampler.propose_among(np.array([3, 5]), np.ones(2, np.float32), 7, []).tokens == []
    assert sampler.propose_among(np.array([3, 4, 5]), np.ones(3, np.float32), 7, [], 3).tokens == [4]


def test_logit_bias_bans_and_forces() -> None:
    row = make_row(50, 2, 1.0)
    largest = int(row.argmax())
    banned = Sampler(SamplingParams(temperature=0, seed=1, logit_bias={largest: -math.inf}), 50)
    assert banned.choose(row, 0) != largest
    forced = Sampler(replace(PLAIN, logit_bias={9: 100.0}), 50)
    assert {forced.choose(row, position) for position in range(50)} == {9}
    assert int(row.argmax()) == largest, "the model's row is not written to"


def test_log_probability_is_of_the_raw_logits() -> None:
    row = make_row(2000, 5, 4.0)
    expected = special.log_softmax(row.astype(np.float64))
    assert log_probability(row, 77) == pytest.approx(expected[77], abs=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused(bad: float, temperature: float) -> None:
    row = make_row(600, 1, 1.0)
    row[555] = bad
    with pytest.raises(RuntimeUnavailableError, match="not numbers"):
        Sampler(replace(PLAIN, temperature=temperature), 600).choose(row, 0)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("temperature", -0.1, "from 0 to 100"),
        ("temperature", 1e-310, "0, or from 0.0001 to 100"),
        ("temperature", "hot", "a number"),
        ("temperature", math.nan, "from 0 to 100"),
        ("temperature", math.inf, "from 0 to 100"),
        ("top_p", 0.0, "more than 0 and at most 1"),
        ("top_p", 1.5, "from 0 to 1"),
        ("min_p", -0.1, "from 0 to 1"),
        ("min_p", 1.1, "from 0 to 1"),
        ("top_k", -1, "whole number from 0"),
        ("repetition_penalty", 0.0, "from 0.01 to 100"),
        ("repetition_penalty", 1e300, "from 0.01 to 100"),
        ("presence_penalty", math.inf, "from -100 to 100"),
        ("seed", 2**64, "whole number from"),
        ("logit_bias", {3: math.inf}, "from -10000 to 10000"),
        ("logit_bias", {2.7: 1.0}, "whole number"),
    ],
)
def test_impossible_values_name_the_range(option: str, value: object, allowed: str) -> None:
    with pytest.raises(UsageError, match=allowed):
        SamplingParams(**{option: value})  # type: ignore[arg-type]


def test_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="0 to 49"):
        Sampler(SamplingParams(seed=1, logit_bias={50: 1.0}), 50)


def test_a_random_seed_is_drawn_once_and_reported() -> None:
    first, second = SamplingParams().seeded(), SamplingParams().seeded()
    assert first.seed is not None
    assert first.seed != second.seed
    assert first.seeded() is first
