from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.protocols import Growth
from slipstream.core.tree import Draft
from slipstream.draft.prediction import NEAR, Alignment, PredictionDrafter
from tests.helpers import View

PROMPT = [1, 2, 3]


def drafted(prediction: Sequence[int], answer: Sequence[int], limit: int = 4) -> list[int]:
    """What is proposed after the answer's beginning."""
    drafter, view, draft = PredictionDrafter(), View(list(PROMPT), prediction=prediction), Draft()
    drafter.begin(view, 0)
    view.tokens += answer
    drafter.extend([Growth(view, draft, limit)])
    return draft.tokens


LINES = list(range(10, 60))


def test_the_first_draft_is_the_beginning() -> None:
    assert drafted(LINES, []) == [10, 11, 12, 13]


def test_it_goes_on_where_the_text_is() -> None:
    assert drafted(LINES, LINES[:7]) == LINES[7:11]


def test_another_token_in_place_of_one() -> None:
    assert drafted(LINES, [*LINES[:7], 99]) == LINES[8:12]


def test_tokens_that_the_prediction_lacks() -> None:
    assert drafted(LINES, [*LINES[:7], 99, 98, 97, *LINES[7:9]]) == LINES[9:13]


def test_tokens_that_the_text_leaves_out() -> None:
    assert drafted(LINES, [*LINES[:7], LINES[20]]) == LINES[21:25]


def test_of_places_that_agree_alike_the_nearest_ahead() -> None:
    text = [5, 6, 7, 0, 11, 5, 6, 7, 0, 12, 5, 6, 7, 0, 13]
    assert drafted(text, [5, 6, 7, 0, 11, 5, 6, 9, 0], limit=2) == [12, 5]


def test_a_longer_agreement_is_worth_a_longer_way() -> None:
    far = [*LINES, *[0] * (2 * NEAR), 71, 72, 73, 74, 75]
    assert drafted(far, [*LINES[:7], 71, 72]) == [73, 74, 75]
    assert drafted(far, [*LINES[:7], 71]) == LINES[8:12], "one token in common is not enough for a jump"


def test_nothing_beyond_the_end_or_the_limit() -> None:
    assert drafted([10, 11, 12], [10]) == [11, 12]
    assert drafted([10, 11, 12], [10, 11, 12]) == []
    assert drafted(LINES, [], limit=2) == [10, 11]


def test_only_for_texts_that_have_one() -> None:
    drafter = PredictionDrafter()
    assert not drafter.serves(View([1]))
    assert drafter.serves(View([1], prediction=[2]))
    assert drafted([], [10]) == []


def test_it_leaves_another_drafter_s_draft_alone_and_gives_everything_back() -> None:
    drafter, view = PredictionDrafter(), View([1], prediction=[2, 3])
    drafter.begin(view, 0)
    draft = Draft.chain([7], "model")
    drafter.extend([Growth(view, draft, 8)])
    assert draft.tokens == [7]
    drafter.end(view)
    assert not drafter._alignments
    assert not drafter._seen


def test_agreement_is_what_the_estimate_depends_on() -> None:
    drafter, view = PredictionDrafter(), View([1], prediction=LINES)
    drafter.begin(view, 0)
    estimates = []
    for length in (0, 1, 2, 8, 40):
        view.tokens[1:] = LINES[:length]
        drafter._alignments[view.id], drafter._seen[view.id] = Alignment(LINES), 1
        draft = Draft()
        drafter.extend([Growth(view, draft, 1)])
        estimates.append(draft.estimates[0])
    assert estimates == sorted(set(estimates))


small = st.lists(st.integers(0, 3), max_size=30)


@given(prediction=small, text=small)
def test_the_run_is_the_truth_and_no_nearby_place_agrees_with_more(prediction: list[int], text: list[int]) -> None:
    alignment = Alignment(prediction)
    for count, token in enumerate(text, 1):
        alignment.advance(token)
        place, run = alignment.place, alignment.run
        if run:
            assert prediction[place - run : place] == text[count - run : count]
        agreeing = [
            length
            for length in range(1, 17)
            if any(prediction[at : at + length] == text[count - length : count] for at in range(len(prediction)))
            and length <= count
        ]
        if run < 2:  # while it follows it does not look elsewhere
            assert run == max(agreeing, default=0)
