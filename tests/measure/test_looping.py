import pytest

from slipstream.measure.looping import LOOPING, repeated_share


@pytest.mark.parametrize(
    ("tokens", "share"),
    [([], 0), ([1, 2, 3], 0), ([1, 2, 3, 4], 0), ([1, 2, 3, 4, 5, 1, 2, 3, 4], 1 / 6), ([7] * 13, 9 / 10)],
)
def test_share_of_repeated_four_grams(tokens: list[int], share: float) -> None:
    assert repeated_share(tokens) == pytest.approx(share)


def test_a_text_that_goes_round_is_looping() -> None:
    assert repeated_share(("the cat sat on the mat and " * 6).split()) > LOOPING
