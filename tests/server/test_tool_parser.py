"""Calls are found however the text is cut, and what is no call stays content to the letter."""

import json
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.server.tool_formats import HERMES, LLAMA, MISTRAL, MISTRAL_HEADED, ToolFormat
from slipstream.server.tool_parser import MOST_LEVELS, ToolCallParser, make_id

FORMATS = {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL, "headed": MISTRAL_HEADED}
NAMES = ["f", "get_weather"]
Outcome = tuple[str, list[tuple[str, str]]]


def parse(form: ToolFormat, *pieces: str, names: list[str] = NAMES) -> Outcome:
    """(content, [(name, arguments)]) of an answer that came in these pieces."""
    ids = count()
    parser = ToolCallParser(form, names, lambda: f"id{next(ids)}")
    parsed = [*(parser.push(piece) for piece in pieces), parser.finish()]
    given_out = [call for one in parsed for call in one.calls]
    assert given_out == parser.calls
    assert [(call.index, call.id) for call in given_out] == [(n, f"id{n}") for n in range(len(given_out))]
    return "".join(one.content for one in parsed), [(call.name, call.arguments) for call in given_out]


WEATHER = ("get_weather", '{"city": "Paris"}')
CASES: dict[str, list[tuple[str, Outcome]]] = {
    "hermes": [
        ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', ("", [("f", "{}")])),
        ('<tool_call>{"arguments":{"city":"Paris"},"name":"get_weather"}</tool_call>', ("", [WEATHER])),
        ('I look.\n\n<tool_call>{"name": "f"}</tool_call>\n', ("I look.", [("f", "{}")])),
        (
            '<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> Done.',
            ("Done.", [("f", "{}"), ("f", '{"a": 1}')]),
        ),
        ('<tool_call>[{"name": "f"}, {"name": "f"}]</tool_call>', ("", [("f", "{}"), ("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", [("f", '{"a": 1}')])),
        ('<tool_call>{"function": {"name": "f", "parameters": {"a": 1}}}</tool_call>', ("", [("f", '{"a": 1}')])),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>{\\"}"}}</tool_call>',
            ("", [("f", '{"a": "</tool_call>{\\"}"}')]),
        ),
        ('<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', ("", [("f", '{"a": "x\\ny"}')])),
        ('<tool_call>{"name": "f"}', ("", [("f", "{}")])),
        ('<tool_call>{"name": "f"}</tool', ("", [("f", "{}")])),
        ('<tool_call>{"name": "f"} and so on', ("and so on", [("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": {"é": "\\u00e9"}}</tool_call>', ("", [("f", '{"é": "é"}')])),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}', ("", [("f", '{"a": "\\ud800"}')])),
        ("Just text. ", ("Just text. ", [])),
        (" \n", (" \n", [])),
        ("", ("", [])),
        ("a < b <tool> <tool_call", ("a < b <tool> <tool_call", [])),
    ],
    "llama": [
        ('{"name": "get_weather", "parameters": {"city": "Paris"}}', ("", [WEATHER])),
        ('\n <|python_tag|>{"name": "f", "parameters": {}}', ("", [("f", "{}")])),
        ('{"name": "f"}; {"name": "f"}', ("", [("f", "{}"), ("f", "{}")])),
        ('{"name": "f"} then words', ("then words", [("f", "{}")])),
        ('{"name": "elsewhere", "parameters": {}}', ('{"name": "elsewhere", "parameters": {}}', [])),
        ('{"answer": 1} {"name": "f"}', ('{"answer": 1} {"name": "f"}', [])),
        ('Words {"name": "f"}', ('Words {"name": "f"}', [])),
        ("<|python_tag|>print(1)", ("<|python_tag|>print(1)", [])),
        (" <|python", (" <|python", [])),
    ],
    "mistral": [
        ('[TOOL_CALLS] [{"name": "f", "arguments": {}}]', ("", [("f", "{}")])),
        (
            'So:[TOOL_CALLS][{"name": "f", "id": "x"}, {"name": "get_weather", "arguments": {"city": "Paris"}}]',
            ("So:", [("f", "{}"), WEATHER]),
        ),
        ('[TOOL_CALLS]{"name": "f"}', ("", [("f", "{}")])),
        ("[TOOL_CALLS][]", ("[TOOL_CALLS][]", [])),
        ('[TOOL_CALLS][{"name": "f"}, 1]', ('[TOOL_CALLS][{"name": "f"}, 1]', [])),
    ],
    "headed": [
        ('[TOOL_CALLS]f[ARGS]{"a": 1}', ("", [("f", '{"a": 1}')])),
        ('Hm. [TOOL_CALLS]f{"a": 1}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}', ("Hm.", [("f", '{"a": 1}'), ("f", "{}")])),
        ("[TOOL_CALLS]f[ARGS][1]", ("[TOOL_CALLS]f[ARGS][1]", [])),
        ("[TOOL_CALLS]f: {}", ("[TOOL_CALLS]f: {}", [])),
        ("[TOOL_CALLS]" + "f" * 300, ("[TOOL_CALLS]" + "f" * 300, [])),
    ],
}
ALL = [
    pytest.param(form, text, expected, id=f"{form} {text[:50]!a}") for form in CASES for text, expected in CASES[form]
]


@pytest.mark.parametrize(("form", "text", "expected"), ALL)
def test_an_answer_becomes_content_and_calls(form: str, text: str, expected: Outcome) -> None:
    assert parse(FORMATS[form], text) == expected
    assert parse(FORMATS[form], *text) == expected, "one character at a time"


BROKEN = [
    '{"name": "f", "arguments": {"a": 1}',
    '{"name": "f", "arguments": {"a": 1]}',
    "{'name': 'f'}",
    '{"name": "f",}',
    '{"name": "f"',
    '{"name": "f", "arguments": "{"}',
    '{"name": "f", "arguments": [1]}',
    '{"name": ["f"]}',
    '{"name": "nobody offered this"}',
    '{"name": "f", "arguments": {"a": NaN}}',
    '{"name": "f", "arguments": {"a": 1e999}}',
    '{"name": "f", "arguments": "{\\"a\\": NaN}"}',
    '{"name": "f", "arguments": {"a": ' + "1" * 5000 + "}}",
    '{"name": "f", "arguments": ' + "[" * 5000,
    '{"name": "f", "arguments": "' + "[" * 100_000 + '"}',
    "null",
    "f(a=1)",
    "",
]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_call_is_content_to_the_letter(text: str) -> None:
    whole = f"Look: \n<tool_call>\n{text}\n</tool_call>\nAnd more"
    assert parse(HERMES, whole) == (whole, [])
    assert parse(HERMES, whole[:60], whole[60:]) == (whole, [])


@pytest.mark.parametrize("length", range(len("</tool_call>")))
def test_a_call_that_is_cut_within_its_closing_is_one(length: int) -> None:
    text = '<tool_call>{"name": "f"}' + "</tool_call>"[:length]
    assert parse(HERMES, text) == ("", [("f", "{}")])
    assert parse(HERMES, *text) == ("", [("f", "{}")])


def test_after_something_broken_a_call_is_found_again() -> None:
    text = '<tool_call>oops</tool_call> <tool_call>{"name": "f"}</tool_call>'
    assert parse(HERMES, text) == ("<tool_call>oops</tool_call>", [("f", "{}")])
    assert parse(HERMES, '<tool_call><tool_call>{"name": "f"}</tool_call>') == ("<tool_call>", [("f", "{}")])


CALL = '{"name": "f", "arguments": {"a": "}\\""}}'
PIECES = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "f[ARGS]",
    "<|python_tag|>",
    "</",
    CALL,
    '{"name": "f"}',
    "words",
]
PIECES += [f"<tool_call>{CALL}</tool_call>", f"<tool_call>\n{CALL}", f"[TOOL_CALLS][{CALL}, {CALL}]", "[TOOL_CALLS]f{}"]
PIECES += list('[]{}"\\< \n;,é1')


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(list(FORMATS)),
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_where_the_text_is_cut_does_not_matter(form: str, text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    whole = parse(FORMATS[form], text)
    assert parse(FORMATS[form], *pieces) == whole
    assert parse(FORMATS[form], *text) == whole
    for _, arguments in whole[1]:
        assert isinstance(json.loads(arguments), dict)
    if not whole[1]:
        assert whole[0] == text


@pytest.mark.parametrize("form", FORMATS)
def test_without_tools_all_text_is_content_at_once(form: str) -> None:
    parser = ToolCallParser(FORMATS[form], [])
    text = '<tool_call>{"name": "f"}</tool_call>'
    assert parser.push(text) == (text, [])
    assert parser.finish() == ("", [])


def test_content_is_not_held_back_longer_than_it_has_to_be() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert [parser.push(piece).content for piece in ("Hello", " wor", "ld ", "<too", "th>", "!")] == [
        "Hello",
        " wor",
        "ld",
        "",
        " <tooth>",
        "!",
    ]


def test_deltas_have_openai_s_shape() -> None:
    parser = ToolCallParser(HERMES, NAMES, lambda: "abc")
    parsed = parser.push('Well. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>')
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert parsed.deltas() == [
        {"content": "Well."},
        {"tool_calls": [{"index": 0, "id": "abc", "type": "function", "function": function}]},
    ]
    assert parser.calls[0].as_message() == {"id": "abc", "type": "function", "function": function}
    assert parser.finish().deltas() == []


def test_ids_are_nine_letters_and_digits_and_differ() -> None:
    ids = {make_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 9 and one.isalnum() for one in ids)


def test_depth_is_limited() -> None:
    deep = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * (MOST_LEVELS - 2) + "]" * (MOST_LEVELS - 2) + "}}"
    assert parse(HERMES, deep)[1]
    assert not parse(HERMES, deep.replace("[", "[[").replace("]", "]]"))[1]
