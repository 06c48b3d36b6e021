from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.protocols import Growth
from slipstream.core.tree import Draft
from slipstream.draft.prediction import LONGEST_RUN, NEAR, Alignment, PredictionDrafter
from tests.fakes import ByteVocabulary
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


class Pieces(ByteVocabulary):
    """Bytes, and pieces of several of them from 300 on; texts are cut into the longest that fit."""

    size = 400

    def __init__(self, *pieces: str) -> None:
        super().__init__()
        self.pieces = [piece.encode() for piece in pieces]

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token - 300] if token >= 300 else super().token_bytes(token)

    def spelt(self, *texts: str) -> list[int]:
        """One token for each text."""
        return [300 + self.pieces.index(text.encode()) for text in texts]

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        rest, tokens = text.encode(), []
        while rest:
            fitting = [
                token for token in range(300, 300 + len(self.pieces)) if rest.startswith(self.token_bytes(token))
            ]
            tokens.append(max(fitting, key=lambda one: len(self.token_bytes(one)), default=rest[0]))
            rest = rest.removeprefix(self.token_bytes(tokens[-1]))
        return tokens


SPELLING = Pieces("de", "description", "scription", "get", "_l", "get_l", "ending", "(", "é", ")", "x", "café")


def proposed(prediction: Sequence[int], answer: Sequence[int], limit: int = 8) -> Draft:
    drafter, view, draft = PredictionDrafter(SPELLING), View(list(PROMPT), prediction=prediction), Draft()
    drafter.begin(view, 0)
    view.tokens += answer
    drafter.extend([Growth(view, draft, limit)])
    return draft


def test_a_token_that_begins_a_predicted_one_is_followed_by_its_rest() -> None:
    prediction = SPELLING.spelt("(", "description", ")", "x")
    draft = proposed(prediction, SPELLING.spelt("(", "de"))
    assert draft.tokens == SPELLING.spelt("scription", ")", "x")
    assert draft.buckets[0] not in draft.buckets[1:]
    assert proposed(prediction, SPELLING.spelt("(", "de"), limit=1).tokens == SPELLING.spelt("scription")
    assert proposed(prediction, SPELLING.spelt("(", "de", "scription")).tokens == SPELLING.spelt(")", "x")


def test_a_token_that_is_several_predicted_ones() -> None:
    prediction = SPELLING.spelt("(", "get", "_l", "ending", ")")
    assert proposed(prediction, SPELLING.spelt("(", "get_l")).tokens == SPELLING.spelt("ending", ")")
    assert proposed(SPELLING.spelt("(", "get_l", "ending"), SPELLING.spelt("(", "get")).tokens == SPELLING.spelt(
        "_l", "ending"
    )


def test_a_rest_that_is_no_text_is_waited_for() -> None:
    prediction = SPELLING.spelt("(", "café", ")", "x")
    begun = [*SPELLING.spelt("("), *b"caf", "é".encode()[0]]
    assert proposed(prediction, begun).tokens == []
    assert proposed(prediction, [*begun, "é".encode()[1]]).tokens == SPELLING.spelt(")", "x")


def test_a_control_token_agrees_with_itself_alone() -> None:
    prediction = [*SPELLING.spelt("("), 256, *SPELLING.spelt(")", "x")]
    assert proposed(prediction, SPELLING.spelt("(")).tokens == prediction[1:]
    assert proposed(prediction, [*SPELLING.spelt("("), 256]).tokens == SPELLING.spelt(")", "x")
    assert proposed(prediction, [*SPELLING.spelt("("), 257]).tokens == SPELLING.spelt(")", "x"), "in place of it"


@given(st.lists(st.sampled_from(["de", "get", "x", "(", "é"]), min_size=1, max_size=20), st.data())
def test_a_text_that_is_spelt_otherwise_never_departs(words: list[str], data: st.DataObject) -> None:
    """A vocabulary in which any piece of up to three bytes is a token."""
    whole = "".join(words).encode()
    places = data.draw(st.sets(st.integers(1, len(whole))))
    cuts = sorted({*range(3, len(whole), 3), *places, len(whole)} | {0})
    pieces = {300 + number: whole[start:end] for number, (start, end) in enumerate(pairwise(cuts))}
    predicted = {500 + number: word.encode() for number, word in enumerate(words)}
    alignment = Alignment(list(predicted), (pieces | predicted).__getitem__)
    for count, token in enumerate(pieces, 1):
        assert b"".join([*pieces.values()][: count - 1]) == whole[: alignment._at]
        alignment.advance(token)
        assert alignment.run == min(count, LONGEST_RUN)
    assert alignment.place == len(predicted)


def test_a_draft_s_own_tokens_count_as_agreement() -> None:
    buckets = [proposed(list(range(100)), [], limit=limit).buckets for limit in (1, 40)]
    assert buckets[0] == [0]
    assert buckets[1] == [depth.bit_length() for depth in range(40)]
