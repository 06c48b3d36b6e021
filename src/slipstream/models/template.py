"""Chat templates: a conversation becomes the prompt that the model was trained on.

Templates come out of model files, so they are programs by strangers. They run in Jinja's immutable
sandbox with the extensions that Hugging Face's `apply_chat_template` offers (source:
`transformers.utils.chat_template_utils`), and with three bounds: the number of loop and macro
steps, the time, and the size of every string.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Any, NoReturn

import jinja2
import jinja2.filters
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from slipstream.errors import ChatTemplateError
from slipstream.models.gguf import GgufHeader
from slipstream.models.vocabulary import Vocabulary

Message = Mapping[str, Any]
"""One turn: "role" and "content", and whatever else the template knows ("tool_calls", ...)."""

# The longest templates in use have 30 kB; prompts are bounded by contexts of a few megabytes.
MAX_SOURCE = 1 << 20
MAX_TEXT = 1 << 26
MAX_STEPS = 500_000
MAX_SECONDS = 5.0

# Opening and closing of the model's thinking, most common first. The names of the families are for readers.
THINKING_TAGS = (
    ("<think>", "</think>"),  # DeepSeek R1, Qwen 3, SmolLM 3 and most others
    ("<seed:think>", "</seed:think>"),  # Seed OSS
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<|channel|>analysis<|message|>", "<|end|>"),  # GPT-OSS
)

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What templates call the switch; the second name is Granite's and DeepSeek V3.1's."""


class ChatTemplate:
    """One template with the strings it may insert. It is compiled when it is first needed: `--raw` needs none."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._environment = _Environment()
        self._rendering = Lock()

    @cached_property
    def _template(self) -> jinja2.Template:
        """The compiled template; raises ChatTemplateError if the source is no valid one."""
        if len(self.source) > MAX_SOURCE:
            raise ChatTemplateError(
                f"The model's chat template is impossibly long ({len(self.source)} characters). Use --raw instead."
            )
        try:
            return self._environment.from_string(self.source)
        except (
            jinja2.TemplateError,
            RecursionError,
            SyntaxError,
            ValueError,
            MemoryError,
            OverflowError,
        ) as error:
            raise ChatTemplateError(
                f"The model's chat template cannot be compiled: {_one_line(error)}. Use --raw instead."
            ) from error

    @classmethod
    def from_header(cls, header: GgufHeader) -> "ChatTemplate":
        """The template of a model file; ChatTemplateError if it carries none. A bad one shows when it is used."""
        source = header.chat_template
        if not source:
            raise ChatTemplateError(
                f"{header.path} carries no chat template (it may be a base model); use --raw instead."
            )
        vocabulary = Vocabulary.from_header(header)
        return cls(source, bos_token=vocabulary.text(vocabulary.bos_id), eos_token=vocabulary.text(vocabulary.eos_id))

    @cached_property
    def _variables(self) -> set[str]:
        """What the template takes from outside; nothing if it cannot be compiled."""
        try:
            self._template  # noqa: B018 - its bounds and its errors come before our own look at the source
        except ChatTemplateError:
            return set()
        return jinja2.meta.find_undeclared_variables(self._environment.parse(self.source))

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The strings around the model's thinking, or None if the template knows none."""
        named = next((tags for tags in THINKING_TAGS if tags[0] in self.source or tags[1] in self.source), None)
        return named or (THINKING_TAGS[0] if "enable_thinking" in self.source else None)

    @property
    def supports_thinking(self) -> bool:
        """Whether the template has a thinking part (whether it can be switched is `switches_thinking`)."""
        return self.thinking_tags is not None

    @property
    def switches_thinking(self) -> bool:
        """Whether `enable_thinking` changes anything; it does not in a template that cannot be compiled."""
        return not self._variables.isdisjoint(THINKING_SWITCHES)

    @property
    def takes_tools(self) -> bool:
        """Whether the template describes tools to the model; it does not if it cannot be compiled."""
        return "tools" in self._variables

    def opens_thinking(self, prompt: str) -> bool:
        """Whether a rendered prompt leaves the model inside its thinking, past the opening tag."""
        tags = self.thinking_tags
        return tags is not None and prompt.rfind(tags[0]) > prompt.rfind(tags[1])

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt for a conversation.

        `add_generation_prompt` opens the model's turn. `enable_thinking` None leaves the choice to
        the template. The text may begin with the bos token: whoever tokenises it must not add
        another. Raises ChatTemplateError if the template is invalid, refuses the conversation or
        misbehaves.

        Messages and tools are those of OpenAI's API. Content that is missing is empty. The arguments of tool calls are
        given as objects, which most templates expect, and as text to those that fail then.
        """
        variables: dict[str, Any] = {
            "messages": [_with_arguments_as_objects(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }
        if enable_thinking is not None:
            variables |= dict.fromkeys(THINKING_SWITCHES, enable_thinking)
        if not any(message.get("tool_calls") for message in messages):
            return self._run(variables)
        try:
            return self._run(variables)
        except ChatTemplateError:
            variables["messages"] = [_with_content(message) for message in messages]
            return self._run(variables)

    def _run(self, variables: dict[str, Any]) -> str:
        with self._rendering:  # the bounds are those of one rendering
            return self._run_bounded(variables)

    def _run_bounded(self, variables: dict[str, Any]) -> str:
        self._environment.start()
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                length += len(part)
                self._environment.check_length(length)
        except _Refused as error:
            raise ChatTemplateError(
                f"The model's chat template refuses this conversation: {_one_line(error)}."
            ) from error
        except ChatTemplateError:
            raise
        except Exception as error:
            # A stranger's program can raise anything: TypeError, ZeroDivisionError, ...
            raise ChatTemplateError(
                f"The model's chat template failed: {_one_line(error)}. Use --raw instead."
            ) from error
        return "".join(parts)


def _with_content(message: Message) -> dict[str, Any]:
    """A copy in which content is never null, which templates would write as "None" or fail on."""
    return {**message, "content": ""} if message.get("content", "") is None else dict(message)


def _with_arguments_as_objects(message: Message) -> dict[str, Any]:
    copied = _with_content(message)
    calls = copied.get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        copied["tool_calls"] = [_call_with_object(call) for call in calls]
    return copied


def _call_with_object(call: Any) -> Any:
    """A tool call whose arguments are an object, where they are the text of one."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


class _Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's part for training; here only its body matters."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it as an instance-wide set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounds(NodeTransformer):
    """Counts a step in every loop turn and macro call, and sends `~` through a bounded function."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._step())
        if node.test is not None:  # a filtered loop may turn without entering its body
            node.test = nodes.And(nodes.Call(nodes.Name("__step", "load"), [], [], None, None), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._step())
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._step())
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.Name("__concat", "load"), list(node.nodes), [], None, None)

    @staticmethod
    def _step() -> nodes.Node:
        # An expression statement: unlike an Output node it writes nothing, not even an empty string.
        return nodes.ExprStmt(nodes.Call(nodes.Name("__step", "load"), [], [], None, None))


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds. One per template; not for two threads at once."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    # Padding to any width would make a huge string from nothing, and no chat template needs it.
    forbidden_attributes = frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Folding constants would run the template's expressions while compiling, outside the bounds.
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do", _GenerationTag],
        )
        for name in ("batch", "center", "format", "pprint", "slice", "wordwrap", "xmlattr"):
            del self.filters[name]
        self.filters |= {
            "tojson": _tojson,
            "replace": self._replace,
            "indent": self._indent,
            "join": self._join,
        }
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "__step": self._step,
            "__concat": self._concat,
        }
        del self.globals["lipsum"]
        self.start()

    def start(self) -> None:
        """Reset the bounds for one rendering."""
        self._steps = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def check_length(self, length: int) -> None:
        if length > MAX_TEXT:
            raise ChatTemplateError("The model's chat template makes an impossibly long text. Use --raw instead.")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Bounds().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        assert isinstance(tree, nodes.Template)
        return tree

    def _step(self) -> bool:
        self._steps += 1
        if self._steps > MAX_STEPS or (self._steps % 64 == 0 and time.monotonic() > self._deadline):
            raise ChatTemplateError("The model's chat template does not come to an end. Use --raw instead.")
        return True

    def _concat(self, *values: Any) -> str:
        texts = [str(value) for value in values]
        self.check_length(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise ChatTemplateError("The model's chat template formats with %, which is not supported.")
        if operator == "**":
            raise ChatTemplateError("The model's chat template uses powers, which are not supported.")
        if operator == "*":
            self.check_length(_product_length(left, right))
        if operator == "+":
            self.check_length(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        # Checked here too: the sandbox hands out its own `str.format` before it asks is_safe_attribute.
        if isinstance(obj, str) and attribute in self.forbidden_attributes:
            return self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str | bytes) and attr in self.forbidden_attributes:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls from the template; the string methods that multiply lengths are bounded first."""
        owner = getattr(__obj, "__self__", None)
        method = getattr(__obj, "__name__", "")
        if isinstance(owner, str) and method == "replace" and len(args) >= 2:
            self._check_replace(owner, str(args[1]), str(args[0]))
        if isinstance(owner, str) and method == "join" and args:
            return self._join(args[0], owner)
        return super().call(__context, __obj, *args, **kwargs)

    def _replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:
        self._check_replace(str(text), str(new), str(old))
        return str(text).replace(str(old), str(new), -1 if count is None else count)

    def _join(self, values: Any, separator: Any = "", attribute: str | int | None = None) -> str:
        if attribute is not None:
            values = map(jinja2.filters.make_attrgetter(self, attribute), values)
        texts = [str(value) for value in values]
        self.check_length(sum(map(len, texts)) + len(str(separator)) * len(texts))
        return str(separator).join(texts)

    def _check_replace(self, text: str, new: str, old: str) -> None:
        self.check_length(len(text) + (text.count(old) * len(new) if len(new) > len(old) else 0))

    def _indent(self, text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        margin = len(width) if isinstance(width, str) else int(width)
        self.check_length(len(str(text)) + margin * (str(text).count("\n") + 1))
        return jinja2.filters.do_indent(str(text), width, first, blank)


def _product_length(left: Any, right: Any) -> int:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | bytes | list | tuple) and isinstance(count, int):
            return len(sequence) * max(count, 0)
    # Integers grow without end when they are multiplied in a loop; none that means something has 4096 bits.
    bits = sum(number.bit_length() for number in (left, right) if isinstance(number, int))
    return MAX_TEXT + 1 if bits > 4096 else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's escaping of HTML, which would reach the model as text."""
    if indent is not None and not 0 <= indent <= 16:
        raise ChatTemplateError("The model's chat template indents JSON by an impossible width.")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)


def _strftime_now(layout: str) -> str:
    if len(layout) > 256:
        raise ChatTemplateError("The model's chat template asks for an impossible date format.")
    return datetime.now().strftime(layout)


def _one_line(error: BaseException) -> str:
    """An exception's message as the tail of a sentence."""
    text = " ".join((str(error) or type(error).__name__).split())
    return text[:300].rstrip(".")
