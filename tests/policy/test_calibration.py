from slipstream.core.tree import ROOT, Draft
from slipstream.policy.calibration import DEPTHS, PRIOR, Acceptance, Calibration


def test_begins_at_the_prior_and_follows_what_is_seen() -> None:
    calibration = Calibration()
    assert calibration.estimate(3, 0.5) == 0.5
    for _ in range(300):
        calibration.record(3, True)
    assert calibration.estimate(3, 0.5) > 0.98
    assert calibration.estimate(4, 0.5) == 0.5, "buckets are apart"


def test_old_rounds_fade() -> None:
    calibration = Calibration()
    for accepted in (True, False):
        for _ in range(500):
            calibration.record(0, accepted)
    assert calibration.estimate(0, 0.5) < 0.05


def test_what_is_remembered_counts_for_little() -> None:
    calibration = Calibration()
    for _ in range(500):
        calibration.record(("a", 1), True)
    other = Calibration()
    other.recall(calibration.remembered(20))
    assert other.estimate(("a", 1), 0.0) > 0.9
    assert other.weight(("a", 1)) < 20.01
    for _ in range(40):
        other.record(("a", 1), False)
    assert other.estimate(("a", 1), 0.0) < 0.4


def chain(*tokens: int) -> Draft:
    draft = Draft()
    for bucket, token in enumerate(tokens):
        draft.append(token, source="a", bucket=bucket)
    return draft


def weights(acceptance: Acceptance) -> list[float]:
    return [round(acceptance.nodes.weight(("a", bucket)), 2) for bucket in range(4)]


def test_what_was_measured_elsewhere_is_where_a_drafter_begins_and_soon_outweighed() -> None:
    acceptance, draft = Acceptance({"a": 0.1}), chain(5)
    assert list(acceptance.by_level("a")) == [0.1] * DEPTHS
    assert list(acceptance.by_level("b")) == [PRIOR] * DEPTHS
    acceptance.rate(draft)
    assert draft.estimates == [0.1]
    assert acceptance.seen("a") == 0, "nobody has seen it here"
    for sequence in range(6):
        acceptance.score(sequence, 0, chain(5), [5], verified=True)
    assert acceptance.by_level("a")[0] > 0.75
    assert acceptance.by_level("a")[1] == 0.1


def test_nodes_on_the_text_s_way_and_the_first_wrong_one_are_tested() -> None:
    acceptance = Acceptance()
    acceptance.score(1, 0, chain(5, 6, 7, 8), [5, 9], verified=True)
    assert weights(acceptance) == [1, 1, 0, 0]
    assert acceptance.nodes.estimate(("a", 0), 0.0) > 0
    assert acceptance.nodes.estimate(("a", 1), 0.0) == 0
    assert acceptance.by_level("a")[0] > 0
    assert acceptance.by_level("a")[1] < 0.9


def test_siblings_are_scored_and_leave_the_main_chain_s_levels_alone() -> None:
    draft = chain(5)
    draft.add(6, ROOT, source="a", bucket=3)
    acceptance = Acceptance()
    acceptance.score(1, 0, draft, [6], verified=True)
    assert weights(acceptance) == [1, 0, 0, 1]
    assert acceptance.nodes.estimate(("a", 3), 0.0) > 0
    assert acceptance.by_level("a")[0] < 0.9


def test_a_proposal_that_was_not_verified_is_followed_over_rounds() -> None:
    """Shadow mode: 5 was right in the first round, 6 in the second, 7 wrong in the third."""
    acceptance = Acceptance()
    acceptance.score(1, 0, chain(5, 6, 7, 8), [5], verified=False)
    assert weights(acceptance) == [1, 0, 0, 0]
    acceptance.score(1, 0, chain(40), [6], verified=False)
    assert weights(acceptance) == [1, 1, 0, 0], "the earlier proposal goes on, the new one waits"
    acceptance.score(1, 0, chain(41), [9], verified=False)
    assert weights(acceptance) == [1, 1, 1, 0]
    acceptance.score(1, 0, chain(42), [42], verified=False)
    assert weights(acceptance) == [1.99, 1, 1, 0], "and then a new one begins"


def test_what_was_verified_comes_before_what_is_followed() -> None:
    acceptance = Acceptance()
    acceptance.score(1, 0, chain(5, 6), [5], verified=False)
    acceptance.score(1, 0, chain(7, 8), [7, 9], verified=True)
    assert weights(acceptance) == [1.99, 1, 0, 0]


def test_an_ended_sequence_is_forgotten() -> None:
    acceptance = Acceptance()
    acceptance.score(1, 0, chain(5, 6), [5], verified=False)
    acceptance.end(1)
    acceptance.score(1, 0, chain(7), [7], verified=False)
    assert weights(acceptance) == [1.99, 0, 0, 0]
