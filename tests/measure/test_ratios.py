import numpy as np
import pytest

from slipstream.measure.ratios import differing, paired, ratio, speed_up, tokens_per_second
from tests.measure.answers import answer, full_bench


def test_a_ratio_is_plains_seconds_a_token_over_the_configurations() -> None:
    answers = [answer("off", seconds=0.2), answer("suffix", seconds=0.05, tokens=5)]
    assert paired(answers, "suffix") == {"chat-1": [pytest.approx(2.0)]}


def test_pairs_are_of_the_same_prompt_and_repeat() -> None:
    answers = [answer("off", repeat=0), answer("suffix", repeat=1), answer("suffix", "chat-2", 0)]
    assert paired(answers, "suffix") == {}


@pytest.mark.parametrize("looping", ["off", "suffix"])
def test_looping_answers_make_no_pair(looping: str) -> None:
    answers = [answer(name, looping=0.5 if name == looping else 0.3) for name in ("off", "suffix")]
    assert paired(answers, "suffix") == {}
    assert ratio(answers, "suffix") is None


def test_a_prompts_ratio_is_the_median_of_its_repeats_and_a_kinds_the_geometric_mean() -> None:
    found = speed_up({"a": [2.0, 2.0, 9.0], "b": [0.5, 0.5, 0.1]})
    assert found is not None
    assert found.value == pytest.approx(1.0)
    assert (found.prompts, found.pairs) == (2, 6)


def test_no_pairs_no_ratio() -> None:
    assert speed_up({}) is None
    assert speed_up({"a": []}) is None


def test_a_single_pair_has_no_interval_and_is_never_certain() -> None:
    found = speed_up({"a": [3.0]})
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(3.0), pytest.approx(3.0))
    assert not found.is_certain


def test_the_interval_is_the_same_each_time_and_covers_what_it_says() -> None:
    """Of 200 samples from a known law the 95 % interval must hold its centre in about 95 %; small ones fall short."""
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        pairs = {str(prompt): list(np.exp(rng.normal(0.3, 0.2, 1))) for prompt in range(20)}
        found = speed_up(pairs, resamples=400)
        assert found is not None
        assert found == speed_up(pairs, resamples=400)
        hits += found.low <= np.exp(0.3) <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_repeats_widen_the_interval_of_one_prompt() -> None:
    found = speed_up({"a": [1.0, 1.2, 1.4, 1.6, 1.8]})
    assert found is not None
    assert found.low < 1.3
    assert found.high > 1.5


def test_by_kind() -> None:
    answers = full_bench().answers
    chat, code = ratio(answers, "suffix", "chat"), ratio(answers, "suffix", "code")
    assert chat is not None
    assert code is not None
    assert code.value / chat.value == pytest.approx(2 / 1.5)
    assert chat.is_certain
    assert str(chat).startswith("1.49x (1.4")


def test_tokens_per_second_leaves_loops_out() -> None:
    assert tokens_per_second([answer(), answer(seconds=0.2), answer(seconds=0.4), answer(seconds=9, looping=1)]) == 50
    assert tokens_per_second([]) is None


def test_differing_ids_are_found_where_ids_are_told() -> None:
    other = answer("suffix", ids_hash="other")
    answers = [answer(), other, answer("server", ids_hash=""), answer("suffix", repeat=1)]
    assert differing(answers) == [other]
