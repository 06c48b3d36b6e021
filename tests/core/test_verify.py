"""L0: the walk gives exactly plain decoding's tokens, for every noise table and every draft tree."""

from collections.abc import Callable
from itertools import chain, islice, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.noise import Noise
from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Rows, Segment, StopRule
from slipstream.core.sampling import Sampler
from slipstream.core.tree import ROOT, Draft
from slipstream.core.verify import Commit, Verdict, walk
from tests.core.toy import POSITIONS, Recorder, TableNoise, noise_tables, plain, toy_model, trees, walked

Walk = Callable[..., Verdict]
SETTINGS = {
    "unfiltered": SamplingParams(seed=0, temperature=1.0, top_p=1.0, min_p=0.0),
    "greedy": SamplingParams(seed=0, temperature=0.0),
    "filtered": SamplingParams(seed=0, temperature=0.8, top_p=0.7, min_p=0.1),
    "penalised": SamplingParams(
        seed=0, temperature=1.2, top_k=2, top_p=1, min_p=0, repetition_penalty=1.4, frequency_penalty=0.6
    ),
}


def mismatches(walk: Walk, params: SamplingParams, step: int = 1) -> int:
    """Over noise tables x trees: how often a round is not a prefix of plain decoding of at least one token."""
    model = toy_model()
    wrong = 0
    drafts = list(chain.from_iterable(trees(nodes) for nodes in range(4)))
    for index, table in enumerate(islice(noise_tables(), 0, None, step)):
        noise = TableNoise(table)
        expected = plain(model, params, noise, POSITIONS)
        # a seventh of the trees with each table; test_every_tree_with_every_ranking leaves none out
        for draft in drafts[index % 7 :: 7]:
            tokens = walked(model, params, noise, draft, POSITIONS, walk=walk)
            wrong += not tokens or tokens != expected[: len(tokens)]
    return wrong


@pytest.mark.parametrize("name", SETTINGS)
def test_the_walk_is_plain_decoding(name: str) -> None:
    assert mismatches(walk, SETTINGS[name], step=61) == 0


def test_every_tree_with_every_ranking() -> None:
    """All trees against one table for each ranking of the tokens at each position."""
    params, model = SETTINGS["unfiltered"], toy_model(sharpness=0.0)
    rankings = list(permutations((0.0, 1.0, 2.0)))
    drafts = list(chain.from_iterable(trees(nodes) for nodes in range(4)))
    for table in product(rankings, repeat=POSITIONS):
        noise = TableNoise(table)
        expected = plain(model, params, noise, POSITIONS)
        for draft in drafts:
            tokens = walked(model, params, noise, draft, POSITIONS)
            assert tokens == expected[: len(tokens)]
            # as far as the draft follows the text it is accepted, and one token more is committed
            assert len(tokens) == min(agreement(draft, expected) + 1, POSITIONS)


def agreement(draft: Draft, text: list[int]) -> int:
    """How many tokens of the text the tree contains."""
    node, depth = ROOT, 0
    while depth < len(text) and (child := draft.child(node, text[depth])) is not None:
        node, depth = child, depth + 1
    return depth


@pytest.mark.parametrize("end", range(3))
def test_a_stop_ends_the_walk_where_it_ends_plain_decoding(end: int) -> None:
    params, model = SETTINGS["unfiltered"], toy_model()
    for seed in range(40):
        noise = Noise(seed)
        expected = plain(model, params, noise, POSITIONS, end)
        for draft in islice(trees(3), 0, None, 11):
            tokens = walked(model, params, noise, draft, POSITIONS, end)
            assert tokens == expected[: len(tokens)]
            assert end not in tokens[:-1]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_an_adversary_that_reads_the_noise_changes_nothing(seed: int, data: st.DataObject) -> None:
    """It knows what the target will choose at each node and proposes that, or just not that."""
    params, model, noise = SETTINGS["filtered"], toy_model(), Noise(seed)
    expected = plain(model, params, noise, POSITIONS)
    lies = data.draw(st.lists(st.booleans(), min_size=POSITIONS, max_size=POSITIONS))
    draft = Draft.chain([(token + lie) % 3 for token, lie in zip(expected, lies, strict=True)], "adversary")
    tokens = walked(model, params, noise, draft, POSITIONS)
    honest = next((depth for depth, lie in enumerate(lies) if lie), POSITIONS)
    assert tokens == expected[: min(honest + 1, POSITIONS)]


# Broken verifiers: each must be caught by the very check that the real one passes.


def believes_the_draft(draft: Draft, rows: Rows, sampler: Sampler, stop: StopRule, position: int, **_: bool) -> Verdict:
    """Accepts the first child of a node without asking the target."""
    verdict, node = Verdict(), ROOT
    while True:
        children = [index for index, parent in enumerate(draft.parents) if parent == node]
        token = draft.tokens[children[0]] if children else sampler.choose(rows.logits(node + 1), position)
        verdict.commits.append(Commit(token, children[0] if children else None, "", "", None))
        verdict.finish_reason = stop.push(token).finish_reason
        if not children or verdict.finish_reason:
            return verdict
        node, position = children[0], position + 1


def forgets_the_position(
    draft: Draft, rows: Rows, sampler: Sampler, stop: StopRule, position: int, **_: bool
) -> Verdict:
    """Uses the first position's noise for the whole round."""

    class Stuck(Sampler):
        def choose(self, row: np.ndarray, _: int) -> int:
            return sampler.choose(row, position)

        def accept(self, token: int) -> None:
            sampler.accept(token)

    return walk(draft, rows, Stuck(sampler.params, sampler.vocabulary_size), stop, position)


def reads_the_wrong_row(
    draft: Draft, rows: Rows, sampler: Sampler, stop: StopRule, position: int, **_: bool
) -> Verdict:
    """Verifies every token with the pending token's row."""

    class Shifted:
        def logits(self, row: int) -> np.ndarray:
            return rows.logits(0)

    return walk(draft, Shifted(), sampler, stop, position)  # type: ignore[arg-type]


def forgets_the_history(
    draft: Draft, rows: Rows, sampler: Sampler, stop: StopRule, position: int, **_: bool
) -> Verdict:
    """Penalties do not see the tokens that this round committed."""

    class Forgetful(Sampler):
        def choose(self, row: np.ndarray, position: int) -> int:
            return sampler.choose(row, position)

        def accept(self, token: int) -> None:
            pass

    return walk(draft, rows, Forgetful(sampler.params, sampler.vocabulary_size), stop, position)


def resamples_what_was_refused(
    draft: Draft, rows: Rows, sampler: Sampler, stop: StopRule, position: int, **_: bool
) -> Verdict:
    """After a refusal draws the recovered token with noise of its own, as rejection sampling does."""
    verdict = walk(draft, rows, sampler, stop, position)
    last = verdict.commits[-1]
    if last.node is None and len(draft):
        node = verdict.commits[-2].node if len(verdict.commits) > 1 else ROOT
        assert node is not None
        ids = np.arange(3)
        scores = rows.logits(node + 1)[ids] + Noise(99).at(position).gumbel(ids)
        verdict.commits[-1] = last._replace(token=int(scores.argmax()))
    return verdict


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (believes_the_draft, "unfiltered"),
        (believes_the_draft, "greedy"),
        (forgets_the_position, "unfiltered"),
        (reads_the_wrong_row, "greedy"),
        (forgets_the_history, "penalised"),
        (resamples_what_was_refused, "unfiltered"),
    ],
)
def test_broken_verifiers_are_caught(broken: Walk, name: str) -> None:
    assert mismatches(broken, SETTINGS[name], step=607) > 0


def test_outcomes_name_what_the_target_was_asked() -> None:
    model, params, noise = toy_model(), SETTINGS["greedy"], Noise(0)
    first, second, _ = plain(model, params, noise, 3)
    draft = Draft()
    right = draft.add(first, ROOT, source="a")
    wrong = draft.add((first + 1) % 3, ROOT, source="a")
    below_wrong = draft.add(0, wrong, source="a")
    deeper = draft.add((second + 1) % 3, right, source="a")
    session = model.open_session()
    model.forward([Segment(session, [0], outputs=0)])
    session.commit([0])
    parents = [-1, *(parent + 1 for parent in draft.parents)]
    [rows] = model.forward([Segment(session, [1, *draft.tokens], parents)])
    verdict = walk(draft, rows, Sampler(params, 3, [0, 1], noise), Recorder(9), 2)
    outcomes = dict(verdict.outcomes(draft))
    assert outcomes == {right: True, wrong: False, deeper: False}
    assert below_wrong not in outcomes
    assert (verdict.tested, verdict.accepted) == (2, 1)
