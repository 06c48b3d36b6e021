import numpy as np
import pytest

from slipstream.core.params import SamplingParams
from slipstream.measure.law import distribution, is_borderline, processed

ROW = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, [0.25, 0.09, 0.0225, 0.0025]),
        ({"top_k": 2}, [0.5, 0.3, 0, 0]),
        ({"top_p": 0.6}, [0.5, 0.3, 0, 0]),
        ({"min_p": 0.25}, [0.5, 0.3, 0.15, 0]),
        ({"logit_bias": {0: -np.inf}}, [0, 0.3, 0.15, 0.05]),
    ],
)
def test_the_law_after_filters(options: dict[str, object], expected: list[float]) -> None:
    p = distribution(ROW, SamplingParams(**(NEUTRAL | options)), [])  # type: ignore[arg-type]
    np.testing.assert_allclose(p, np.array(expected) / sum(expected), rtol=1e-6)


def test_penalties_count_what_was_seen() -> None:
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    out = processed(np.array([1.0, -1.0, 3.0], np.float32), params, [0, 1, 1])
    np.testing.assert_allclose(out, [0.5 - 0.75, -2.0 - 1.0, 3.0])


def test_a_token_at_the_border_of_a_filter_is_noticed() -> None:
    inside = SamplingParams(**(NEUTRAL | {"min_p": 0.1}))  # type: ignore[arg-type]
    border = np.array([0.0, np.log(0.1), -0.5], np.float32)
    assert is_borderline(border, inside, [])
    assert not is_borderline(border + np.array([0, 0.01, 0], np.float32), inside, [])
    assert not is_borderline(border, SamplingParams(**NEUTRAL), [])  # type: ignore[arg-type]
