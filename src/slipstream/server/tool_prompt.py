"""Tools for models whose template knows none: described in the system prompt, calls and results written as text."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from slipstream.errors import ChatTemplateError
from slipstream.models import ChatTemplate

Message = Mapping[str, Any]

_INTRODUCTION = """You can call functions to help the user. Each line between <tools> and </tools> describes one:
<tools>
{tools}
</tools>
To call one, write a JSON object between <tool_call> and </tool_call>:
<tool_call>
{{"name": "function name", "arguments": {{"argument name": "value"}}}}
</tool_call>
{choice}"""
_FREE = "If no function helps, answer in plain words."
_FORCED = "Answer with a function call and nothing else."


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, forced: bool) -> list[Message]:
    """Messages that any template takes, with the tools in the system prompt.

    Calls in earlier answers become text in the same form, and results become messages of the user.
    """
    plain: list[Message] = []
    for are_results, group in groupby(messages, lambda message: message.get("role") == "tool"):
        if are_results:  # one message, because many templates want user and assistant to alternate
            results = [f"<tool_response>\n{_text(message)}\n</tool_response>" for message in group]
            plain.append({"role": "user", "content": "\n".join(results)})
        else:
            plain += [_with_calls_as_text(message) for message in group]
    return _introduced(plain, tools, forced=forced) if tools else plain


def render_described(template: ChatTemplate, messages: Sequence[Message], *, think: bool | None = None) -> str:
    """Render, with the system prompt in front of what the user said first where a template has no place for it."""
    try:
        return template.render(messages, enable_thinking=think)
    except ChatTemplateError:
        if len(messages) < 2 or messages[0].get("role") != "system" or messages[1].get("role") != "user":
            raise
        first = {**messages[1], "content": f"{_text(messages[0])}\n\n{_text(messages[1])}"}
        return template.render([first, *messages[2:]], enable_thinking=think)


def _introduced(messages: list[Message], tools: Sequence[Mapping[str, Any]], *, forced: bool) -> list[Message]:
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools=lines, choice=_FORCED if forced else _FREE)
    if messages and messages[0].get("role") in ("system", "developer"):
        return [{"role": "system", "content": f"{_text(messages[0])}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _with_calls_as_text(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    parts = [_text(message), *(_as_text(call) for call in message["tool_calls"])]
    return {"role": "assistant", "content": "\n".join(part for part in parts if part)}


def _as_text(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function.get("name", ""), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _text(message: Message) -> str:
    """Content as text; the text parts of a list of parts."""
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)
