from slipstream.core.tree import Draft
from slipstream.draft.calibration import Calibration
from tests.helpers import accept_first


def test_begins_at_the_prior_and_follows_what_is_seen() -> None:
    calibration = Calibration(prior=0.5)
    assert calibration.estimate(3) == 0.5
    for _ in range(300):
        calibration.record(3, True)
    assert calibration.estimate(3) > 0.98
    assert calibration.estimate(4) == 0.5, "buckets are apart"


def test_old_rounds_fade() -> None:
    calibration = Calibration()
    for accepted in (True, False):
        for _ in range(500):
            calibration.record(0, accepted)
    assert calibration.estimate(0) < 0.05


def test_only_tested_nodes_of_its_own_count() -> None:
    """The third node was never reached, the first came from somebody else."""
    draft = Draft.chain([1, 2, 3], "mine")
    draft.sources[0] = "other"
    draft.buckets[:] = [0, 1, 2]
    calibration = Calibration(prior=0.5)
    calibration.observe(draft, accept_first(draft, 1), "mine")
    assert calibration.estimate(0) == 0.5
    assert calibration.estimate(1) < 0.5
    assert calibration.estimate(2) == 0.5
