"""What a call to `generate` or `stream` may say."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypedDict

from slipstream.core.params import SamplingParams
from slipstream.errors import UsageError
from slipstream.grammar import Grammar

Message = Mapping[str, Any]
"""One chat message: `{"role": "user", "content": "..."}`."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Text to continue, token ids, or chat messages for the model's template."""


class GenerationOptions(TypedDict, total=False):
    """Keyword arguments of `Engine.generate` and `Engine.stream`. All may be left out.

    max_tokens: tokens to generate, 1 or more; without it until the model ends or the context is full
    stop:       a string or strings that end the text and are left out of it
    logprobs:   report each token's log-probability (true by default)
    top_logprobs: and those of so many of the likeliest tokens in its place, at most 20 (none by default)
    num_draft_tokens: most draft tokens of a round for this text, 0 decodes plainly; None leaves it to the engine
    think:      switch thinking on or off, for templates that can
    grammar:    what the answer may be: a `Grammar`, or a JSON schema (docs/structured.md)
    prediction: the text, or token ids, expected to come out, with changes: it is drafted from and changes no token
    scope:      whose text it is: drafters learn for texts of the same scope alone ("": whoever uses this machine)
    spelled:    control tokens that shall appear in the text, by name ("[TOOL_CALLS]"); others are left out of it
    The others: fields of `SamplingParams`; those left out come from the engine's `defaults`.
    """

    max_tokens: int | None
    stop: str | Sequence[str] | None
    logprobs: bool
    top_logprobs: int
    num_draft_tokens: int | None
    think: bool | None
    grammar: Grammar | Mapping[str, Any] | None
    prediction: str | Sequence[int] | None
    scope: str
    spelled: Sequence[str]
    logit_bias: Mapping[int, float]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None


class SpeculationOptions(TypedDict, total=False):
    """What of the arguments of `Engine.load` and `Engine.sharing` says how much is drafted."""

    speculation: Literal["auto", "on", "off"]
    num_draft_tokens: int | None
    max_slowdown: float


_SAMPLING = {field.name for field in fields(SamplingParams)}


def sampling_params(defaults: SamplingParams, options: GenerationOptions) -> SamplingParams:
    """The defaults with what the call gives; an unknown option is an error that names the nearest valid one."""
    for name in options:
        if name not in GenerationOptions.__annotations__:
            nearest = difflib.get_close_matches(name, GenerationOptions.__annotations__, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else "."
            raise UsageError(f"Unknown option {name}{hint}")
    given: dict[str, Any] = {name: value for name, value in options.items() if name in _SAMPLING}
    return replace(defaults, **given)
