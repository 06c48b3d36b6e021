from slipstream.core.protocols import Growth
from slipstream.core.tree import Draft
from slipstream.draft import CombinedDrafter, ModelDrafter, SuffixDrafter
from tests.fakes import FakeModel
from tests.helpers import View, accept_first


def make(tokens: bytes) -> tuple[CombinedDrafter, View, FakeModel]:
    model, view = FakeModel(), View(list(tokens))
    drafter = CombinedDrafter(SuffixDrafter(), ModelDrafter(model))
    drafter.begin(view, 0)
    return drafter, view, model


def grow(drafter: CombinedDrafter, view: View, limit: int) -> Draft:
    draft = Draft()
    while len(draft) < limit:
        size = len(draft)
        drafter.extend([Growth(view, draft, limit - size)])
        if len(draft) == size:
            break
    return draft


def test_the_model_drafts_where_nothing_matches() -> None:
    drafter, view, _ = make(b"abcdefgh")
    assert grow(drafter, view, 3).sources == ["model"] * 3


def test_the_suffix_drafts_once_it_is_known_to_be_right() -> None:
    drafter, view, model = make(b"the quick brown fox and the quick brown fox and ")
    for _ in range(30):
        draft = grow(drafter, view, 8)
        accepted = len(draft) if draft.sources[0] == "suffix" else 0
        drafter.observe(view, draft, accept_first(draft, accepted), None)  # type: ignore[arg-type]
    before = model.forwards
    draft = grow(drafter, view, 8)
    assert set(draft.sources) == {"suffix"}
    assert bytes(draft.tokens) == b"the quic"
    assert model.forwards == before, "the model was not asked"


def test_the_model_drafts_once_the_suffix_is_known_to_be_wrong() -> None:
    drafter, view, _ = make(b"the quick brown fox and the quick brown fox and ")
    for _ in range(60):
        draft = grow(drafter, view, 4)
        accepted = 0 if draft.sources[0] == "suffix" else len(draft)
        drafter.observe(view, draft, accept_first(draft, accepted), None)  # type: ignore[arg-type]
    assert set(grow(drafter, view, 4).sources) == {"model"}


def test_it_is_named_after_its_parts() -> None:
    assert make(b"a")[0].name == "suffix+model"
