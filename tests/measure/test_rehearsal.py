import numpy as np

from slipstream.engine import Engine
from slipstream.measure.rehearsal import Rehearsal, Witness
from slipstream.policy import FixedLength
from tests.fakes import FakeModel

PROMPT = list(b"once upon a time")
OPTIONS = {"temperature": 0.8, "seed": 3, "max_tokens": 30}


def text(model: FakeModel) -> list[int]:
    return Engine(model).generate(PROMPT, **OPTIONS).tokens  # type: ignore[arg-type]


def test_a_witness_keeps_the_row_of_every_token_and_drafts_nothing() -> None:
    model, witness = FakeModel(sharpness=2.0, max_sessions=8), Witness()
    done = Engine(model, witness, FixedLength(4)).generate(PROMPT, **OPTIONS)  # type: ignore[arg-type]
    assert done.statistics.drafted == 0
    assert sorted(witness.rows) == list(range(len(PROMPT), len(PROMPT) + len(done.tokens)))
    for position, row in witness.rows.items():
        np.testing.assert_array_equal(row, model.row([*PROMPT, *done.tokens][:position]))


def test_a_rehearsal_is_right_where_it_makes_no_mistakes() -> None:
    model = FakeModel(sharpness=2.0, max_sessions=8)
    rehearsal = Rehearsal([[*PROMPT, *text(model)]], 4, mistakes=False)
    done = Engine(model, rehearsal, FixedLength(4)).generate(PROMPT, **OPTIONS)  # type: ignore[arg-type]
    assert done.statistics.accepted == done.statistics.drafted > 0
    for position, row in rehearsal.rows.items():
        np.testing.assert_array_equal(row, model.row([*PROMPT, *done.tokens][:position]))


def test_a_rehearsal_with_mistakes_is_accepted_and_refused_at_every_depth() -> None:
    model = FakeModel(sharpness=2.0, max_sessions=8)
    for trees, nodes in ((False, 4), (True, 8)):
        rehearsal = Rehearsal([[*PROMPT, *text(model)]], 4, trees=trees)
        done = Engine(model, rehearsal, FixedLength(nodes)).generate(PROMPT, **OPTIONS)  # type: ignore[arg-type]
        assert done.tokens == text(model)
        lengths = {record.accepted for record in done.rounds}
        assert {0, 1, 2} <= lengths
        assert any(record.accepted < record.tested for record in done.rounds), "nothing was refused"


def test_a_text_that_is_not_known_is_not_rehearsed() -> None:
    model = FakeModel(sharpness=2.0, max_sessions=8)
    rehearsal = Rehearsal([[1, 2, 3]], 4)
    assert Engine(model, rehearsal, FixedLength(4)).generate(PROMPT, **OPTIONS).statistics.drafted == 0  # type: ignore[arg-type]
