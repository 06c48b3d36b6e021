"""What strangers send becomes a grammar or a sentence, and soon."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jsonschema import validate

from slipstream.errors import RuntimeUnavailableError, SlipstreamError, UnsupportedModelError, UsageError
from slipstream.grammar import Grammar, GrammarConstraint, GrammarVocabulary
from slipstream.grammar import library as library_module
from slipstream.grammar.schema import MOST_CHARACTERS, MOST_LEVELS, MOST_MEMBERS
from tests.fakes import ByteVocabulary, SmallVocabulary

VOCABULARY = GrammarVocabulary(ByteVocabulary())
END = 256
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer"},
        "tags": {"enum": ["a", "b"]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the text may come, and end where it ends."""
    constraint = grammar.constraint(VOCABULARY)
    return all(constraint.advance(byte) for byte in text.encode()) and constraint.advance(END)


def nested(levels: int, key: str = "items") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {key: schema}
    return schema


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        make()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"name": "Bo", "age": 3}', True),
        ('{"name": "Bo", "age": 3, "tags": "b"}', True),
        ('{"name": "Bo", "age": 3, "tags": "c"}', False),
        ('{"name": "Bo"}', False),
        ('{"age": 3, "name": "Bo"}', False),
        ('{"name": "Bo", "age": 3', False),
        ('{"name": "Bo", "age": 3.5}', False),
        ('{"name": "Bo","age": 3}', False),
        ('{"name": "much too long", "age": 3}', False),
        ('{"name": "é\\n", "age": 3}', True),
        (' {"name": "Bo", "age": 3}', False),
    ],
)
def test_a_schema_s_texts(text: str, right: bool) -> None:
    assert accepts(Grammar.from_json_schema(PERSON), text) == right
    if right:
        validate(json.loads(text), PERSON)


def test_any_object() -> None:
    grammar = Grammar.json_object()
    assert accepts(grammar, '{"a": [1, {"b": null}], "c": "d"}')
    assert not accepts(grammar, "[1]")


def test_regular_expressions_match_as_a_whole() -> None:
    grammar = Grammar.from_regex("[ab]{2,3}|é+")
    assert [accepts(grammar, text) for text in ("ab", "aba", "éé", "a", "abab", "xab")] == [True] * 3 + [False] * 3


def test_lark_grammars_nest() -> None:
    grammar = Grammar.from_lark('start: "(" start ")" | "x"')
    assert [accepts(grammar, text) for text in ("x", "((x))", "((x)")] == [True, True, False]


def test_a_mapping_is_a_schema_and_a_grammar_itself() -> None:
    grammar = Grammar.of(PERSON)
    assert Grammar.of(grammar) is grammar
    assert grammar.source == Grammar.from_json_schema(PERSON).source


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "strin"}, "The JSON schema cannot be used: Invalid type: strin."),
        ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: ["uniqueItems"]'),
        ({"not": {}}, 'Unimplemented keys: ["not"]'),
        ({"type": "string", "format": "poem"}, "Unknown format: poem"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"$ref": "#/nowhere"}, "Pointer '/nowhere' does not exist"),
        ({"$ref": "http://localhost:1/schema.json"}, "does not fetch"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum (3) is greater than maximum (2)"),
        ({"enum": []}, "Unsatisfiable"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "Unimplemented"),
        ([], "must be an object, not list"),
        ("{}", "must be an object, not str"),
        (True, "must be an object, not bool"),
        ({1: 2}, "keys of a JSON schema must be strings"),
        ({"const": float("nan")}, "holds nan, which JSON cannot express"),
        ({"const": {1, 2}}, "which JSON cannot express"),
        ({"const": "\ud800"}, "cannot be used"),
        ({"const": 2**63}, "a number as const that cannot be held to"),
        ({"enum": [1, [[2**60]]]}, "as enum"),
        ({"properties": {"default": {"const": {"a": 2**53 + 1}}}}, "as a"),
        ({"type": "integer", "minimum": 10**30, "maximum": 10**31}, "as minimum"),
        ({"type": "integer", "minimum": 1e25, "maximum": 1e26}, "as minimum"),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, "as m"),
        ({"type": "integer", "maximum": -(10**30)}, "as maximum"),
    ],
)
def test_what_cannot_be_is_a_sentence(schema: Any, says: str) -> None:
    assert says in refusal(lambda: Grammar.from_json_schema(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 0, "maximum": 2**63 - 1},
        {"minimum": -(2**62), "maximum": 2**64 - 1},
        {"minimum": 10**17, "maximum": 10**18},
        {"default": 2**70, "examples": [2**70]},
    ],
)
def test_bounds_of_the_usual_widths_are_taken(schema: dict[str, Any]) -> None:
    constraint = Grammar.from_json_schema({"type": "integer", **schema}).constraint(VOCABULARY)
    assert not constraint.complete


HOSTILE: dict[str, Callable[[], object]] = {
    "depth": lambda: nested(10_000),
    "depth of another kind": lambda: nested(10_000, "anyOf"),
    "depth in lists": lambda: {"const": json.loads("[" * 900 + "]" * 900)},
    "no end": lambda: {"$ref": "#"},
    "no end, one after another": lambda: {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "no end within": lambda: {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "no end in both": lambda: {
        "$defs": {"a": {"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1}},
        "$ref": "#/$defs/a",
    },
    "enumeration": lambda: {"enum": [f"word {index}" for index in range(100_000)]},
    "one long word": lambda: {"const": "x" * 10_000_000},
    "members": lambda: {"properties": {f"p{index}": {} for index in range(5_000)}},
    "values": lambda: {"enum": [1] * 1_000_000},
    "references": lambda: _chained(900, lambda one: one),
    "references in lists": lambda: _chained(900, lambda one: {"type": "array", "items": one}),
    "references in objects": lambda: _chained(900, lambda one: {"properties": {"a": one}}),
    "references in references": lambda: _chained(900, lambda one: {"allOf": [one, {"title": "more"}]}),
    "references to nowhere plain": lambda: {"anyOf": [{"$ref": f"#{index}"} for index in range(900)]},
    "joined patterns": lambda: {"allOf": [{"pattern": f".*a.{{{index}}}b"} for index in range(30)]},
    "joined patterns, by reference": lambda: _chained(30, lambda one: {**one, "pattern": f".*a.{{{id(one) % 30}}}b"}),
    "joined patterns of a property": lambda: {
        "allOf": [{"properties": {"a": {"pattern": f".*a.{{{index}}}b"}}} for index in range(30)]
    },
    "references to everything": lambda: {
        "$defs": {"a": {"enum": list(range(20_000))}, "b": {}},
        "anyOf": [{"$ref": f"#/$defs/a/enum/{index}"} for index in range(3_000)],
    },
    "a reference to a place of 5000 digits": lambda: {"$ref": "#/anyOf/" + "1" * 5_000, "anyOf": [{}]},
    "joined choices": lambda: {
        "allOf": [
            {"anyOf": [{"properties": {f"a{factor}": {"const": index}}} for index in range(10)]} for factor in range(20)
        ]
    },
    "a large number": lambda: {"const": 10**5000},
    "a large multiple": lambda: {"type": "integer", "multipleOf": 10**9 + 7},
}


def _chained(count: int, link: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Definitions that each refer to the one before."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for index in range(1, count):
        definitions[f"d{index}"] = link({"$ref": f"#/$defs/d{index - 1}"})
    return {"$defs": definitions, "$ref": f"#/$defs/d{count - 1}"}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_in_no_time(name: str) -> None:
    refusal(lambda: Grammar.from_json_schema(HOSTILE[name]()).constraint(VOCABULARY))


ODD_BUT_FINE: dict[str, Callable[[], dict[str, Any]]] = {
    "2**60 ways": lambda: _chained(60, lambda one: {"allOf": [one, one]}),
    "a recursion with an end": lambda: {
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "$ref": "#/$defs/tree",
    },
    "a list for ever": lambda: {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
    "a string for ever": lambda: {"type": "string", "minLength": 10**9},
    "two patterns": lambda: {"type": "string", "pattern": "^[a-z]+$", "allOf": [{"pattern": "e"}], "minLength": 2},
    "many patterns, one each": lambda: {"properties": {f"p{one}": {"pattern": f"^x{one}"} for one in range(50)}},
    "a pointer with escapes": lambda: {"$defs": {"a/b~c %": {"type": "null"}}, "$ref": "#/$defs/a~1b~0c%20%25"},
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ODD_BUT_FINE)
def test_what_looks_hostile_and_is_not_is_compiled(name: str) -> None:
    constraint = Grammar.from_json_schema(ODD_BUT_FINE[name]()).constraint(VOCABULARY)
    row = np.zeros(258, np.float32)
    constraint.mask(row)
    assert 0 < (row > -np.inf).sum() < 258


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(((a*)*)*)*b",
        "(a|a)*(a|aa)*b",
        "(a{1000}){1000}",
        ".*a.{300}b.{300}",
        "(.*a.*b.*c){9}x.{100}",
        "a{999999999}",
    ],
)
def test_hostile_patterns_are_slow_for_nobody(pattern: str) -> None:
    """An automaton is built as far as the text goes; what would take too much is refused or ends the text."""
    try:
        constraint = Grammar.from_json_schema({"type": "string", "pattern": pattern}).constraint(VOCABULARY)
    except UsageError:
        return
    row = np.zeros(258, np.float32)
    for token in b'"' + b"aab" * 500:
        row.fill(0)
        constraint.mask(row)
        assert (row > -np.inf).any(), "something may always come"
        if not constraint.advance(token):
            break


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [Grammar.from_regex, Grammar.from_lark])
@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "a" + ")" * 10_000,
        "start: " + "(" * 10_000 + '"a"' + ")" * 10_000,
        "(" * 10_000,
        "a" * 1_000_000,
        "\ud800",
        7,
        None,
    ],
    ids=lambda text: str(text)[:9].encode("ascii", "replace").decode(),
)
def test_hostile_texts_are_refused(make: Callable[[Any], Grammar], text: Any) -> None:
    refusal(lambda: make(text))


def test_a_chain_of_rules_is_no_stack_overflow() -> None:
    rules = "\n".join(f'r{index}: r{index + 1} "x"' for index in range(9_000))
    assert "too many rules" in refusal(lambda: Grammar.from_lark(f'start: r0\n{rules}\nr9000: "y"'))


def test_the_limits_are_those_that_are_named() -> None:
    Grammar.from_json_schema(nested(MOST_LEVELS - 2))
    assert str(MOST_LEVELS) in refusal(lambda: Grammar.from_json_schema(nested(MOST_LEVELS)))
    Grammar.from_json_schema({"properties": {f"p{index}": True for index in range(MOST_MEMBERS)}})
    members = {"properties": {f"p{index}": True for index in range(MOST_MEMBERS + 1)}}
    assert str(MOST_MEMBERS) in refusal(lambda: Grammar.from_json_schema(members))
    assert str(MOST_CHARACTERS) in refusal(lambda: Grammar.from_regex("a" * (MOST_CHARACTERS + 1)))


def test_a_grammar_that_names_tokens_the_model_lacks_is_refused_for_this_model() -> None:
    grammar = Grammar.from_lark('start: <|nowhere|> "x"')
    assert "unknown special token" in refusal(lambda: grammar.constraint(VOCABULARY))


def test_control_tokens_are_named_in_a_grammar_and_never_match_text() -> None:
    constraint = Grammar.from_lark('start: <bos> "<end>"').constraint(VOCABULARY)
    assert not constraint.advance(END)
    assert constraint.advance(257)
    assert all(constraint.advance(byte) for byte in b"<end>")
    assert constraint.advance(END)


def test_a_vocabulary_without_an_end_cannot_have_grammars() -> None:
    with pytest.raises(UnsupportedModelError, match="no end token"):
        GrammarVocabulary(SmallVocabulary(3))


def test_without_the_package_a_grammar_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    library_module.library.cache_clear()
    try:
        with pytest.raises(RuntimeUnavailableError, match=r"pip install 'slipstream-decoding\[server\]'"):
            Grammar.json_object()
    finally:
        library_module.library.cache_clear()


def test_importing_slipstream_does_not_need_the_package() -> None:
    program = "import sys; sys.modules['llguidance'] = None; import slipstream.grammar; from slipstream import Engine"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_refusal_is_of_slipstream() -> None:
    assert issubclass(UsageError, SlipstreamError)
    assert isinstance(Grammar.json_object().constraint(VOCABULARY), GrammarConstraint)
