import time
from datetime import datetime
from pathlib import Path

import pytest

from slipstream.errors import ChatTemplateError
from slipstream.models import ChatTemplate, read_header, template
from tests.models.gguf_writer import write_model

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    " + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello <b>"}]


def render(source: str, **options: object) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(HELLO, **options)  # type: ignore[arg-type]


def refusal(source: str) -> str:
    with pytest.raises(ChatTemplateError) as caught:
        render(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_conversation_becomes_a_prompt() -> None:
    assert render(CHATML) == "<|im_start|>user\nHello <b><|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHello <b><|im_end|>\n"


def test_blocks_leave_no_blank_lines() -> None:
    assert render("{% if true %}\n  {% set x = 1 %}\nyes\n{% endif %}\nend") == "yes\nend"


def test_from_a_file_with_its_special_tokens(tmp_path: Path) -> None:
    made = ChatTemplate.from_header(read_header(write_model(tmp_path / "m.gguf")))
    assert made.render(HELLO) == "<s>Hello <b></s>"


def test_a_file_without_a_template(tmp_path: Path) -> None:
    header = read_header(write_model(tmp_path / "m.gguf", tokenizer__chat_template=None))
    with pytest.raises(ChatTemplateError, match=r"no chat template .* use --raw"):
        ChatTemplate.from_header(header)


GEMMA_3 = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}{{ role }}:"
    "{% if m.content is string %}{{ m.content | trim }}{% elif m.content is iterable %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}{{ messages[1:] | length }}"
)
"""What Gemma 3's template does, in our words: roles alternate, and content is text or parts."""
QWEN_3 = (
    "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}"
    "{% set index = messages | length - 1 - loop.index0 %}{% if ns.last < 0 and m.role == 'user' and "
    "not (m.content.startswith('<t>') and m.content.endswith('</t>')) %}{% set ns.last = index %}{% endif %}"
    "{% endfor %}{{ ns.last }}{{ '<think>a</think>\\n\\nb'.split('</think>')[-1].lstrip('\\n') }}"
    "{{ '<think>a</think>'.split('<think>')[-1].rstrip('\\n').strip() }}"
)
"""Qwen 3's: from the last message backwards, and thoughts of earlier ones are cut off."""


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            (
                "{% for n in range(5) %}{% if n == 1 %}{% continue %}{% endif %}"
                "{% if n == 3 %}{% break %}{% endif %}{{ n }}{% endfor %}"
            ),
            "02",
        ),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}'),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hello <b>"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("{{ bos_token ~ 1 ~ eos_token }}", "<s>1</s>"),
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        (
            (
                "{% set ns = namespace(n=0) %}{% for m in messages if m.role == 'user' %}"
                "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
            ),
            "1",
        ),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
        ("{% for m in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for x in [1, 2] %}{{ loop.index0 }}{{ loop.last }}{% endfor %}", "0False1True"),
        (
            "{{ ['a', 'b'] | join(', ') }}|{{ ', '.join(['a', 'b']) }}|{{ messages | join('', attribute='role') }}",
            "a, b|a, b|user",
        ),
        (
            "{{ 'a.b'.replace('.', '--') }}|{{ 'a.b' | replace('.', '-') }}|{{ 'aaa' | replace('a', 'b', 2) }}",
            "a--b|a-b|bba",
        ),
        ("{{ 'x\ny' | indent(2) }}", "x\n  y"),
        ("{{ 'ab' * 2 }}{{ 7 % 4 }}{{ [1] + [2] }}", "abab3[1, 2]"),
        ("{{ messages[0].content.split(' ')[0] | trim | upper }}", "HELLO"),
        ("{{ missing is defined }}{{ enable_thinking is defined }}", "FalseFalse"),
        (GEMMA_3, "user:Hello <b>0"),
        (QWEN_3, "0ba</think>"),
    ],
)
def test_what_templates_rely_on(source: str, text: str) -> None:
    assert render(source) == text


def test_tools_reach_the_template() -> None:
    assert render("{% for t in tools %}{{ t.name }}{% endfor %}", tools=[{"name": "clock"}]) == "clock"


@pytest.mark.parametrize(
    ("source", "takes"),
    [("{% if tools %}a{% endif %}", True), ("{{ tool }} tools", False), ("{{ tools", False), (CHATML, False)],
)
def test_whether_a_template_takes_tools(source: str, takes: bool) -> None:
    assert ChatTemplate(source).takes_tools is takes


CALLED = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "b"},
]


def called(arguments: object) -> str:
    source = "{{ messages[1].tool_calls[0].function.arguments | tojson }}"
    function = {"name": "f", "arguments": arguments}
    message = {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}
    return ChatTemplate(source).render([CALLED[0], message])


def test_arguments_of_calls_are_objects_where_they_can_be() -> None:
    assert called('{"a": [1]}') == called({"a": [1]}) == '{"a": [1]}'
    assert called("") == "{}"
    assert called("{broken") == '"{broken"'
    assert called("[1]") == '"[1]"'
    assert called("[" * 100_000) == f'"{"[" * 100_000}"'
    assert called(None) == "null"


def test_a_template_that_wants_arguments_as_text_gets_them() -> None:
    source = "{% for c in messages[1].tool_calls %}{{ '<' + c.function.arguments + '>' }}{% endfor %}"
    assert ChatTemplate(source).render(CALLED) == "<{}>"
    assert CALLED[1]["tool_calls"][0]["function"]["arguments"] == "{}", "messages are not changed"  # type: ignore[index]


def test_content_that_is_null_is_empty() -> None:
    assert ChatTemplate("{% for m in messages %}{{ m.content + '|' }}{% endfor %}").render(CALLED) == "a||b|"


@pytest.mark.parametrize("calls", ["text", 7, [7], [{"function": 7}], [{}], {"a": 1}])
def test_odd_tool_calls_are_the_template_s_business(calls: object) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": calls}
    assert ChatTemplate("{{ messages[0].content }}").render([message]) == "x"


def test_thinking_is_switched_and_its_tags_known() -> None:
    source = "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{% endif %}"
    made = ChatTemplate(source)
    assert made.supports_thinking
    assert made.switches_thinking
    assert made.thinking_tags == ("<think>", "</think>")
    assert made.render(HELLO, enable_thinking=False) == "<think>\n\n</think>"
    assert made.render(HELLO, enable_thinking=True) == made.render(HELLO) == ""


@pytest.mark.parametrize(
    ("source", "tags", "switches"),
    [
        ("{{ enable_thinking }}", ("<think>", "</think>"), True),
        ("{{ c.split('</think>')[-1] }}", ("<think>", "</think>"), False),
        ("[THINK]{{ 'thinking' }}", ("[THINK]", "[/THINK]"), False),
        ("{% if thinking %}<think>{% endif %}", ("<think>", "</think>"), True),
        (CHATML, None, False),
    ],
)
def test_what_a_template_knows_about_thinking(source: str, tags: tuple[str, str] | None, switches: bool) -> None:
    made = ChatTemplate(source)
    assert (made.thinking_tags, made.supports_thinking, made.switches_thinking) == (tags, bool(tags), switches)


def test_whether_the_prompt_left_thinking_open() -> None:
    made = ChatTemplate("<think>")
    assert made.opens_thinking("hello <think>\n")
    assert not made.opens_thinking("hello <think>\n\n</think>")
    assert not made.opens_thinking("hello")
    assert not ChatTemplate(CHATML).opens_thinking("<think>")


def test_messages_are_not_changed() -> None:
    assert "unsafe" in refusal("{{ messages[0].update({'role': 'x'}) }}")
    assert HELLO == [{"role": "user", "content": "Hello <b>"}]


def test_a_refusal_of_the_template_is_passed_on() -> None:
    message = refusal("{{ raise_exception('Conversation roles must\n alternate.') }}")
    assert message == "The model's chat template refuses this conversation: Conversation roles must alternate."


@pytest.mark.parametrize("source", ["{% if %}", "{{ " + "(" * 5000, "{% for x in y %}", "{{ 'x' | nofilter }}"])
def test_a_template_that_does_not_compile(source: str) -> None:
    assert "cannot be compiled" in refusal(source)


@pytest.mark.parametrize("source", ["{% if %}<think>", "<think>{{ " + "(" * 5000, "<think>" * template.MAX_SOURCE])
def test_a_template_is_not_compiled_before_it_is_needed(tmp_path: Path, source: str) -> None:
    made = ChatTemplate.from_header(read_header(write_model(tmp_path / "m.gguf", tokenizer__chat_template=source)))
    assert made.thinking_tags == ("<think>", "</think>")
    assert made.opens_thinking("<think>")
    assert not made.switches_thinking
    with pytest.raises(ChatTemplateError, match="Use --raw"):
        made.render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages.nope.nope }}",
        "{{ ''.__class__.__mro__ }}",
        "{% include 'x' %}",
        "{{ messages[9].role.x }}",
    ],
)
def test_a_template_that_fails(source: str) -> None:
    assert "failed" in refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) if false %}{% endfor %}" * 20,
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    ],
)
def test_endless_templates_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MAX_STEPS", 20_000)
    assert "does not come to an end" in refusal(source)


def test_slow_templates_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MAX_SECONDS", 0.05)
    assert "does not come to an end" in refusal("{% for a in range(99999) %}{{ messages }}{% endfor %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * [1] }}",
        "{% set ns = namespace(x='aaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(999) %}{{ x }}{% endfor %}",
        "{{ ('a' * 1000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000) | replace('a', 'b' * 1000000) }}",
        "{{ [1, 2] | join('b' * 60000000) }}{{ ('b' * 60000000).join([1, 2]) }}",
        "{{ 'x' | indent(10000000000, true) }}",
    ],
)
def test_huge_texts_are_refused_before_they_are_made(source: str) -> None:
    start = time.perf_counter()
    assert "impossibly long text" in refusal(source)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a%1000000000d' % 3 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ 'a'.center(10000000000) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ ('' | attr('format'))(1) }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ [1] | batch(10000000000, 'x') | list }}",
        "{{ [1] | tojson(indent=10000000000) }}",
        "{{ strftime_now('%Y' * 1000) }}",
        "{{ lipsum(1000000) }}",
    ],
)
def test_ways_to_pad_are_closed(source: str) -> None:
    assert "chat template" in refusal(source)


def test_an_impossibly_long_source() -> None:
    assert "impossibly long (" in refusal("x" * (template.MAX_SOURCE + 1))


@pytest.mark.model
def test_the_real_model_s_template(smollm2: Path) -> None:
    made = ChatTemplate.from_header(read_header(smollm2))
    assert made.render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
