import pytest

from slipstream.core.stats import PHASES, Clock, RoundRecord, Statistics


def test_figures_are_those_of_the_vocabulary() -> None:
    """alpha = accepted / tested, tau = committed / rounds, and acceptance by level given that it was tested."""
    statistics = Statistics()
    for tested, accepted in [(4, 4), (3, 2), (1, 0), (0, 0)]:
        seconds = dict.fromkeys(PHASES, 0.5)
        statistics.add(RoundRecord(9, 1, 4 if tested else 0, tested, accepted, accepted + 1, "a", seconds))
    assert statistics.acceptance_rate == 6 / 8
    assert statistics.mean_accepted_length == 10 / 4
    assert statistics.accepted_per_position == pytest.approx([2 / 3, 1.0, 1 / 2, 1.0])
    assert statistics.drafted == 12
    assert statistics.seconds == dict.fromkeys(PHASES, 2.0)


def test_nothing_tested_has_no_rate() -> None:
    assert Statistics().acceptance_rate is None
    assert Statistics().mean_accepted_length is None


def test_a_clock_leaves_no_gap() -> None:
    clock = Clock()
    started = clock._last
    for phase in (*PHASES, "draft"):
        clock.lap(phase)
    assert sum(clock.seconds.values()) == pytest.approx(clock._last - started, abs=1e-9)
