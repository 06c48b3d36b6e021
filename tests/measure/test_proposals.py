import numpy as np

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Growth
from slipstream.core.sampling import Sampler
from slipstream.core.tree import Draft
from slipstream.core.verify import walk
from slipstream.draft import ModelDrafter, SuffixDrafter
from slipstream.measure.distribution import SIBLINGS, Table, View, try_law
from slipstream.measure.proposals import DraftRows, proposals
from tests.fakes import FakeModel, SmallVocabulary

CONTEXT = tuple(b"the context")
PARAMS = SamplingParams(temperature=0.9, top_p=0.95, min_p=0.02, seed=5)


def test_rows_of_a_draft_model_have_the_target_s_size() -> None:
    model = FakeModel(sharpness=2.0)
    for size in (200, 258, 300):
        rows = DraftRows(model, size)
        for tokens in (CONTEXT, (*CONTEXT, 3), (*CONTEXT, 4)):
            row, known = rows.after(tokens), min(size, 258)
            np.testing.assert_array_equal(row[:known], model.row(tokens)[:known])
            assert np.all(row[known:] == -np.inf)
        rows.close()
    assert model.open_sessions == 0


def test_proposals_are_those_of_the_drafter_itself() -> None:
    drafter = ModelDrafter(FakeModel(sharpness=2.0))
    rows = DraftRows(FakeModel(sharpness=2.0), 258)
    propose = proposals(drafter, rows, CONTEXT)
    for seed in range(50):
        sampler = Sampler(SamplingParams(temperature=0.9, seed=seed), 258, CONTEXT)
        view, own = View(CONTEXT, sampler), Draft()
        drafter.begin(view, 0)
        for _ in range(2):
            drafter.extend([Growth(view, own, SIBLINGS, SIBLINGS)])
        drafter.end(view)
        assert propose(sampler, (), len(CONTEXT)).tokens == own.tokens


def test_the_law_holds_below_a_draft_model_that_is_computed_once() -> None:
    model = FakeModel(sharpness=1.5, seed=0)
    rows, table = DraftRows(model, 258), Table(CONTEXT, FakeModel(sharpness=2.0).row)
    test = try_law(table, PARAMS, proposals(ModelDrafter(FakeModel()), rows, CONTEXT), walk, 400)
    assert not test.fails(1e-4)
    assert test.accepted > 200
    assert model.forwards < 200, "a row is computed once, not once a draw"


def test_what_the_draft_model_does_not_know_is_not_drafted_after() -> None:
    small = FakeModel(SmallVocabulary(100))
    propose = proposals(ModelDrafter(small), DraftRows(small, 258), (1, 2))
    sampler = Sampler(PARAMS, 258)
    assert len(propose(sampler, (50,), 3)) > 0
    assert len(propose(sampler, (150,), 3)) == 0


def test_drafters_without_a_model_are_asked() -> None:
    propose = proposals(SuffixDrafter(), None, (1, 2, 3, 1, 2))
    assert propose(Sampler(PARAMS, 258), (), 5).tokens[0] == 3
