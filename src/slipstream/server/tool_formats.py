"""How models write tool calls, and which way a model's template teaches."""

from dataclasses import dataclass

from slipstream.models import ChatTemplate


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls.

    opening, closing: what stands around the JSON of a call; "" where nothing does
    arguments: what the JSON calls a function's arguments
    listed:    one list holds all calls
    headed:    the name stands before the arguments and not in the JSON: `[TOOL_CALLS]name[ARGS]{...}`
    bare:      the call is the whole answer; the opening, if there is one, is left out by most models
    native:    the template describes the tools itself
    control:   control tokens that have to appear in the text for the parser to see them
    """

    name: str
    opening: str
    closing: str = ""
    arguments: str = "arguments"
    listed: bool = False
    headed: bool = False
    bare: bool = False
    native: bool = True
    control: tuple[str, ...] = ()


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", control=("<tool_call>", "</tool_call>"))
"""Hermes 2 Pro, Qwen 2.5 and 3, SmolLM 3 and many others: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`."""
LLAMA = ToolFormat("llama", "<|python_tag|>", arguments="parameters", bare=True, control=("<|python_tag|>",))
"""Llama 3.1 to 3.3: `{"name": ..., "parameters": ...}`."""
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", listed=True, control=("[TOOL_CALLS]",))
"""Mistral until 2024: `[TOOL_CALLS][{"name": ..., "arguments": ...}]`."""
MISTRAL_HEADED = ToolFormat("mistral", "[TOOL_CALLS]", headed=True, control=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
"""Mistral since then: `[TOOL_CALLS]name[ARGS]{...}`."""
DESCRIBED = ToolFormat("described", HERMES.opening, HERMES.closing, native=False, control=HERMES.control)
"""Hermes' way, taught in the system prompt (`server.tool_prompt`), where a template knows no tools or writes calls in a
way that is not known here."""


def tool_format(template: ChatTemplate) -> ToolFormat:
    """How the model behind a template writes calls."""
    source = template.source
    if not template.takes_tools:
        return DESCRIBED
    if "[TOOL_CALLS]" in source:
        return MISTRAL_HEADED if "[ARGS]" in source else MISTRAL
    other = ("<function=", "<arg_key>")  # XML within the same tags: Qwen 3 Coder, GLM 4.5
    if HERMES.opening in source and not any(tag in source for tag in other):
        return HERMES
    if "<|start_header_id|>" in source and '"parameters"' in source.replace("\\", ""):
        return LLAMA
    return DESCRIBED
