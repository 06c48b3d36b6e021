"""What people are told of a search for layers."""

import pytest

from slipstream.measure.layers import LayerReport
from slipstream.measure.layers_text import lines


@pytest.mark.parametrize(
    ("partial", "advice"), [(True, "run it again to search on."), (False, "give a larger --budget.")]
)
def test_a_search_that_found_nothing_yet_says_what_to_do(partial: bool, advice: str) -> None:
    assert lines(LayerReport("it.gguf", 30, partial=partial))[-1] == f"Nothing was looked at yet; {advice}"
