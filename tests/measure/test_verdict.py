import numpy as np
import pytest

from slipstream.measure.ratios import Ratio, speed_up
from slipstream.measure.verdict import Measured, decide


def ratio(value: float, low: float | None = None, high: float | None = None, pairs: int = 9) -> Ratio:
    return Ratio(value, value - 0.03 if low is None else low, value + 0.03 if high is None else high, 3, pairs)


def test_a_clear_gain_is_a_yes_with_its_interval() -> None:
    verdict = decide([Measured("small", ratio(1.6, 1.4, 1.8), {"chat": ratio(1.5), "code": ratio(1.7)})])
    assert (verdict.answer, verdict.use, verdict.kinds) == ("yes", "small", ("chat", "code"))
    assert verdict.sentence == "yes: use small, 1.60x (1.40 to 1.80)."


def test_the_fastest_wins_and_names_where_it_brings_nothing() -> None:
    slow = Measured("suffix", ratio(1.2), {"chat": ratio(1.2), "code": ratio(1.2)})
    fast = Measured("small", ratio(1.5), {"chat": ratio(1.01), "code": ratio(2.2)}, memory=10)
    verdict = decide([slow, fast])
    assert verdict.use == "small"
    assert verdict.sentence.endswith("for chat it brings nothing, and auto switches itself off.")


def test_of_two_that_are_about_as_fast_the_one_without_a_model_wins() -> None:
    verdict = decide([Measured("small", ratio(1.52), memory=10**8), Measured("suffix", ratio(1.50))])
    assert verdict.use == "suffix"


def test_a_gain_for_some_kinds_only() -> None:
    kinds = {"chat": ratio(0.99), "code": ratio(1.4), "summary": ratio(1.3), "maths": ratio(1.4, pairs=1)}
    verdict = decide([Measured("suffix", ratio(1.04, 0.98, 1.2), kinds)])
    assert (verdict.answer, verdict.use, verdict.kinds) == ("some", "suffix", ("code", "summary"))
    assert verdict.sentence.startswith("yes, for code and summary only: use suffix, code 1.40x (1.37 to 1.43), ")


@pytest.mark.parametrize(("prompts", "repeats"), [(2, 1), (3, 1), (3, 2), (1, 3), (6, 1)])
def test_the_best_of_nine_kinds_is_not_taken_for_a_gain(prompts: int, repeats: int) -> None:
    """Pairs that differ by chance alone, by 6 %: few runs may be told that some kind gains."""
    rng = np.random.default_rng(3)
    answers = []
    for _ in range(60):
        kinds = {
            f"kind {kind}": {f"{kind}-{one}": list(np.exp(rng.normal(0, 0.06, repeats))) for one in range(prompts)}
            for kind in range(9)
        }
        ratios = {kind: speed_up(pairs, resamples=200) for kind, pairs in kinds.items()}
        overall = speed_up({name: pairs for kind in kinds.values() for name, pairs in kind.items()}, resamples=200)
        assert overall is not None
        measured = Measured("suffix", overall, {kind: one for kind, one in ratios.items() if one is not None})
        answers.append(decide([measured]).answer)
    assert answers.count("none") >= 54


def test_a_kind_that_gains_much_is_seen_among_nine() -> None:
    rng = np.random.default_rng(3)
    gains = [1.5, *[1.0] * 8]
    pairs = [{str(one): list(gain * np.exp(rng.normal(0, 0.04, 2))) for one in range(3)} for gain in gains]
    kinds = {f"kind {kind}": found for kind, one in enumerate(pairs) if (found := speed_up(one)) is not None}
    assert decide([Measured("suffix", ratio(1.04, 0.98, 1.2), kinds)]).kinds == ("kind 0",)


@pytest.mark.parametrize(
    ("overall", "reason"),
    [
        (ratio(1.02, 0.99, 1.06), "came to 1.02x"),
        (ratio(0.9, 0.85, 0.95), "is slower: 0.90x"),
        (ratio(1.3, 0.9, 1.8), "may be chance"),
        (ratio(1.04, 1.02, 1.06), "came to 1.04x"),
    ],
)
def test_plain_decoding_is_as_fast(overall: Ratio, reason: str) -> None:
    verdict = decide([Measured("small", ratio(0.7)), Measured("suffix", overall, {"chat": overall})])
    assert (verdict.answer, verdict.use, verdict.kinds) == ("none", None, ())
    assert verdict.sentence.startswith("none: plain decoding is as fast (")
    assert reason in verdict.sentence


def test_nothing_measured_is_no_verdict() -> None:
    assert decide([]).answer == "unknown"


def test_an_unfinished_measurement_says_so() -> None:
    assert "unfinished" in decide([Measured("suffix", ratio(1.5))], partial=True).sentence
    assert "unfinished" not in decide([Measured("suffix", ratio(1.5))]).sentence
