"""The description against a real server, by whatever schemathesis thinks up."""

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode

from slipstream.server.description import BODIES, READABLE
from tests.server.serving import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as one:
        yield one


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        *((path, mode) for path in BODIES for mode in GenerationMode),
        *((path, GenerationMode.POSITIVE) for path in READABLE),
    ],
)
def test_no_request_makes_the_server_fail(served: Served, path: str, mode: GenerationMode) -> None:
    operations = schemathesis.openapi.from_url(f"{served.url}/openapi.json")[path]
    operation = operations["POST" if path in BODIES else "GET"]

    @settings(
        max_examples=25,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def whatever_it_is(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):  # nobody wants to wait for long answers here
            case.body = {**case.body, "max_tokens": 3, "max_completion_tokens": 3, "max_output_tokens": 3}
        case.validate_response(case.call(timeout=30), checks=[not_a_server_error])

    whatever_it_is()


def test_it_names_every_endpoint(served: Served) -> None:
    found = httpx.get(f"{served.url}/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/metrics"} <= set(found["paths"])
    assert "speculation" in found["components"]["schemas"]["ChatRequest"]["properties"]
