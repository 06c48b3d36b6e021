import pytest

from slipstream.core.protocols import Growth
from slipstream.core.tree import ROOT, Draft
from slipstream.draft import BaseDrafter, ModelDrafter, SuffixDrafter
from slipstream.errors import UsageError
from slipstream.policy import FixedLength
from tests.fakes import FakeModel
from tests.helpers import View

PHASES = {"draft": 0.0, "verify": 1.0, "sample": 0.0, "other": 0.0}


class OneByOne(BaseDrafter):
    """Proposes 7, 8, ... one a step, and siblings with what it is asked for."""

    name = "model"

    def extend(self, frontier: object) -> None:
        for growth in frontier:  # type: ignore[attr-defined]
            self.grow(growth)

    def grow(self, growth: Growth) -> None:
        parent = growth.draft.tip
        token = 7 + len(growth.draft.path(parent))
        growth.draft.append(token, source=self.name)
        for rank in range(1, min(growth.siblings, growth.limit)):
            growth.draft.add(100 * rank + token, parent, source=self.name, bucket=rank)


def chosen(policy: FixedLength, view: View, *drafters: BaseDrafter) -> Draft:
    for step in policy.draft([view], drafters):
        drafters[step.drafter].extend(step.growths)
    return policy.choose()[0]


def test_drafts_have_its_length() -> None:
    assert chosen(FixedLength(3), View([0]), OneByOne()).tokens == [7, 8, 9]
    assert len(chosen(FixedLength(0), View([0]), OneByOne())) == 0


def test_drafts_end_where_nothing_more_could_be_committed() -> None:
    assert chosen(FixedLength(3), View([0], draft_limit=2), OneByOne()).tokens == [7, 8]
    assert chosen(FixedLength(3), View([0], draft_limit=0), OneByOne()).tokens == []


def test_trees_have_its_length_along_the_main_chain() -> None:
    draft = chosen(FixedLength(2, siblings=3), View([0]), OneByOne())
    assert draft.tokens == [7, 107, 207, 8, 108, 208]
    assert draft.parents == [ROOT, ROOT, ROOT, 0, 0, 0]


def repeating() -> tuple[SuffixDrafter, View]:
    drafter, view = SuffixDrafter(), View(list(b"the quick brown fox and the quick brown fox and "))
    drafter.begin(view, 0)
    return drafter, view


def test_the_costly_drafter_drafts_where_nothing_comes_for_free() -> None:
    suffix, view = SuffixDrafter(), View(list(b"abcdefgh"))
    suffix.begin(view, 0)
    assert chosen(FixedLength(3), view, suffix, OneByOne()).sources == ["model"] * 3


def test_the_free_drafter_drafts_once_it_is_known_to_be_right() -> None:
    suffix, view = repeating()
    model = ModelDrafter(FakeModel())
    model.begin(view, 0)
    policy = FixedLength(8)
    for _ in range(30):
        draft = chosen(policy, view, suffix, model)
        policy.observe([list(b"the quick")], PHASES)
    forwards = model.model.forwards  # type: ignore[attr-defined]
    draft = chosen(policy, view, suffix, model)
    assert set(draft.sources) == {"suffix"}
    assert bytes(draft.tokens) == b"the quic"
    assert model.model.forwards == forwards, "the model was not asked"  # type: ignore[attr-defined]


def test_the_costly_drafter_drafts_once_the_free_one_is_known_to_be_wrong() -> None:
    suffix, view = repeating()
    policy = FixedLength(4)
    for _ in range(60):
        draft = chosen(policy, view, suffix, OneByOne())
        policy.observe([[7, 8, 9, 10, 11]], PHASES)
    draft = chosen(policy, view, suffix, OneByOne())
    assert set(draft.sources) == {"model"}


@pytest.mark.parametrize("length", [-1, 65, 2.5, True, "4"])
def test_impossible_lengths_name_the_range(length: object) -> None:
    with pytest.raises(UsageError, match="whole number from 0 to 64"):
        FixedLength(length)  # type: ignore[arg-type]
