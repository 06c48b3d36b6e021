from dataclasses import replace

import pytest
from scipy import stats

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Growth
from slipstream.core.sampling import Sampler
from slipstream.core.tree import Draft
from slipstream.core.verify import walk
from slipstream.draft import BaseDrafter, SuffixDrafter
from slipstream.measure.broken import MISTAKES, Mistake
from slipstream.measure.distribution import LawTest, Table, Verify, _pooled, drafted_by, flattened, try_law
from tests.fakes import FakeModel

PARAMS = SamplingParams(temperature=0.9, top_p=0.95, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3, seed=5)
CONTEXT = (1, 2, 3, 2, 3)
LEVEL = 1e-4


def table(sharpness: float = 2.0) -> Table:
    return Table(CONTEXT, FakeModel(sharpness=sharpness).row)


def tried(rows: Table, verify: Verify, draws: int = 600, params: SamplingParams = PARAMS) -> LawTest:
    return try_law(rows, params, flattened(rows), verify, draws)


@pytest.mark.parametrize("twice", [False, True])
def test_the_walk_draws_the_law(twice: bool) -> None:
    rows = table().twice() if twice else table()
    test = tried(rows, walk, draws=1500)
    assert not test.fails(LEVEL), test
    assert test.accepted > 500
    assert test.cells > 20


def test_many_right_laws_fail_as_often_as_they_should() -> None:
    """Their p are uniform; they would not be if cells depended on what was drawn."""
    params = SamplingParams(temperature=1.0, top_p=0.95, min_p=0.02)
    rows = table()
    tests = [tried(rows, walk, 250, replace(params, seed=1000 * number)) for number in range(50)]
    assert stats.kstest([test.p for test in tests], "uniform").pvalue > 0.01
    assert min(test.cells for test in tests) > 5


@pytest.mark.parametrize("mistake", [one for one in MISTAKES if one.shows_in_law], ids=lambda one: one.name)
def test_a_broken_verifier_draws_another(mistake: Mistake) -> None:
    rows = table()
    found = [tried(rows, mistake.verify), tried(rows.twice(), mistake.verify)]
    assert any(test.fails(LEVEL) for test in found)


def test_noise_that_is_used_twice_shows_on_one_row_twice() -> None:
    """Each of the two tokens alone comes as it should; on two unlike rows little is to be seen of what joins them."""
    [reused] = [one for one in MISTAKES if one.name == "reused noise"]
    assert tried(table().twice(), reused.verify).p < 1e-12


def test_a_token_without_probability_is_proof() -> None:
    rows = table()
    never = int(rows.after(()).argmin())

    def impossible(draft: Draft, rows_: object, sampler: Sampler, stop: object, position: int) -> object:
        verdict = walk(draft, rows_, sampler, stop, position)  # type: ignore[arg-type]
        verdict.commits[0] = verdict.commits[0]._replace(token=never)
        return verdict

    test = tried(rows, impossible, draws=20)  # type: ignore[arg-type]
    assert test.impossible > 0
    assert test.p == 0.0 or test.fails(LEVEL)


def test_at_temperature_0_only_the_impossible_can_fail() -> None:
    params = SamplingParams(temperature=0, seed=1)
    test = tried(table(), walk, 50, params)
    assert (test.cells, test.p, test.fails(LEVEL), test.detectable(LEVEL)) == (1, 1.0, False, 0.0)


def test_cells_that_are_expected_seldom_are_counted_together() -> None:
    cells = [(3, 2.0), (1, 2.5), (50, 48.0), (2, 4.5), (9, 8.0)]
    pooled = _pooled(cells)
    assert sum(counted for counted, _ in pooled) == 65
    assert sum(wanted for _, wanted in pooled) == pytest.approx(65.0)
    assert min(wanted for _, wanted in pooled) >= 5
    assert _pooled([(1, 1.0), (9, 9.0)]) == [(10, 10.0)], "what is too little joins the next"
    assert _pooled([(0, 0.0), (9, 9.0)]) == [(9, 9.0)], "nothing to expect is no cell"


def test_a_real_drafter_proposes_and_is_left_as_it_was() -> None:
    drafter, rows = SuffixDrafter(), table()
    test = try_law(rows, PARAMS, drafted_by(drafter, rows.context), walk, 300)
    assert not test.fails(LEVEL)
    assert drafter._indices == {}


def test_a_drafter_gets_one_step_for_each_token_that_is_drawn() -> None:
    steps: list[int] = []

    class Eager(BaseDrafter):
        def extend(self, frontier: object) -> None:
            [growth] = frontier  # type: ignore[misc]
            assert isinstance(growth, Growth)
            steps.append(len(growth.draft))
            growth.draft.append(1, source="eager")

    propose = drafted_by(Eager(), CONTEXT)
    assert len(propose(Sampler(PARAMS, 258), (), 5)) == 2
    assert len(propose(Sampler(PARAMS, 258), (9,), 6)) == 1
    assert steps == [0, 1, 0]
