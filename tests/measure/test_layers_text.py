"""What people are told of a search for layers."""

import pytest

from slipstream.measure.layer_search import Finding
from slipstream.measure.layers import LayerReport
from slipstream.measure.layers_text import lines


@pytest.mark.parametrize(
    ("partial", "advice"), [(True, "run it again to search on."), (False, "give a larger --budget.")]
)
def test_a_search_that_found_nothing_yet_says_what_to_do(partial: bool, advice: str) -> None:
    assert lines(LayerReport("it.gguf", 30, partial=partial))[-1] == f"Nothing was looked at yet; {advice}"


@pytest.mark.parametrize(
    ("speedup", "checked", "says"),
    [
        (0.7, None, "no gain is predicted (0.70x); --draft layers works with the best that was found"),
        (1.3, 0.9, "no gain is predicted (0.90x)"),
        (1.004, None, "no gain is predicted (1.00x)"),
        (1.2, 1.15, "--draft layers uses what was found; 1.15x is predicted."),
    ],
)
def test_a_search_without_gain_says_so(speedup: float, checked: float | None, says: str) -> None:
    best = Finding((0, 1, 5), 0.5, {0.0: 0.4, 1.0: 0.3}, speedup, {0.0: 1, 1.0: 1}, checked)
    verdict = lines(LayerReport("it.gguf", 6, subsets=[best], evaluated=1))[-1]
    assert says in verdict
    assert ("auto leaves it off" in verdict) == (min(speedup, checked or speedup) < 1.01)
