"""A chat of several turns. Its history is the ids that were generated; they are never tokenised again.

Tokenising an answer's text anew can give other ids than the model chose, and then both the KV cache and
the promise "same seed, same text" are lost from that token on.
"""

import secrets
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Unpack

from slipstream.core.params import SamplingParams
from slipstream.engine.completion import Completion
from slipstream.engine.engine import Engine
from slipstream.engine.options import GenerationOptions, Message
from slipstream.engine.stream import Stream
from slipstream.errors import ChatTemplateError, UsageError

History = Literal["kept", "without thinking", "as text"]
"""What a template does with earlier answers."""


@dataclass(slots=True)
class Turn:
    """What a person said and what came of it.

    opened: the prompt's end had begun the model's thinking, so the answer starts inside it
    """

    text: str
    completion: Completion
    opened: bool


class Conversation:
    """Turns with one model, each answered with everything before it in view.

    The template is rendered with a mark in place of every earlier answer; only what lies between the marks is
    tokenised, and the generated ids take the marks' places. An end token at an answer's end is left out, because
    the template writes its own; so an answer that was cut short is closed like any other. Where a template drops
    the thinking of earlier answers, their ids are cut after the closing tag; thinking that never ended goes
    altogether. A template that does anything else to earlier answers is given them as text, and their ids may
    change.

    When the conversation outgrows the context, the oldest turns are left out of the prompt and `notice` says so.
    One seed serves all turns, because noise depends on a token's position; where positions come again (after
    turns were left out, or for another answer to the same question) the next seed is used and reported.

    system: instructions for the model, None for the template's own
    think:  for templates with a thinking switch; None leaves the template's own default
    turns:  all turns, also those that are left out by now
    notice: a sentence about what the last `ask` had to do, None if nothing
    """

    def __init__(
        self, engine: Engine, *, system: str | None = None, think: bool | None = None, seed: int | None = None
    ) -> None:
        self.engine = engine
        self.system = system
        self.think = think
        self.turns: list[Turn] = []
        self.notice: str | None = None
        self.forgotten = 0
        """How many of the oldest turns the model no longer sees."""
        self._retries = 0
        self._origin: int | None = None
        """The step at which the seed was used first; None before the first answer with it."""
        self.seed = secrets.randbits(32) if seed is None else seed
        self._stream: Stream | None = None

    @property
    def seed(self) -> int:
        """The noise of the next answer, if nothing calls for the next seed. Set it at any time.

        Raises UsageError for a number that does not fit 64 bits; the old seed stays then.
        """
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        SamplingParams(seed=seed)
        self._seed = seed
        self._origin = None

    def ask(self, text: str, **options: Unpack[GenerationOptions]) -> Stream:
        """Say something; the stream is the answer. What was generated of it belongs to the conversation.

        Ends the answer before, if it still runs. Raises what `Engine.stream` raises, and nothing has changed then.
        """
        self._settle()
        forgotten, prompt, opened = self._fitting(text, options.get("max_tokens"))
        origin = self._origin
        if options.get("seed") is None:
            step = forgotten + self._retries
            origin = step if origin is None else origin
            options["seed"] = _next_seed(self.seed, step - origin)
        stream = self.engine.stream(prompt, **options)
        self._origin = origin
        self.notice = self._explain(forgotten - self.forgotten)
        self.forgotten = forgotten
        self.turns.append(Turn(text, stream.completion, opened))
        self._stream = stream
        return stream

    def regenerate(self, **options: Unpack[GenerationOptions]) -> Stream:
        """Another answer to what was said last, with the next seed. Raises UsageError before anything was said."""
        self._settle()
        if not self.turns:
            raise UsageError("There is no answer yet that could be generated again.")
        before = self.forgotten, self._retries
        last = self.turns.pop()
        self.forgotten = min(self.forgotten, len(self.turns))
        self._retries += 1
        try:
            return self.ask(last.text, **options)
        except BaseException:
            self.turns.append(last)
            self.forgotten, self._retries = before
            raise

    def clear(self) -> None:
        """Forget everything that was said; system text, switches and seed stay."""
        self._settle()
        self.turns.clear()
        self.forgotten = self._retries = 0
        self._origin = None
        self.notice = None

    def messages(self, first: int = 0) -> list[Message]:
        """The conversation as text, from turn `first` on."""
        messages: list[Message] = [] if self.system is None else [_message("system", self.system)]
        for turn in self.turns[first:]:
            messages += [_message("user", turn.text), _message("assistant", turn.completion.text)]
        return messages

    def _settle(self) -> None:
        """End the answer before; a turn that got none of it (stopped while the prompt was read) is dropped."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            if not self.turns[-1].completion.tokens:
                self.turns.pop()

    def _fitting(self, text: str, max_tokens: int | None) -> tuple[int, list[int], bool]:
        """(turns left out, prompt ids, thinking opened): the longest prompt that leaves room for an answer."""
        limit = self.engine.target.context_length
        room = min(max_tokens or limit // 4, limit // 2)
        forgotten = self.forgotten
        prompt, opened = self._prompt(forgotten, text)
        if len(prompt) + room > limit:
            # some more than has to go, or every later turn would lose one and read the whole prompt again
            room += limit // 8
        while len(prompt) + room > limit and forgotten < len(self.turns):
            forgotten += 1
            prompt, opened = self._prompt(forgotten, text)
        return forgotten, prompt, opened

    def _explain(self, dropped: int) -> str | None:
        if dropped == 0:
            return None
        turns = "The oldest turn" if dropped == 1 else f"The oldest {dropped} turns"
        limit = self.engine.target.context_length
        return f"{turns} no longer fit the context of {limit} tokens and the model does not see them any more."

    def _prompt(self, first: int, text: str) -> tuple[list[int], bool]:
        """Prompt ids of the turns from `first` on and a new text; whether the prompt opens the model's thinking."""
        turns = self.turns[first:]
        marks = [secrets.token_hex(16) for _ in turns]
        messages: list[Message] = [] if self.system is None else [_message("system", self.system)]
        for turn, mark in zip(turns, marks, strict=True):
            messages += [_message("user", turn.text), _message("assistant", self._opening(turn) + mark)]
        rendered = self.engine.render([*messages, _message("user", text)], think=self.think)
        parts = _split(rendered, marks)
        if parts is None or (turns and self._history == "as text"):
            # the text of answers instead of their ids: the template wants to see them
            prompt = self.engine.tokenize([*self.messages(first), _message("user", text)], think=self.think)
        else:
            prompt = self.engine.tokenize_rendered(parts[0])
            for turn, part in zip(turns, parts[1:], strict=True):
                prompt += self._answer(turn)
                prompt += self._continuation(part)
        return prompt, self._opens_thinking(rendered, text)

    @cached_property
    def _tags(self) -> tuple[str, str] | None:
        return None if self.engine.template is None else self.engine.template.thinking_tags

    @cached_property
    def _history(self) -> History:
        """Show the template an answer with thinking, and see what it makes of it."""
        thought, answer = secrets.token_hex(16), secrets.token_hex(16)
        content = answer if self._tags is None else f"{self._tags[0]}\n{thought}\n{self._tags[1]}\n\n{answer}"
        said = [_message("user", "a"), _message("assistant", content), _message("user", "b")]
        try:
            rendered = self.engine.render(said)
        except ChatTemplateError:
            return "as text"
        if rendered.count(answer) != 1:
            return "as text"
        return "kept" if self._tags is None or thought in rendered else "without thinking"

    def _opening(self, turn: Turn) -> str:
        """The opening tag, where a prompt's end wrote it and the template keeps thinking."""
        return f"{self._tags[0]}\n" if self._tags and turn.opened and self._history == "kept" else ""

    def _opens_thinking(self, rendered: str, text: str) -> bool:
        """Only the end counts: people write about tags, too."""
        template, said = self.engine.template, text.strip()
        end = rendered.rpartition(said)[2] if said else rendered
        return template is not None and template.opens_thinking(end)

    def _answer(self, turn: Turn) -> list[int]:
        """The ids of an earlier answer as the model shall see them."""
        end_tokens = self.engine.target.vocabulary.end_tokens
        tokens = list(turn.completion.tokens)
        while tokens and tokens[-1] in end_tokens:
            tokens.pop()
        if self._tags is None or self._history == "kept":
            return tokens
        return self._without_thinking(tokens, turn.opened, *self._tags)

    def _without_thinking(self, tokens: list[int], opened: bool, opening: str, closing: str) -> list[int]:
        spelt = [self._spelling(token) for token in tokens]
        whole = b"".join(spelt)
        thinks = opened or opening.encode() in whole
        found = whole.rfind(closing.encode())
        if found < 0:
            return [] if thinks else tokens
        end, position, first = found + len(closing.encode()), 0, 0
        while first < len(tokens) and (position < end or spelt[first].isspace()):
            position += len(spelt[first])
            first += 1
        return tokens[first:]

    def _continuation(self, part: str) -> list[int]:
        """Ids of template text that follows an answer.

        SentencePiece vocabularies put a space in front of a text's first word; inside a text there is none.
        """
        tokenize = self.engine.target.vocabulary.tokenize
        tokens = tokenize(part, add_bos=False, parse_special=True)
        if not tokens or part.encode().startswith(self._spelling(tokens[0])):
            return tokens
        before = tokenize("\n", add_bos=False, parse_special=True)
        both = tokenize(f"\n{part}", add_bos=False, parse_special=True)
        return both[len(before) :] if both[: len(before)] == before else tokens

    def _spelling(self, token: int) -> bytes:
        """A token's bytes, or its name where it is a control token."""
        vocabulary = self.engine.target.vocabulary
        return vocabulary.token_bytes(token) or vocabulary.token_name(token).encode()


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _split(rendered: str, marks: Several[str]) -> list[str] | None:
    """The text around the marks; None unless each is there once and in order."""
    parts = []
    for mark in marks:
        before, found, rendered = rendered.partition(mark)
        if not found or mark in rendered:
            return None
        parts.append(before)
    return [*parts, rendered]


def _next_seed(seed: int, steps: int) -> int:
    return seed if steps == 0 else (seed + steps) % 2**64
