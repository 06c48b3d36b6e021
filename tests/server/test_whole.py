"""Large answers, written in pieces, are the JSON that the library writes at once."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slipstream.server.whole import RUN, rendered

leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)


@given(st.dictionaries(st.text(max_size=4), values, max_size=5), st.integers(0, 6))
def test_any_answer(body: dict[str, Any], levels: int) -> None:
    assert rendered(body, levels) == json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def test_long_lists_of_anything() -> None:
    for length in (RUN - 1, RUN, RUN + 1, 2 * RUN, 2 * RUN + 1):
        for member in (7, {"a": [1, {}]}, [1, []], []):
            body = {"x": [member] * length, "y": {"z": [[member] * length]}}
            for levels in range(5):
                assert json.loads(rendered(body, levels)) == body
