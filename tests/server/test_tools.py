"""What a request says about tools becomes a prompt, a grammar and a parser that fit each other."""

import json
import random
from typing import Any

import numpy as np
import pytest
from jsonschema import validate

from slipstream.errors import ChatTemplateError, UsageError
from slipstream.grammar import Grammar, GrammarVocabulary
from slipstream.models import ChatTemplate
from slipstream.server.tool_grammar import MOST_CALLS
from slipstream.server.tools import MOST_TOOLS, Tools
from tests.fakes import ByteVocabulary
from tests.server.templates import NO_SYSTEM, TEMPLATES

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "description": "The <weather>.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "stop"}},
]
SCHEMAS = {"get_weather": WEATHER, "stop": NOTHING}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ASK = {"role": "user", "content": "How is it?"}
HISTORY: list[dict[str, Any]] = [
    ASK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_0123456789",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_0123456789", "content": "sunny"},
]


class Controls(ByteVocabulary):
    """Mistral's control tokens, and Hermes' tags as ordinary tokens."""

    NAMES = ("[TOOL_CALLS]", "[ARGS]", "<tool_call>", "</tool_call>")
    size = 258 + len(NAMES)

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        for name in self.NAMES:
            if name in text and (parse_special or name.startswith("<")):
                before, _, after = text.partition(name)
                parts = [self.tokenize(part, add_bos=False, parse_special=parse_special) for part in (before, after)]
                return [*parts[0], 258 + self.NAMES.index(name), *parts[1]]
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        if token < 258:
            return super().token_bytes(token)
        name = self.NAMES[token - 258]
        return name.encode() if name.startswith("<") else b""

    def token_name(self, token: int) -> str:
        return self.NAMES[token - 258] if token >= 258 else super().token_name(token)


VOCABULARIES = {"bytes": ByteVocabulary(), "controls": Controls()}


def make(template: str = "hermes", tools: Any = TOOLS, choice: Any = None, **options: Any) -> Tools:
    return Tools(TEMPLATES[template], ByteVocabulary(), tools, choice, **options)


def random_answer(grammar: Grammar, vocabulary: ByteVocabulary, seed: int) -> str:
    """A text of the grammar, tokens drawn from those that may come; the text as the engine would give it."""
    generator, constraint = random.Random(seed), grammar.constraint(GrammarVocabulary(vocabulary))
    text, row = b"", np.zeros(vocabulary.size, np.float32)
    while True:
        row.fill(0)
        constraint.mask(row)
        token = generator.choice(np.flatnonzero(row == 0).tolist())
        assert constraint.advance(token)
        if token in vocabulary.end_tokens:
            return text.decode()
        text += vocabulary.token_bytes(token) or vocabulary.token_name(token).encode()


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_has_to_be_is_one_that_the_parser_finds_and_the_schema_allows(
    template: str, vocabulary: str, choice: Any
) -> None:
    tools = Tools(TEMPLATES[template], VOCABULARIES[vocabulary], TOOLS, choice)
    grammar = tools.grammar()
    assert grammar is not None
    names = set()
    for seed in range(12):
        parser = tools.parser()
        text = random_answer(grammar, VOCABULARIES[vocabulary], seed)
        assert parser.push(text).content + parser.finish().content == ""
        assert 1 <= len(parser.calls) <= (1 if choice == NAMED else MOST_CALLS)
        for call in parser.calls:
            names.add(call.name)
            validate(json.loads(call.arguments), {**SCHEMAS[call.name], "additionalProperties": False})
    assert names == ({"get_weather"} if choice == NAMED else {"get_weather", "stop"})


def test_control_tokens_are_used_as_such_where_the_vocabulary_has_them() -> None:
    vocabulary = Controls()
    for template, first in (("mistral", 258), ("mistral headed", 258), ("hermes", 260)):
        grammar = Tools(TEMPLATES[template], vocabulary, TOOLS, "required").grammar()
        assert grammar is not None
        constraint = grammar.constraint(GrammarVocabulary(vocabulary))
        assert list(constraint.forced())[:1] == [first]
        row = np.zeros(vocabulary.size, np.float32)
        constraint.mask(row)
        assert np.flatnonzero(row == 0).tolist() == [first]


def test_one_call_where_several_are_not_wanted() -> None:
    grammar = make(choice="required", parallel=False).grammar()
    assert grammar is not None
    assert {random_answer(grammar, ByteVocabulary(), seed).count("<tool_call>") for seed in range(20)} == {1}


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_an_answer_that_need_not_be_a_call_has_no_grammar(choice: str | None) -> None:
    assert make(choice=choice).grammar() is None


def test_auto_finds_calls_and_none_does_not() -> None:
    text = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    for choice, found in ((None, 1), ("auto", 1), ("none", 0), (NAMED, 0)):
        parser = make(choice=choice).parser()
        content = parser.push(text).content + parser.finish().content
        assert (len(parser.calls), content) == (found, "" if found else text)


def test_without_tools_nothing_changes() -> None:
    for tools in (None, []):
        made = make(tools=tools)
        assert made.choice == ("none", None)
        assert made.grammar() is None
        assert made.spelled == ()
        assert made.parser().push("<tool_call>{").content == "<tool_call>{"
        assert made.render([ASK]) == TEMPLATES["hermes"].render([ASK])


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_tools_and_what_came_of_them_are_in_the_prompt(template: str) -> None:
    prompt = make(template).render(HISTORY)
    assert '"name": "get_weather", "description": "The <weather>."' in prompt
    assert "sunny" in prompt
    if template != "llama":  # ours does not write earlier calls
        assert "Rome" in prompt
    assert "None" not in prompt
    hidden = make(template, choice="none").render(HISTORY)
    assert "The <weather>." not in hidden
    assert "sunny" in hidden


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_parser_sees_the_control_tokens_of_its_format(template: str) -> None:
    made = make(template)
    assert made.format.opening in made.spelled
    assert make(template, choice="none").spelled == ()


def test_arguments_are_objects_for_the_template() -> None:
    assert '"arguments": {"city": "Rome"}}</tool_call>' in make().render(HISTORY)


def test_mistral_gets_ids_that_it_takes_and_the_same_for_call_and_result() -> None:
    prompt = make("mistral").render(HISTORY)
    identity = prompt.partition("[TOOL_RESULTS]")[2].partition("sunny")[0]
    assert len(identity) == 9
    assert prompt.count(identity) == 2
    short = json.loads(json.dumps(HISTORY).replace("call_0123456789", "abcdefgh9"))
    assert make("mistral").render(short).count("abcdefgh9") == 2


def test_a_template_without_tools_gets_them_in_the_system_prompt() -> None:
    system = {"role": "system", "content": "Be brief."}
    prompt = make("described").render([system, *HISTORY, {**HISTORY[2], "content": "warm"}])
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions")
    assert prompt.count("<|im_start|>system") == 1
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>' in prompt
    results = "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response><|im_end|>"
    assert f"<|im_start|>user\n{results}" in prompt, "two results are one turn"
    assert "plain words" in prompt
    forced = make("described", choice="required").render([ASK])
    assert "plain words" not in forced
    assert "and nothing else" in forced


def test_a_template_without_system_prompts_gets_them_before_the_first_question() -> None:
    template = ChatTemplate(NO_SYSTEM)
    prompt = Tools(template, ByteVocabulary(), TOOLS).render([ASK])
    assert prompt.startswith("[user]You can call functions")
    assert prompt.endswith("\n\nHow is it?")
    with pytest.raises(ChatTemplateError, match="no system"):
        Tools(template, ByteVocabulary()).render([{"role": "system", "content": "a"}])


def test_content_may_be_parts() -> None:
    parts = {"role": "tool", "content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]}
    assert "<tool_response>\nsun\nny\n" in make("described").render([ASK, parts])


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ("get_weather", "tools must be a list"),
        ([1], r"tools\[0\] must be"),
        ([{"type": "retrieval"}], r"tools\[0\] must be"),
        ([{"type": "retrieval", "function": {"name": "a"}}], r"tools\[0\] must be"),
        ([{"type": "function", "function": {"name": "a b"}}], r"tools\[0\] needs a name"),
        ([{"type": "function", "function": {"name": "a" * 65}}], r"tools\[0\] needs a name"),
        ([{"type": "function", "function": {}}], r"tools\[0\] needs a name"),
        ([TOOLS[1], TOOLS[1]], "Two tools are called stop"),
        ([{"function": {"name": "a", "parameters": []}}], "parameters of the function a"),
        ([{"function": {"name": "a", "parameters": {"type": "array"}}}], "parameters of the function a"),
        ([{"function": {"name": f"f{n}"}} for n in range(MOST_TOOLS + 1)], f"at most {MOST_TOOLS}"),
    ],
)
def test_impossible_tools_are_a_sentence(tools: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make(tools=tools)


@pytest.mark.parametrize(
    ("tools", "choice", "says"),
    [
        (TOOLS, "maybe", "tool_choice must be"),
        (TOOLS, {"type": "function"}, "tool_choice must be"),
        (TOOLS, 7, "tool_choice must be"),
        (TOOLS, {"type": "function", "function": {"name": "go"}}, "'go', which is not among the tools"),
        (None, "required", "there are no tools"),
        ([], NAMED, "there are no tools"),
    ],
)
def test_an_impossible_choice_is_a_sentence(tools: Any, choice: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make(tools=tools, choice=choice)


def test_parameters_that_are_not_supported_are_blamed_by_name_where_they_are_needed() -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"not": {}}}}
    assert make(tools=[odd]).grammar() is None
    with pytest.raises(UsageError, match=r"function odd cannot be used\. .*Unimplemented keys"):
        make(tools=[odd], choice="required").grammar()


def test_tools_that_are_too_much_together_are_refused() -> None:
    wide = {"type": "object", "properties": {"a": {"enum": ["x" * 50_000]}}}
    tools = [{"function": {"name": f"f{number}", "parameters": wide}} for number in range(8)]
    with pytest.raises(UsageError, match="cannot be used together"):
        make(tools=tools, choice="required").grammar()


def test_as_many_tools_as_may_be_make_a_grammar() -> None:
    tools = [{"function": {"name": f"f{number}", "parameters": WEATHER}} for number in range(MOST_TOOLS)]
    assert make(tools=tools, choice="required").grammar() is not None
