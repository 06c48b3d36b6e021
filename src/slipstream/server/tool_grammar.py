"""The grammar of an answer that has to be a call."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.errors import UsageError
from slipstream.grammar import Grammar
from slipstream.grammar.schema import checked_json
from slipstream.server.tool_formats import ToolFormat

MOST_CALLS = 16
"""In one answer; small models would go on for ever."""


def grammar_of_calls(
    form: ToolFormat, functions: Mapping[str, Mapping[str, Any]], token: Callable[[str], str], *, several: bool
) -> Grammar:
    """Calls of these functions and nothing else.

    functions: JSON schemas of their arguments
    token:     how the grammar writes an opening or closing, which is a control token in some vocabularies
    several:   up to `MOST_CALLS`, else one

    Raises UsageError for a schema that is none, or not supported.
    """
    names = {name: f"call_{number}" for number, name in enumerate(functions)}
    start, separator = "call", '"\\n"'
    if form.listed:
        separator = '", "'
    elif form.headed:
        separator = ""
    if several and not form.bare:
        start += f" ({separator} call){{0,{MOST_CALLS - 1}}}"
    if form.listed:
        start = f'{token(form.opening)} " "? "[" {start} "]"'
    rules = [f"{names[name]}: {_call(form, name, schema, token)}" for name, schema in functions.items()]
    try:
        return Grammar.from_lark("\n".join([f"start: {start}", f"call: {' | '.join(names.values())}", *rules]))
    except UsageError as error:
        raise UsageError(f"The tools cannot be used together. {error}") from None


def _call(form: ToolFormat, name: str, schema: Mapping[str, Any], token: Callable[[str], str]) -> str:
    try:
        arguments = f"%json {checked_json(schema)}"
        Grammar.from_json_schema(schema)  # blames the function by name
    except UsageError as error:
        raise UsageError(f"The parameters of the function {name} cannot be used. {error}") from None
    if form.headed:
        return f"{token(form.opening)} {json.dumps(name)} {token('[ARGS]')} {arguments}"
    head, tail = f'{{"name": {json.dumps(name)}, "{form.arguments}": ', "}"
    if not form.closing:
        return f"{json.dumps(head)} {arguments} {json.dumps(tail)}"
    head, tail = json.dumps("\n" + head), json.dumps(tail + "\n")
    return f"{token(form.opening)} {head} {arguments} {tail} {token(form.closing)}"
