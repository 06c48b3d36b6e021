import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from slipstream.draft import SuffixDrafter
from slipstream.measure.records import Round
from slipstream.measure.replay import Played, Trace, play_again, replay, replays, trace_of

RIGHT = [True, True, False, True, True, True, True, False, False, True, True]


def recorded(right: Sequence[bool], length: int, start: int = 10) -> list[Round]:
    """The records of an answer that was decoded with drafts of this length."""
    rounds = []
    for played in replay(right, length, start):
        tested = min(played.committed, played.drafted)
        counts = played.drafted, tested, played.committed - 1, played.committed
        rounds.append(Round(played.context, *counts, played.steps, "model", 0.0, 0.0, 0.0, 0.0))
    return rounds


def test_a_replay_with_drafts_of_two() -> None:
    assert replay(RIGHT, 2, 10) == [
        Played(drafted=2, committed=3, steps=2, lag=1, context=10),
        Played(drafted=2, committed=3, steps=2, lag=2, context=13),
        Played(drafted=2, committed=2, steps=2, lag=2, context=16),
        Played(drafted=2, committed=1, steps=2, lag=1, context=18),
        Played(drafted=1, committed=2, steps=1, lag=1, context=19),
    ]


def test_without_drafts_every_round_is_one_token() -> None:
    rounds = replay(RIGHT, 0)
    assert [played.rows for played in rounds] == [1] * len(RIGHT)
    assert [played.steps for played in rounds] == [0] * len(RIGHT)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 8, 16])
def test_every_token_is_committed_once(length: int) -> None:
    right = (np.random.default_rng(length).random(200) < 0.7).tolist()
    rounds = replay(right, length)
    assert sum(played.committed for played in rounds) == 200
    assert all(one.context + one.committed == two.context for one, two in itertools.pairwise(rounds))


def test_a_trace_knows_all_but_what_no_draft_reached() -> None:
    trace = trace_of(recorded(RIGHT, 4))
    assert trace.start == 10
    # the token after four right ones, and the last, for which nothing is drafted
    assert trace.right == (True, True, False, True, True, True, True, None, False, True, None)


@pytest.mark.parametrize("length", [1, 2, 4, 8])
def test_long_drafts_tell_exactly_what_shorter_ones_would_have_done(length: int) -> None:
    right = (np.random.default_rng(3).random(200) < 0.7).tolist()
    [rounds] = replays(Trace(0, trace_of(recorded(right, 16)).right[:-1]), length)
    assert rounds == replay(right[:-1], length)


def test_gaps_are_drawn_as_known_places_were() -> None:
    right = (np.random.default_rng(4).random(4000) < 0.8).tolist()
    expected = len(right) / len(replay(right, 4))
    for probe in (1, 2, 4):
        ways = replays(trace_of(recorded(right, probe)), 4)
        length = len(ways) * len(right) / sum(map(len, ways))
        assert length == pytest.approx(expected, rel=0.05)


def test_an_answer_that_ends_with_an_accepted_token() -> None:
    assert trace_of([Round(5, 4, 2, 2, 2, 4, "model", 0, 0, 0, 0)]).right == (True, True)
    assert trace_of([]).right == ()


def test_suffix_lookup_is_played_again_on_the_answer() -> None:
    prompt, answer = [1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 7, 8]
    rounds = play_again(SuffixDrafter(), prompt, answer, 4)
    assert sum(played.committed for played in rounds) == len(answer)
    assert max(played.committed for played in rounds) > 1
    assert all(played.steps == 0 for played in rounds)
    assert play_again(SuffixDrafter(), prompt, answer, 0) == [Played(0, 1, 0, 0, 6 + place) for place in range(7)]
