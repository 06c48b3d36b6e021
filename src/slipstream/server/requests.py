"""What clients may send: OpenAI's fields, llama-server's sampling options, and `speculation`.

Unknown fields are ignored, as OpenAI does; impossible values are refused.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from slipstream.engine import GenerationOptions
from slipstream.policy.fixed import MOST_DRAFT_TOKENS
from slipstream.server.tools import MOST_TOOLS

MOST_CHOICES = 16
MOST_MESSAGES = 4096
MOST_STOPS = 64
MOST_BIASES = 1024
MOST_PARTS = 1024
MOST_PROMPTS = 256
MOST_METADATA = 16
LONGEST_STOP = 256
"""Characters: the whole batch waits while a text is compared with them."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_given(cls, values: Any) -> Any:
        """As OpenAI's API has it."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class Speculation(_Request):
    """How a request wants to be decoded.

    details: tell of each token whether it was drafted, by whom, and in which round
    """

    mode: Literal["auto", "off"] = "auto"
    num_draft_tokens: Annotated[int, Field(ge=0, le=MOST_DRAFT_TOKENS)] | None = None
    details: bool = False

    @property
    def limit(self) -> int | None:
        """Most draft tokens of a round; None leaves it to the server."""
        return 0 if self.mode == "off" else self.num_draft_tokens


class StreamOptions(_Request):
    """What a stream ends with."""

    include_usage: bool = False


def _as_object(value: Any) -> Any:
    return {"mode": value} if isinstance(value, str) else value


class GenerationRequest(_Request):
    """What chat, completions and responses have in common."""

    model: str | None = None
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    speculation: Annotated[Speculation, BeforeValidator(_as_object)] = Speculation()
    user: str | None = None

    def options(self) -> GenerationOptions:
        """For the engine; what was not given stays with the model's defaults."""
        names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")
        given: dict[str, Any] = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        penalty = self.repetition_penalty if self.repetition_penalty is not None else self.repeat_penalty
        if penalty is not None:
            given["repetition_penalty"] = penalty
        if self.seed is not None:
            given["seed"] = self.seed % 2**64
        given |= {"num_draft_tokens": self.speculation.limit, "logprobs": False}
        return cast(GenerationOptions, given)


def _at_most(count: int) -> BeforeValidator:
    """Counts the members of an object before any is looked at: each that is wrong would be an error of its own."""

    def counted(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"there are {len(value)} entries; at most {count} are taken")
        return value

    return BeforeValidator(counted)


Biases = Annotated[
    dict[Annotated[int, Field(strict=False)], float], Field(max_length=MOST_BIASES), _at_most(MOST_BIASES)
]
Metadata = Annotated[dict[str, str], Field(max_length=MOST_METADATA), _at_most(MOST_METADATA)]
"""As many as OpenAI takes."""


class SampledRequest(GenerationRequest):
    """What chat and completions have in common."""

    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logit_bias: Biases | None = None
    response_format: dict[str, Any] | None = None
    stream_options: StreamOptions | None = None

    @field_validator("stop")
    @classmethod
    def _not_empty_nor_endless(cls, stop: str | list[str] | None) -> str | list[str] | None:
        strings = [stop] if isinstance(stop, str) else stop or []
        if not all(0 < len(string) <= LONGEST_STOP for string in strings):
            raise ValueError(f"a stop string has 1 to {LONGEST_STOP} characters")
        return stop

    @field_validator("logit_bias")
    @classmethod
    def _within(cls, bias: dict[int, float] | None) -> dict[int, float] | None:
        """-100 bans and 100 forces a token, as OpenAI's API has it."""
        if bias and not all(-100 <= value <= 100 for value in bias.values()):
            raise ValueError("values must be between -100 and 100")
        return bias

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def options(self) -> GenerationOptions:
        given = super().options()
        given["stop"], given["max_tokens"] = self.stop, self.max_tokens
        if self.logit_bias:
            given["logit_bias"] = self.logit_bias
        return given


class TextPart(_Request):
    """A part of a message; only text can be read here."""

    type: str
    text: str | None = None

    @model_validator(mode="after")
    def _is_text(self) -> "TextPart":
        if self.type not in ("text", "input_text", "output_text", "refusal"):
            raise ValueError(f"parts of type {self.type[:40]!r} cannot be read; this server takes text")
        if self.text is None:
            raise ValueError("a text part needs text")
        return self


Content = str | Annotated[list[TextPart], Field(max_length=MOST_PARTS, fail_fast=True)]


def _joined(content: str | list[TextPart] | None) -> str:
    """Content as one text."""
    return "".join([part.text or "" for part in content]) if isinstance(content, list) else content or ""


class Message(BaseModel):
    """One message of a chat; fields besides role and content go to the model's template as they are."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None

    def for_template(self) -> Mapping[str, Any]:
        """As the engine takes it: content is one text."""
        role = "system" if self.role == "developer" else self.role
        return {**(self.model_extra or {}), "role": role, "content": _joined(self.content)}


class Prediction(_Request):
    """The text that is expected to come out, with changes; it makes the answer faster, never another one."""

    type: Literal["content"]
    content: Content

    @property
    def text(self) -> str:
        return _joined(self.content)


class ChatRequest(SampledRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    prediction: Prediction | None = None

    @field_validator("functions")
    @classmethod
    def _are_called_tools(cls, value: list[Any] | None) -> list[Any] | None:
        if value:
            raise ValueError("this is the old name; send the functions as tools")
        return value

    @model_validator(mode="after")
    def _alternatives_of_something(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    def options(self) -> GenerationOptions:
        given = super().options()
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self.max_completion_tokens
        given["logprobs"] = bool(self.logprobs) or self.speculation.details
        given["top_logprobs"] = (self.top_logprobs or 0) if self.logprobs else 0
        if self.prediction is not None:
            given["prediction"] = self.prediction.text
        thinking = (self.chat_template_kwargs or {}).get("enable_thinking")
        if isinstance(thinking, bool):
            given["think"] = thinking
        return given


def _prompts(value: Any) -> Any:
    """Text, token ids, or several of them; looks no further than the first that is neither."""
    if isinstance(value, str) or _are_ids(value):
        return value
    several = isinstance(value, list) and 0 < len(value) <= MOST_PROMPTS
    if several and all(isinstance(one, str) or _are_ids(one) for one in value):
        return value
    raise ValueError(f"give text, a list of token ids, or a list of at most {MOST_PROMPTS} of those")


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(one) is int for one in value)


_IDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_SEVERAL = {"type": "array", "items": {"anyOf": [{"type": "string"}, _IDS]}, "minItems": 1, "maxItems": MOST_PROMPTS}
Prompts = Annotated[
    str | list[str] | list[int] | list[list[int]],
    PlainValidator(_prompts),
    WithJsonSchema({"anyOf": [{"type": "string"}, _IDS, _SEVERAL]}),
]


class CompletionRequest(SampledRequest):
    """`POST /v1/completions`."""

    prompt: Prompts
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: str | None = None
    best_of: int | None = None

    @field_validator("suffix")
    @classmethod
    def _nothing_is_inserted(cls, value: str | None) -> str | None:
        if value:
            raise ValueError("text is continued here, never inserted; leave it out")
        return value

    @model_validator(mode="after")
    def _all_are_given(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != self.choices:
            raise ValueError("best_of must equal n: every answer that is made is given")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """All prompts; a list of numbers is one of them."""
        alone = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return cast(list[str | list[int]], [self.prompt] if alone else self.prompt)

    def options(self) -> GenerationOptions:
        given = super().options()
        given["max_tokens"] = self.max_tokens or 16  # OpenAI's default for this endpoint
        given["logprobs"] = self.logprobs is not None or self.speculation.details
        given["top_logprobs"] = self.logprobs or 0
        return given


class ResponseItem(_Request):
    """One item of a response's input; only messages can be read."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None

    @model_validator(mode="after")
    def _is_message(self) -> "ResponseItem":
        if self.type != "message" or self.role is None or self.content is None:
            raise ValueError("items must be messages with a role and content")
        return self


class ResponsesRequest(GenerationRequest):
    """`POST /v1/responses`, text in and text out; nothing is stored between requests."""

    input: str | Annotated[list[ResponseItem], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    previous_response_id: str | None = None
    text: dict[str, Any] | None = None
    tools: list[Any] | None = None
    metadata: Metadata | None = None

    @field_validator("previous_response_id")
    @classmethod
    def _nothing_is_stored(cls, value: str | None) -> str | None:
        if value is not None:
            raise ValueError("responses are not stored here; send the whole conversation as input")
        return value

    @property
    def response_format(self) -> Any:
        """What other endpoints call by this name."""
        return (self.text or {}).get("format")

    @field_validator("tools")
    @classmethod
    def _no_tools(cls, value: list[Any] | None) -> list[Any] | None:
        if value:
            raise ValueError("functions can be called in /v1/chat/completions only")
        return value

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """As the engine takes them."""
        first: list[Mapping[str, Any]] = []
        if self.instructions is not None:
            first.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*first, {"role": "user", "content": self.input}]
        given = [Message(role=item.role or "user", content=item.content) for item in self.input]
        return first + [message.for_template() for message in given]

    def options(self) -> GenerationOptions:
        details = self.speculation.details
        return {**super().options(), "max_tokens": self.max_output_tokens, "logprobs": details}


class TokenizeRequest(_Request):
    """`POST /tokenize`, as llama-server has it."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(_Request):
    """`POST /detokenize`."""

    tokens: Annotated[list[int], Field(fail_fast=True)]
