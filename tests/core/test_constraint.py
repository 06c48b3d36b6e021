"""A constraint changes what may be chosen, and nothing about when: drafts still cannot matter."""

import math
from dataclasses import replace
from itertools import chain, islice

import numpy as np
import pytest

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Segment
from slipstream.core.sampling import Sampler, log_probability
from slipstream.core.tree import Draft
from slipstream.core.verify import walk
from slipstream.errors import GrammarError
from tests.core.test_verify import SETTINGS
from tests.core.toy import POSITIONS, PROMPT, VOCABULARY, Recorder, TableNoise, noise_tables, plain, toy_model, trees
from tests.core.toy import walked as walk_toy
from tests.fakes import FakeModel, FakeRows, TableConstraint

TABLE = [{0: 1, 1: 2}, {2: 2}, {0: 0, 2: 1}]
"""After 0 only 2 may come; after what 1 leads to, 0 or 2."""
ROW = np.array([3.0, 2.0, 1.0, 0.0, -1.0], np.float32)
UNFILTERED = SamplingParams(seed=1, temperature=1.0, top_p=1.0, min_p=0.0)


def follows(tokens: list[int]) -> bool:
    constraint = TableConstraint(TABLE)
    return all(constraint.advance(token) for token in tokens)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_walk_is_plain_decoding_under_a_constraint(name: str) -> None:
    """Over noise tables and trees, most of which the constraint forbids somewhere."""
    model, params, constraint = toy_model(), SETTINGS[name], TableConstraint(TABLE)
    drafts = list(chain.from_iterable(trees(nodes) for nodes in range(4)))
    differs = False
    for index, table in enumerate(islice(noise_tables(), 0, None, 211)):
        noise = TableNoise(table)
        expected = plain(model, params, noise, POSITIONS, constraint=constraint)
        assert follows(expected)
        differs |= expected != plain(model, params, noise, POSITIONS)
        for draft in drafts[index % 7 :: 7]:
            tokens = walk_toy(model, params, noise, draft, POSITIONS, constraint=constraint)
            assert tokens == expected[: len(tokens)]
    assert differs, "the constraint never changed anything"


def test_a_token_that_may_not_come_is_never_chosen_and_the_others_keep_their_chances() -> None:
    """Chosen among those allowed as if the others had no logit, whatever bias says."""
    counts = np.zeros(5)
    for seed in range(400):
        constraint = TableConstraint([{1: 0, 3: 0}])
        sampler = Sampler(replace(UNFILTERED, seed=seed, logit_bias={0: 50.0}), 5, constraint=constraint)
        counts[sampler.choose(ROW, 7)] += 1
    share = 1 / (1 + math.exp(-2))
    assert counts[[0, 2, 4]].sum() == 0
    assert abs(counts[1] / 400 - share) < 4 * math.sqrt(share * (1 - share) / 400)


def test_filters_look_at_what_is_left() -> None:
    """top_k 1 takes the best of those allowed; before the constraint it would have taken token 0 and left nothing."""
    sampler = Sampler(replace(UNFILTERED, top_k=1), 5, constraint=TableConstraint([{2: 0, 4: 0}]))
    assert {sampler.choose(ROW, position) for position in range(50)} == {2}


def test_where_bias_bans_all_that_may_come_the_constraint_prevails() -> None:
    params = replace(UNFILTERED, temperature=0, logit_bias={3: -math.inf, 4: -math.inf}, frequency_penalty=2.0)
    sampler = Sampler(params, 5, [3], constraint=TableConstraint([{3: 0, 4: 0}]))
    assert sampler.choose(ROW, 1) == 4, "and penalties still hold"


def test_the_row_is_not_written_to() -> None:
    row = ROW.copy()
    row.setflags(write=False)
    assert Sampler(UNFILTERED, 5, constraint=TableConstraint([{4: 0}])).choose(row, 0) == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_proposals_follow_the_constraint_along_the_prefix_and_leave_no_trace(
    temperature: float, penalty: float
) -> None:
    constraint = TableConstraint([{0: 1}, {1: 2, 3: 2}, {4: 2}])
    params = replace(UNFILTERED, temperature=temperature, presence_penalty=penalty)
    sampler = Sampler(params, 5, constraint=constraint)
    assert sampler.propose(ROW, 3, []).tokens == [0]
    assert set(sampler.propose(ROW, 4, [0], 3).tokens) == {1, 3}, "no more siblings than may come"
    assert sampler.propose(ROW, 5, [0, 3]).tokens == [4]
    assert sampler.propose(ROW, 5, [0, 2]) == ([], []), "a prefix that may not come has no continuation"
    assert constraint.states == [0]
    sampler.accept(0)
    assert constraint.states == [0, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_that_knows_none_of_the_tokens_that_may_come_proposes_nothing(temperature: float) -> None:
    row = np.where(np.arange(5) < 3, ROW, -np.inf).astype(np.float32)
    sampler = Sampler(replace(UNFILTERED, temperature=temperature), 5, constraint=TableConstraint([{3: 0, 4: 0}]))
    assert sampler.propose(row, 0, [], 2) == ([], [])


def test_log_probabilities_stay_those_of_the_raw_row() -> None:
    rows = _rows(toy_model())
    sampler = Sampler(SETTINGS["greedy"], VOCABULARY, PROMPT, constraint=TableConstraint([{2: 0}]))
    verdict = walk(Draft(), rows, sampler, Recorder(1), len(PROMPT), logprobs=True)
    assert [(one.token, one.logprob) for one in verdict.commits] == [(2, log_probability(rows.logits(0), 2))]


@pytest.mark.parametrize("draft", [[2], [2, 2], [2, 2, 1]])
def test_a_constraint_that_fails_ends_the_walk(draft: list[int]) -> None:
    sampler = Sampler(SETTINGS["greedy"], VOCABULARY, PROMPT, constraint=TableConstraint([{2: 0}], breaks=1))
    with pytest.raises(GrammarError, match="torn"):
        walk(Draft.chain(draft), _rows(toy_model(), draft), sampler, Recorder(9), len(PROMPT))


@pytest.mark.parametrize("prefix", [[], [0], [0, 0]])
def test_a_constraint_that_fails_proposes_nothing_and_is_rolled_back(prefix: list[int]) -> None:
    constraint = TableConstraint([{0: 0}], breaks=len(prefix))
    sampler = Sampler(replace(UNFILTERED, presence_penalty=0.5), 5, constraint=constraint)
    assert sampler.propose(ROW, 3, prefix) == ([], [])
    assert constraint.states == [0]


def test_noise_does_not_depend_on_what_is_allowed() -> None:
    """The same token wins wherever it may come, because noise is keyed by token id and not by rank."""
    free = Sampler(UNFILTERED, 5)
    for position in range(200):
        token = free.choose(ROW, position)
        held = Sampler(UNFILTERED, 5, constraint=TableConstraint([{token: 0, (token + 1) % 5: 0}]))
        assert held.choose(ROW, position) == token


def _rows(model: FakeModel, draft: list[int] | None = None) -> FakeRows:
    session = model.open_session()
    model.forward([Segment(session, PROMPT[:-1], outputs=0)])
    session.commit([0])
    [rows] = model.forward([Segment(session, [PROMPT[-1], *(draft or [])])])
    return rows
