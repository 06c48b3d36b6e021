"""OpenAI's `response_format` as a grammar."""

from collections.abc import Mapping

from slipstream.engine import GenerationOptions
from slipstream.errors import UsageError
from slipstream.grammar import Grammar


def grammar_of_format(response_format: object) -> Grammar | None:
    """What an answer may be: None for free text.

    response_format: None, `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", "json_schema":
    {"schema": {...}}}`; also with the schema beside the type, as in the responses API. `name` and `strict` change
    nothing: a schema always holds.

    Raises UsageError for anything else, and for a schema that is none or not supported.
    """
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if not isinstance(response_format, Mapping) or kind not in ("text", "json_object", "json_schema"):
        raise UsageError('response_format must have the type "text", "json_object" or "json_schema".')
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json_object()
    described = response_format.get("json_schema", response_format)
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if schema is None:
        raise UsageError('response_format of type "json_schema" needs {"json_schema": {"schema": ...}}.')
    return Grammar.from_json_schema(schema)


def with_format(options: GenerationOptions, response_format: object) -> GenerationOptions:
    """The options with the grammar of a format, if it has one. Takes a while for a large schema."""
    grammar = grammar_of_format(response_format)
    return options if grammar is None else {**options, "grammar": grammar}
