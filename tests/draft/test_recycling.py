import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Growth
from slipstream.core.tree import ROOT, Draft
from slipstream.core.verify import Commit, Verdict
from slipstream.draft.recycling import IGNORED, MOST_READ, MOST_SCOPES, PAIRS, SUCCESSORS, TURN, RecyclingDrafter
from slipstream.engine import Engine
from slipstream.policy import FixedLength
from tests.fakes import FakeModel, FakeRows, SmallVocabulary
from tests.helpers import View

VOCABULARY = 16


def rows(*tops: Sequence[int]) -> FakeRows:
    """Rows whose likeliest tokens are given, likeliest first."""
    table = []
    for top in tops:
        row = np.zeros(VOCABULARY, np.float32)
        row[list(top)] = np.arange(len(top), 0, -1) * 2
        table.append(row)
    return FakeRows(table, 0)


def drafted(drafter: RecyclingDrafter, view: View, limit: int = 16, siblings: int = 1) -> Draft:
    draft = Draft()
    drafter.extend([Growth(view, draft, limit, siblings)])
    return draft


def learn(drafter: RecyclingDrafter, view: View, *tops: Sequence[int], draft: Draft | None = None) -> None:
    """The verification of a draft whose nodes were all accepted, and a token of the target's own after them."""
    draft = draft or Draft()
    commits = [Commit(token, node, "", "", None) for node, token in enumerate(draft.tokens)]
    commits.append(Commit(VOCABULARY - 1, None, "", "", None))
    view.tokens += [commit.token for commit in commits]
    drafter.observe(view, draft, Verdict(commits, len(draft)), rows(*tops))


@pytest.fixture
def drafter() -> RecyclingDrafter:
    return RecyclingDrafter(VOCABULARY)


def begun(drafter: RecyclingDrafter, *tokens: int, scope: str = "", **more: object) -> View:
    view = View(list(tokens), scope=scope, vocabulary_size=VOCABULARY, **more)  # type: ignore[arg-type]
    drafter.begin(view, 0)
    return view


def test_what_the_target_thought_of_is_proposed_when_the_token_comes_again(drafter: RecyclingDrafter) -> None:
    view = begun(drafter, 1)
    learn(drafter, view, [5, 6, 7])
    view.tokens.append(1)
    assert drafted(drafter, view).tokens == [5]
    tree = drafted(drafter, view, siblings=3)
    assert (tree.tokens, tree.parents) == ([5, 6, 7], [ROOT] * 3)
    assert set(tree.sources) == {"recycling"}
    assert tree.estimates == sorted(tree.estimates, reverse=True)


def test_a_way_goes_on_with_the_successors_of_successors(drafter: RecyclingDrafter) -> None:
    view = begun(drafter, 1)
    learn(drafter, view, [2, 9], [3], [4], draft=Draft.chain([2, 3]))
    view.tokens.append(1)
    tree = drafted(drafter, view, siblings=2)
    assert tree.path_tokens(tree.tip)[:3] == [2, 3, 4]
    assert 9 in [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == ROOT]


def test_a_pair_of_tokens_says_more_than_the_last_one(drafter: RecyclingDrafter) -> None:
    view = begun(drafter, 1, 3)
    learn(drafter, view, [5])
    view.tokens += [2, 3]
    learn(drafter, view, [6])
    for before, expected in ((1, 5), (2, 6), (4, 6)):
        view.tokens += [before, 3]
        draft = drafted(drafter, view)
        assert draft.tokens[0] == expected
        assert (draft.estimates[0] > 0.3) == (before in (1, 2))


def test_the_prompt_is_known_before_anything_was_verified(drafter: RecyclingDrafter) -> None:
    assert drafted(drafter, begun(drafter, 1, 2, 3, 1)).tokens[:2] == [2, 3]


def test_nothing_is_proposed_where_nothing_is_known(drafter: RecyclingDrafter) -> None:
    assert drafted(drafter, begun(drafter, 1)).tokens == []


def test_what_was_guessed_right_is_not_looked_at_again(drafter: RecyclingDrafter) -> None:
    view = begun(drafter, 0, 1)
    learn(drafter, view, [VOCABULARY - 1, 6])
    view.tokens += [0, 1]
    learn(drafter, view, [8, 9])
    view.tokens += [0, 1]
    assert drafted(drafter, view).tokens == [VOCABULARY - 1]


def test_few_rows_of_a_round_are_looked_at(drafter: RecyclingDrafter) -> None:
    view = begun(drafter, 0)
    chain = list(range(1, 9))
    learn(drafter, view, *[[10, 11]] * 9, draft=Draft.chain(chain))
    known = 0
    for token in range(9):
        view.tokens.append(token)
        known += drafted(drafter, view).tokens[:1] == [10]
    assert known == MOST_READ


def test_a_text_that_has_no_use_for_it_is_served_now_and_then(drafter: RecyclingDrafter) -> None:
    view = begun(drafter, 1, 2, 3, 1)
    proposed = []
    for _ in range(IGNORED + 3 * TURN):
        proposed.append(len(drafted(drafter, view)) > 0)
        view.tokens += [1]
        drafter.observe(view, Draft(), Verdict([Commit(1, None, "", "", None)], 0), rows([2, 1]))
    assert all(proposed[:IGNORED])
    assert sum(proposed[IGNORED:]) == 3
    used = Draft.chain([2], "recycling")
    view.tokens += [2, 1]
    drafter.observe(view, used, Verdict([Commit(2, 0, "", "", None), Commit(1, None, "", "", None)], 1), rows([2], [1]))
    assert drafted(drafter, view).tokens


def test_scopes_do_not_learn_from_each_other(drafter: RecyclingDrafter) -> None:
    view = begun(drafter, 1, 2, 3, scope="one")
    learn(drafter, view, [5])
    other = begun(drafter, 3, scope="two")
    assert drafted(drafter, other).tokens == []
    assert drafted(drafter, begun(drafter, 3, scope="one")).tokens == [5]


def test_memory_is_what_the_arrays_take_and_bounded(drafter: RecyclingDrafter) -> None:
    one = (VOCABULARY + PAIRS) * SUCCESSORS * (4 + 2) + 8 * PAIRS
    assert drafter.memory() == one, "the bill is right before the first text"
    for number in range(MOST_SCOPES + 3):
        begun(drafter, 1, scope=str(number))
    assert drafter.memory() == MOST_SCOPES * one


def test_the_bill_is_what_is_allocated() -> None:
    """Of a process as a whole `scripts/bench memory_bills` tells, which has one to itself."""
    tracemalloc.start()
    try:
        drafter = RecyclingDrafter(1 << 16)
        assert tracemalloc.get_traced_memory()[0] == pytest.approx(drafter.memory(), rel=0.1)
    finally:
        tracemalloc.stop()


def test_with_a_temperature_the_target_s_noise_ranks(drafter: RecyclingDrafter) -> None:
    first, top = set(), [5, 6, 7, 8, 9, 10]
    for seed in range(60):
        view = begun(drafter, 1, params=SamplingParams(temperature=1.5, top_p=1.0, seed=seed))
        learn(drafter, view, top)
        view.tokens[:] = [1]
        row = rows(top).logits(0)
        row[[token for token in range(VOCABULARY) if token not in top]] = -np.inf
        [token] = drafted(drafter, view, limit=1).tokens
        assert token == view.sampler.choose(row, 1)
        first.add(token)
    assert {5, 6} <= first


@given(limit=st.integers(1, 16), siblings=st.integers(1, 4), seed=st.integers(0, 50))
def test_drafts_are_trees_within_their_limits(limit: int, siblings: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    drafter = RecyclingDrafter(VOCABULARY)
    view = begun(drafter, *chance.integers(0, VOCABULARY, 30).tolist())
    for _ in range(20):
        top = chance.permutation(VOCABULARY)[:SUCCESSORS]
        view.tokens.append(int(chance.integers(0, VOCABULARY)))
        learn(drafter, view, top.tolist())
    tree = drafted(drafter, view, limit, siblings)
    assert len(tree) <= limit
    assert max(map(tree.parents.count, tree.parents), default=0) <= siblings


def test_a_whole_engine_gives_the_same_text_in_fewer_rounds() -> None:
    def answer(drafter: RecyclingDrafter | None, temperature: float) -> tuple[list[int], int]:
        model = FakeModel(SmallVocabulary(VOCABULARY), seed=3, order=1, sharpness=4.0, context_length=512)
        with Engine(model, drafter, FixedLength(3, siblings=2)) as engine:
            done = engine.generate([1, 2], seed=4, temperature=temperature, max_tokens=200)
            return done.tokens, done.statistics.rounds

    for temperature in (0.0, 0.8):
        plain, _ = answer(None, temperature)
        recycled, rounds = answer(RecyclingDrafter(VOCABULARY), temperature)
        assert recycled == plain
        assert rounds < 150
