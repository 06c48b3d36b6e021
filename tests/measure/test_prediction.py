from collections.abc import Sequence

import numpy as np
import pytest

from slipstream.draft import SuffixDrafter
from slipstream.measure.prediction import Evidence, corrected, costs_of, predict
from slipstream.measure.records import Round
from slipstream.measure.replay import play_again, replay

ROW, STEP, CHOICE, REST = 0.010, 0.002, 0.0005, 0.0002
"""Seconds of a simulated machine."""


def verify(rows: int) -> float:
    """A target that does four rows for 1.3 times one, and more for more: with a cliff."""
    return ROW * (1 + 0.1 * (rows - 1) + (1.0 if rows > 8 else 0.0))


def draft(rows: int) -> float:
    return STEP * (1 + 0.5 * (rows - 1))


def simulated(right: Sequence[bool], length: int, speed: float = 1.0) -> list[Round]:
    """What an engine with these costs would record; `speed` scales the whole machine."""
    rounds = []
    for played in replay(right, length, 50):
        steps = draft(played.lag) + (played.steps - 1) * draft(1) if played.steps else 0.0
        counts = played.drafted, min(played.committed, played.drafted), played.committed - 1, played.committed
        seconds = steps, verify(played.rows), CHOICE * played.committed, REST
        rounds.append(Round(played.context, *counts, played.steps, "model", *(speed * one for one in seconds)))
    return rounds


def spent(rounds: Sequence[Round]) -> float:
    return sum(one.seconds for one in rounds) / sum(one.committed for one in rounds)


def outcomes(acceptance: float, seed: int, count: int = 400) -> list[bool]:
    return [bool(one) for one in np.random.default_rng(seed).random(count) < acceptance]


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
def test_a_fixed_length_is_predicted_from_another(acceptance: float) -> None:
    right = outcomes(acceptance, 1)
    plain = simulated(right, 0)
    prediction = predict([Evidence("p", "chat", plain, simulated(right, 4))], verify, draft, None)
    for length in (1, 2, 4, 8, 12):
        assert prediction.fixed[length] == pytest.approx(spent(plain) / spent(simulated(right, length)), rel=0.05)
    assert prediction.fixed[0] == 1


def test_the_best_length_avoids_the_cliff_and_a_bad_drafter_is_off() -> None:
    good, bad = outcomes(0.95, 2), outcomes(0.02, 3)
    evidence = [Evidence(kind, kind, simulated(r, 0), simulated(r, 4)) for kind, r in (("code", good), ("chat", bad))]
    prediction = predict(evidence, verify, draft, None)
    assert prediction.best["chat"] == 0
    assert 5 <= prediction.best["code"] <= 7
    assert prediction.by_kind["chat"] == 1


def test_curves_that_were_measured_on_a_slower_machine_are_corrected() -> None:
    right = outcomes(0.7, 4)
    evidence = [Evidence("p", "chat", simulated(right, 0), simulated(right, 4))]
    exact = predict(evidence, verify, draft, None)
    slow = predict(evidence, lambda rows: 3 * verify(rows), lambda rows: 2 * draft(rows), None)
    assert slow.fixed[4] == pytest.approx(exact.fixed[4])
    assert slow.fixed[12] == pytest.approx(exact.fixed[12])


def test_a_correction_is_exact_where_it_was_seen_and_between_in_proportion() -> None:
    curve = corrected(lambda rows: float(rows), [(1, 2.0)] * 3 + [(5, 20.0)] * 3 + [(9, 900.0)])
    assert [curve(rows) for rows in (1, 3, 5, 9)] == [2.0, 9.0, 20.0, 36.0]
    assert corrected(lambda rows: 7.0, [])(3) == 7.0


def test_the_figures_of_a_round_add_up() -> None:
    right = outcomes(0.6, 5)
    probe = simulated(right, 4)
    costs = costs_of(Evidence("p", "chat", simulated(right, 0), probe), verify, draft)
    assert costs.plain == pytest.approx(ROW + CHOICE + REST)
    for one, played in zip(probe, replay(right, 4, 50), strict=True):
        assert costs.seconds(played) == pytest.approx(one.seconds)


def test_a_drafter_without_a_model_is_played_again() -> None:
    prompt, answer = list(range(40)), [*range(5, 35), 77, *range(2, 30)]
    plain = simulated([False] * len(answer), 0)
    probe = [
        Round(p.context, p.drafted, min(p.committed, p.drafted), p.committed - 1, p.committed, 0, "suffix", *seconds)
        for p in play_again(SuffixDrafter(), prompt, answer, 4)
        for seconds in [(0.0001, verify(p.rows), CHOICE * p.committed, REST)]
    ]
    prediction = predict([Evidence("p", "edit", plain, probe, prompt, answer)], verify, None, SuffixDrafter())
    assert prediction.fixed[4] == pytest.approx(spent(plain) / spent(probe), rel=0.01)
    assert prediction.best["edit"] > 4
    assert prediction.by_kind["edit"] > prediction.fixed[4]
