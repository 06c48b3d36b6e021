"""What a request says about tools, and what that means for one model: its prompt, its grammar, its answers."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from slipstream.core.protocols import Vocabulary
from slipstream.errors import UsageError
from slipstream.grammar import Grammar
from slipstream.grammar.vocabulary import special_name
from slipstream.models import ChatTemplate
from slipstream.server.tool_formats import MISTRAL, ToolFormat, tool_format
from slipstream.server.tool_grammar import grammar_of_calls
from slipstream.server.tool_parser import ToolCallParser
from slipstream.server.tool_prompt import described, render_described

MOST_TOOLS = 128

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Choice(NamedTuple):
    """What `tool_choice` came to. function: the one that must be called, None for any."""

    mode: Literal["none", "auto", "required"]
    function: str | None = None


class Tools:
    """Functions that a request offers to the model behind a template.

    tools:    OpenAI's list of functions; None or empty for none
    choice:   "none", "auto" (also None), "required", or `{"type": "function", "function": {"name": ...}}`; the last two
              make the answer a call whose arguments follow the function's schema
    parallel: whether an answer that has to be a call may hold several

    Raises UsageError, which names what is wrong.
    """

    def __init__(
        self,
        template: ChatTemplate,
        vocabulary: Vocabulary,
        tools: object = None,
        choice: object = None,
        *,
        parallel: bool = True,
    ) -> None:
        offered = _checked_tools(tools)
        self.choice = _checked_choice(choice, offered)
        self.tools: list[Tool] = [] if self.choice.mode == "none" else list(offered.values())
        self.format: ToolFormat = tool_format(template)
        self._template = template
        self._vocabulary = vocabulary
        self._parallel = parallel

    @property
    def spelled(self) -> tuple[str, ...]:
        """For the engine's option of this name: control tokens that the parser has to see."""
        return self.format.control if self.tools else ()

    def render(self, messages: Sequence[Message], *, think: bool | None = None) -> str:
        """The prompt: the conversation with earlier calls and their results, and the tools.

        Raises ChatTemplateError where the template refuses the conversation, UsageError for calls that are none.
        """
        for message in messages:
            _check_calls(message)
        if not self.format.native:
            plain = described(messages, self.tools, forced=self.choice.mode == "required")
            return render_described(self._template, plain, think=think)
        if self.format.name == MISTRAL.name:
            messages = [_with_short_ids(message) for message in messages]
        return self._template.render(messages, enable_thinking=think, tools=self.tools or None)

    def parser(self) -> ToolCallParser:
        """For one answer. Where no tools are offered it takes all text for content."""
        return ToolCallParser(self.format, self._schemas())

    def grammar(self) -> Grammar | None:
        """What makes the answer a call, None where it need not be one.

        Raises UsageError for parameters that are no schema, or one that is not supported.
        """
        if self.choice.mode != "required":
            return None
        several = self._parallel and self.choice.function is None
        return grammar_of_calls(self.format, self._schemas(), self._spelling, several=several)

    def _schemas(self) -> dict[str, Mapping[str, Any]]:
        """Schemas of the arguments of what may be called."""
        functions = [tool["function"] for tool in self.tools]
        chosen = self.choice.function
        return {one["name"]: _closed(one.get("parameters")) for one in functions if chosen in (None, one["name"])}

    def _spelling(self, name: str) -> str:
        """How a grammar writes an opening or closing of this model."""
        tokens = self._vocabulary.tokenize(name, add_bos=False, parse_special=True)
        is_control = len(tokens) == 1 and not self._vocabulary.token_bytes(tokens[0])
        return special_name(name) if is_control else json.dumps(name)


def _checked_tools(tools: object) -> dict[str, Tool]:
    """The tools by name."""
    if tools is None:
        return {}
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise UsageError("tools must be a list of functions.")
    if len(tools) > MOST_TOOLS:
        raise UsageError(f"There are {len(tools)} tools; at most {MOST_TOOLS} are supported.")
    named: dict[str, Tool] = {}
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
            raise UsageError(f'tools[{number}] must be {{"type": "function", "function": {{"name": ...}}}}.')
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"tools[{number}] needs a name of 1 to 64 letters, digits, dots, dashes or underscores.")
        if name in named:
            raise UsageError(f"Two tools are called {name}; give each a name of its own.")
        if parameters is not None and (
            not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object"
        ):
            raise UsageError(f'The parameters of the function {name} must be a JSON schema with "type": "object".')
        named[name] = tool
    return named


def _check_calls(message: Message) -> None:
    """Calls of earlier answers come from clients, too."""
    calls = message.get("tool_calls")
    if not calls:
        return
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if (
            not isinstance(function, Mapping)
            or not isinstance(function.get("name"), str)
            or not isinstance(function.get("arguments", ""), str | Mapping)
        ):
            raise UsageError('tool_calls of a message must be {"function": {"name": ..., "arguments": ...}} each.')


def _checked_choice(choice: object, offered: Mapping[str, Tool]) -> Choice:
    if choice is None or choice == "auto":
        return Choice("auto" if offered else "none")
    if choice == "none":
        return Choice("none")
    if not offered:
        raise UsageError("tool_choice asks for a call, but there are no tools.")
    if choice == "required":
        return Choice("required")
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise UsageError(
            'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}.'
        )
    if name not in offered:
        raise UsageError(f"tool_choice names the function {name[:64]!r}, which is not among the tools.")
    return Choice("required", name)


def _closed(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The schema of a call's arguments: an object, and no arguments but those that are named if any are."""
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema = {"type": "object", **parameters}
    return {"additionalProperties": False, **schema} if "properties" in schema else schema


def _with_short_ids(message: Message) -> Message:
    """Mistral's templates refuse ids that are not nine letters and digits, which those of other models are not."""
    changed = dict(message)
    if isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = _short(message["tool_call_id"])
    if message.get("tool_calls"):
        changed["tool_calls"] = [{**call, "id": _short(str(call.get("id", "")))} for call in message["tool_calls"]]
    return changed


def _short(identity: str) -> str:
    if re.fullmatch("[A-Za-z0-9]{9}", identity):
        return identity
    return hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:9]
