import pytest

from slipstream.core.protocols import Growth
from slipstream.core.tree import Draft
from slipstream.draft import NoDrafter
from slipstream.errors import UsageError
from slipstream.policy import FixedLength
from tests.helpers import View


def test_it_lets_drafts_grow_to_its_length_and_keeps_all_of_them() -> None:
    policy, draft = FixedLength(3), Draft.chain([1, 2], "a")
    assert policy.limit(Growth(View([0]), draft, 9), NoDrafter()) == 1
    assert policy.choose([draft]) == [draft]


@pytest.mark.parametrize("length", [-1, 65, 2.5, True, "4"])
def test_impossible_lengths_name_the_range(length: object) -> None:
    with pytest.raises(UsageError, match="whole number from 0 to 64"):
        FixedLength(length)  # type: ignore[arg-type]
