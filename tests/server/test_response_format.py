from typing import Any

import pytest

from slipstream.errors import UsageError
from slipstream.grammar import Grammar
from slipstream.server.response_format import grammar_of_format

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize("response_format", [None, {"type": "text"}])
def test_free_text_has_no_grammar(response_format: Any) -> None:
    assert grammar_of_format(response_format) is None


def test_any_object() -> None:
    made = grammar_of_format({"type": "json_object"})
    assert made is not None
    assert made.source == Grammar.json_object().source


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}},
        {"type": "json_schema", "name": "a", "schema": SCHEMA},
    ],
)
def test_a_schema_of_either_api(response_format: Any) -> None:
    made = grammar_of_format(response_format)
    assert made is not None
    assert made.source == Grammar.from_json_schema(SCHEMA).source


@pytest.mark.parametrize(
    ("response_format", "says"),
    [
        ("json", "must have the type"),
        ({}, "must have the type"),
        ({"type": "xml"}, "must have the type"),
        ({"type": ["text"]}, "must have the type"),
        ({"type": "json_schema"}, "needs"),
        ({"type": "json_schema", "json_schema": 7}, "needs"),
        ({"type": "json_schema", "json_schema": {"schema": []}}, "must be an object"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "poem"}}}, "Invalid type: poem"),
    ],
)
def test_impossible_formats_are_a_sentence(response_format: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        grammar_of_format(response_format)
