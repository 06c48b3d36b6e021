from slipstream.core.protocols import Growth
from slipstream.core.tree import Draft
from slipstream.draft import ForcedDrafter
from tests.fakes import TableConstraint
from tests.helpers import View

TABLE = [{7: 1}, {8: 2}, {9: 3}, {1: 3, 2: 3}]


def drafted(constraint: TableConstraint | None, limit: int = 9, draft: Draft | None = None) -> Draft:
    growth = Growth(View([1, 2], constraint=constraint), draft or Draft(), limit)
    ForcedDrafter().extend([growth])
    return growth.draft


def test_what_is_forced_is_proposed_up_to_the_limit() -> None:
    assert drafted(TableConstraint(TABLE)).tokens == [7, 8, 9]
    assert drafted(TableConstraint(TABLE), limit=2).tokens == [7, 8]
    assert set(drafted(TableConstraint(TABLE)).sources) == {"grammar"}


def test_it_is_what_is_forced_now() -> None:
    constraint = TableConstraint(TABLE)
    constraint.advance(7)
    assert drafted(constraint).tokens == [8, 9]
    assert constraint.states == [0, 1], "and looking ahead leaves no trace"


def test_nothing_where_there_is_a_choice_no_constraint_or_a_draft_already() -> None:
    assert drafted(TableConstraint(TABLE[3:] * 4)).tokens == []
    assert drafted(None).tokens == []
    assert drafted(TableConstraint(TABLE), draft=Draft.chain([5])).tokens == [5]


def test_it_costs_nothing_that_a_policy_would_have_to_know() -> None:
    drafter = ForcedDrafter()
    assert drafter.free
    assert drafter.memory() == 0
    assert drafter.model is None
