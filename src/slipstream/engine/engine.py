"""The Python API: load a model, generate text."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Unpack, cast, get_args

import numpy as np

from slipstream.core.noise import Noise
from slipstream.core.params import SamplingParams, check_number, check_whole
from slipstream.core.pool import SessionPool
from slipstream.core.protocols import Drafter, Model, Policy
from slipstream.core.sampling import Sampler
from slipstream.draft import BaseDrafter, ForcedDrafter, PredictionDrafter, TextDrafter
from slipstream.engine.batch import Batch, Generation
from slipstream.engine.completion import Completion
from slipstream.engine.guard import Guard
from slipstream.engine.learning import Costs, adaptive_policy, new_costs
from slipstream.engine.loading import (
    AUTO,
    DraftPlan,
    DraftSpec,
    LoadProgress,
    ModelOptions,
    default_draft,
    load_drafters,
    load_model,
    plan_draft,
    sampling_defaults,
)
from slipstream.engine.options import GenerationOptions, Message, Prompt, sampling_params
from slipstream.engine.sequence import Sequence
from slipstream.engine.stream import Stream
from slipstream.engine.text import TextStream
from slipstream.errors import (
    ChatTemplateError,
    ContextLimitError,
    RuntimeUnavailableError,
    UnsupportedModelError,
    UsageError,
)
from slipstream.grammar import Grammar, GrammarConstraint, GrammarVocabulary
from slipstream.models import ChatTemplate, GgufHeader, read_model_header, resolve
from slipstream.policy import DEFAULT_MAX_SLOWDOWN, FixedLength
from slipstream.policy.adaptive import DEFAULT_MOST_DRAFTED, DEFAULT_MOST_PREDICTED
from slipstream.policy.fixed import MOST_DRAFT_TOKENS
from slipstream.runtime import choose

DEFAULT_NUM_DRAFT_TOKENS = 4
"""Draft length where it is fixed."""
MOST_TOP_LOGPROBS = 20
"""As OpenAI's API has it."""
CHARACTERS_PER_TOKEN = 8
"""Of a prediction that is far too long, what is tokenised at first; texts have about four."""

Speculation = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class _Source:
    """What an engine was loaded from, so that others can share its target."""

    header: GgufHeader
    options: ModelOptions
    costs: Costs


class Engine:
    """A target model, drafters and the loop that joins them. Use one engine from one thread at a time.

    >>> from slipstream import Engine
    >>> with Engine.load("smollm2-135m") as engine:
    ...     print(engine.generate([{"role": "user", "content": "Name a colour."}], seed=7).text)
    """

    def __init__(
        self,
        target: Model,
        drafters: Several[Drafter] | Drafter | None = None,
        policy: Policy | None = None,
        *,
        template: ChatTemplate | None = None,
        defaults: SamplingParams | None = None,
        notices: Several[str] = (),
    ) -> None:
        """Join loaded parts; `Engine.load` is the usual way.

        drafters: one, several, or none for plain decoding
        policy:   a fixed draft length of 4 unless given
        template: the model's chat template, None if it has none
        defaults: sampling parameters where a call gives none
        """
        self.target = target
        self.drafters: list[Drafter] = _seeing(_listed(drafters), target)
        self._guards: dict[int, Guard] = {}
        """By the drafter's `id`, for as long as it is one of the engine's."""
        self.policy: Policy = FixedLength(DEFAULT_NUM_DRAFT_TOKENS) if policy is None else policy
        self.template = template
        self.defaults = defaults or SamplingParams()
        self.notices: list[str] = list(notices)
        self._pool = SessionPool(target)
        if target.notice is not None:
            self.notices.append(target.notice)
        if not target.capabilities.rollback:
            self._close_drafters()
        self.draft_files: list[GgufHeader] = []
        """Headers of the draft models' files, of those that were loaded by name."""
        self._source: _Source | None = None
        self._policy_for: Callable[[Several[Drafter]], Policy] | None = None
        """Makes the policy that measures, where none was needed because there are no drafters."""
        self._own: list[TextDrafter] = [ForcedDrafter(), PredictionDrafter(target.vocabulary)]
        self._owns_target = True
        self._closed = False

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        draft: DraftSpec = AUTO,
        speculation: Speculation = "auto",
        num_draft_tokens: int | None = None,
        max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
        fetch: bool = False,
        options: ModelOptions | None = None,
        progress: LoadProgress | None = None,
    ) -> "Engine":
        """Load a target and its drafter.

        model:            a path, a short name or `hf:owner/repo/file.gguf` (docs/models.md)
        draft:            "auto": suffix lookup, and the head that comes with Slipstream where there is one for the
                          model and it can be used; None or "none"; "suffix", "head", a model as above, several of them
                          joined by plus signs ("suffix+" and a model), or a `Drafter` of your own or a list of them,
                          which the engine closes when it is closed
        speculation:      "auto" drafts as much as pays by what was measured on this machine; "on" always drafts
                          `num_draft_tokens`; "off" decodes plainly
        num_draft_tokens: draft length, 0 to 64: the most for "auto" (None is 16, and 32 for a text with a prediction),
                          the length for "on" (None is 4)
        max_slowdown:     share of plain decoding's time that "auto" may lose in the worst case, 0 to 1
        fetch:            download a known model that is not here yet
        options:          the runtimes, the context's length, threads, ...
        progress:         called from this thread with a model's name and the fraction of its weights that is ready,
                          by runtimes that prepare them at load

        Raises SlipstreamError: unknown names, unreadable files, a runtime that cannot run the file, too little memory.
        """
        options = options or ModelOptions()
        spec = _draft_spec(draft, speculation, num_draft_tokens, max_slowdown)
        path = resolve(str(model), fetch=fetch)
        header = read_model_header(path)
        template = ChatTemplate.from_header(header) if header.chat_template else None
        defaults = sampling_defaults(header)
        choice = choose(header, options.for_target())
        plans = plan_draft(spec, header, options, progress) if isinstance(spec, str) else []
        notices = [*([choice.notice] if choice.notice else []), *(one for plan in plans for one in plan.notices)]
        engine = cls(
            load_model(path, choice, options.for_target(), progress),
            template=template,
            defaults=defaults,
            notices=notices,
        )
        engine._source = _Source(header, options, new_costs())
        with engine._closing_on_error():
            used = engine._add_drafters(spec, plans, progress)
            engine._learn(used, speculation, num_draft_tokens, max_slowdown)
        return engine

    def sharing(
        self,
        *,
        draft: DraftSpec = AUTO,
        speculation: Speculation = "auto",
        num_draft_tokens: int | None = None,
        max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
        options: ModelOptions | None = None,
        progress: LoadProgress | None = None,
    ) -> "Engine":
        """Another engine on this one's loaded target, for comparing drafters without loading it again.

        Use one of them at a time. Closing it closes its drafters only; close this one last. Arguments as in `load`;
        options: for its draft model, the target's stay as they are. Raises what `load` raises, and UsageError for an
        engine that was not made by `load`.
        """
        self._require_open()
        if self._source is None:
            raise UsageError("Only an engine that Engine.load made can share its model.")
        source = _Source(self._source.header, options or self._source.options, self._source.costs)
        spec = _draft_spec(draft, speculation, num_draft_tokens, max_slowdown)
        plans = plan_draft(spec, source.header, source.options, progress) if isinstance(spec, str) else []
        notices = [one for plan in plans for one in plan.notices]
        engine = Engine(self.target, template=self.template, defaults=self.defaults, notices=notices)
        engine._owns_target, engine._pool, engine._source = False, self._pool, source
        with engine._closing_on_error():
            used = engine._add_drafters(spec, plans, progress)
            engine._learn(used, speculation, num_draft_tokens, max_slowdown)
        return engine

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Half an engine gives back what it has."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _add_drafters(
        self, spec: str | list[Drafter], plans: Several[DraftPlan], progress: LoadProgress | None
    ) -> Several[DraftPlan]:
        """Load them, unless the target could not use any; returns the plans of those that were loaded."""
        assert self._source is not None
        if isinstance(spec, list):
            self.drafters = _seeing(spec, self.target)
        elif self.target.capabilities.rollback:
            self.drafters, plans, notices = load_drafters(plans, self.target, progress)
            self.draft_files = [plan.model for plan in plans if plan.model is not None and plan.choice is not None]
            self.notices += notices
        if not self.target.capabilities.rollback:
            self._close_drafters()
        return plans

    def _learn(self, plans: Several[DraftPlan], speculation: Speculation, length: int | None, slowdown: float) -> None:
        """The policy that the options ask for; measures costs where it needs them."""
        source = self._source
        assert source is not None
        if speculation != "auto":
            fixed = DEFAULT_NUM_DRAFT_TOKENS if length is None else length
            self.policy = FixedLength(0 if speculation == "off" else fixed)
            return
        self._pool.close()  # costs are measured in a session, and the model may have but one
        source.costs.origins[self.target] = source.header.path, source.options.for_target()
        for drafter, plan in zip(self.drafters, plans, strict=False):
            if plan.model is not None and drafter.model is not None:
                source.costs.origins[drafter.model] = plan.model.path, source.options.for_draft()
        most, predicted = (DEFAULT_MOST_DRAFTED, DEFAULT_MOST_PREDICTED) if length is None else (length, length)
        make = partial(
            adaptive_policy, source.costs, self.target, max_slowdown=slowdown, most=most, most_predicted=predicted
        )
        self.policy = make(self.drafters)
        self._policy_for = None if self.drafters else make

    def tokenize(self, prompt: Prompt, *, think: bool | None = None, fitting: bool = False) -> list[int]:
        """Ids of a prompt: plain text is continued as it is, messages go through the chat template.

        think:   for templates with a thinking switch; None leaves the template's own default.
        fitting: raise ContextLimitError at once for a text that is far too long for the context
        """
        self._require_open()
        if isinstance(prompt, str):
            return self._tokenized(prompt, add_bos=True, parse_special=False, fitting=fitting)
        given: object = prompt  # what callers pass, whatever the type says
        items = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray) else [None]
        if items and all(isinstance(item, Mapping) for item in items):
            return self.tokenize_rendered(self.render(cast(list[Message], items), think=think), fitting=fitting)
        ids = _ids(items)
        if ids is None:
            raise UsageError("A prompt is text, or a list of token ids, or a list of chat messages.")
        return ids

    def render(
        self, messages: Several[Message], *, think: bool | None = None, tools: Several[Mapping[str, Any]] | None = None
    ) -> str:
        """The text that the model's template makes of a conversation, with the answer's beginning at its end.

        tools: OpenAI's list of functions, for templates that know tools
        Raises ChatTemplateError if there is no template or it refuses the conversation.
        """
        if self.template is None:
            raise ChatTemplateError(
                f"{self.target.name} has no chat template; give the prompt as plain text (--raw on the command line)."
            )
        return self.template.render(messages, add_generation_prompt=True, enable_thinking=think, tools=tools)

    def tokenize_rendered(self, text: str, *, fitting: bool = False) -> list[int]:
        """Ids of what `render` made: control tokens are read as such, and the first token does not come twice.

        fitting: as in `tokenize`
        """
        return self._tokenized(text, add_bos=self._lacks_bos(text), parse_special=True, fitting=fitting)

    def _tokenized(self, text: str, *, add_bos: bool, parse_special: bool, fitting: bool) -> list[int]:
        vocabulary = self.target.vocabulary
        if fitting and len(text) > self.target.context_length:
            least = vocabulary.least_tokens(text, parse_special=parse_special)
            self._check_room(least, f"at least {least}")
        return vocabulary.tokenize(text, add_bos=add_bos, parse_special=parse_special)

    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Stream:
        """Generate token by token: iterate over the result. Options as in `GenerationOptions`."""
        generation = self.prepare(prompt, **options)
        if any(drafter.serves(generation.sequence) for drafter in self._own):
            self.expect_drafts()
        return Stream(self.batch(), generation)

    def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Completion:
        """Generate to the end. Options as in `GenerationOptions`."""
        with self.stream(prompt, **options) as stream:
            for _ in stream:
                pass
        return stream.completion

    def generate_many(self, prompts: Several[Prompt], **options: Unpack[GenerationOptions]) -> list[Completion]:
        """Generate for several prompts at once, one forward per round for all of them.

        Needs `ModelOptions(max_sequences=...)` of at least their number. Each text is what `generate` gives
        for the same seed; on a runtime whose rows are not bit-exact, up to near-ties (docs/llamacpp.md).
        """
        seeded: GenerationOptions = {**options, "seed": sampling_params(self.defaults, options).seeded().seed}
        generations = [self.prepare(prompt, **seeded) for prompt in prompts]
        if any(drafter.serves(one.sequence) for drafter in self._own for one in generations):
            self.expect_drafts()
        batch = self.batch()
        try:
            for generation in generations:
                batch.add(generation)
            while not batch.finished:
                batch.play_round()
                for generation in generations:
                    if generation.sequence.failure is not None:
                        raise generation.sequence.failure
        finally:
            batch.close()
        return [generation.completion for generation in generations]

    @property
    def sessions(self) -> SessionPool:
        """The target's sessions, for measurements."""
        return self._pool

    @property
    def draft_models(self) -> list[Model]:
        """The models behind the drafters, for those that have one."""
        return [drafter.model for drafter in self.drafters if drafter.model is not None]

    @property
    def drafter_name(self) -> str:
        """The drafters' names joined by plus signs, "none" without any."""
        return _names(self.drafters)

    @property
    def default_draft(self) -> str:
        """What `draft="auto"` comes to for this target, such as "suffix+head".

        Raises UsageError for an engine that was not made by `load`.
        """
        if self._source is None:
            raise UsageError("Only an engine that Engine.load made knows the file that it has its model from.")
        return default_draft(self._source.header, self._source.options)

    def memory(self) -> dict[str, int]:
        """Bytes taken by the target and by the drafters."""
        return {"target": self.target.memory(), "drafter": sum(drafter.memory() for drafter in self.drafters)}

    @property
    def failed_drafters(self) -> list[str]:
        """Names of the drafters that failed, without which texts go on."""
        return [drafter.name for drafter in list(self._guards.values()) if drafter.failed]

    def close(self) -> None:
        """Give all memory back; closing twice is harmless, using the engine afterwards a RuntimeUnavailableError.

        What the policy has learned is kept for the next time.
        """
        closed, self._closed = self._closed, True
        with ExitStack() as stack:  # all of it, whatever fails
            if self._owns_target:
                stack.callback(self.target.close)
            stack.callback(self._close_drafters)
            if self._owns_target:
                stack.callback(self._pool.close)
            if not closed:
                self.policy.close()

    def _close_drafters(self) -> None:
        """Close them all and forget them."""
        while self.drafters:
            drafter = self.drafters.pop()
            self._guards.pop(id(drafter), drafter).close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeUnavailableError("This engine has been closed; load it again.")

    def batch(self) -> Batch:
        """An empty batch, for generations that `prepare` made."""
        self._require_open()
        drafters = self._guarded()
        return Batch(self.target, self._pool, drafters, self.policy, [self._guards[id(one)] for one in self._own])

    def _guarded(self) -> list[Guard]:
        """The drafters, each of which may fail without harm to a text."""
        known = self._guards
        self._guards = {id(one): known.get(id(one)) or Guard(one, self.target) for one in (*self.drafters, *self._own)}
        return [self._guards[id(one)] for one in self.drafters]

    def keep_sessions(self, most: int) -> None:
        """Let so many sessions stay open, whose KV caches serve prompts that begin alike; for engines with many texts.

        Without it an engine keeps as many as were in use at once.
        """
        self._pool.most = most
        for drafter in self.drafters:
            if isinstance(drafter, BaseDrafter):
                drafter.keep_sessions(most)

    def prepare(self, prompt: Prompt, *, choice: int = 0, **options: Unpack[GenerationOptions]) -> Generation:
        """A generation that has not begun: everything that a caller can get wrong is checked, nothing is computed.

        choice: which of several answers to one prompt; each has noise of its own from the same seed

        Unlike all else it may be called from any thread.
        """
        params = sampling_params(self.defaults, options).seeded()
        ids = self.tokenize(prompt, think=options.get("think"), fitting=True)
        return self._generation(ids, params, options, choice)

    def expect_drafts(self) -> None:
        """Measure what forwards cost, where that was not needed because there are no drafters.

        What a grammar forces and what a prediction says is drafted without one. `stream` and `generate` call this
        before the first text that has such a thing; a server does before it begins.
        """
        if self._policy_for is not None and self.target.capabilities.rollback:
            self._pool.close()  # costs are measured in a session, and the model may have but one
            self.policy, self._policy_for = self._policy_for(self._own), None

    @cached_property
    def grammar_vocabulary(self) -> GrammarVocabulary:
        """The vocabulary as grammars want it; takes a moment when it is first asked for."""
        return GrammarVocabulary(self.target.vocabulary)

    def _constraint(self, grammar: Grammar | Mapping[str, Any] | None) -> GrammarConstraint | None:
        return None if grammar is None else Grammar.of(grammar).constraint(self.grammar_vocabulary)

    def _drafters_of(self, sequence: Sequence) -> str:
        """Names of those who may draft for a text."""
        off = isinstance(self.policy, FixedLength) and self.policy.num_draft_tokens == 0
        if sequence.num_draft_tokens == 0:
            return _names(())
        if off or not self.target.capabilities.rollback:
            return self.drafter_name
        failed = [one for one, guard in list(self._guards.items()) if guard.failed]
        able = [drafter for drafter in self.drafters if id(drafter) not in failed]
        return _names([*able, *(drafter for drafter in self._own if drafter.serves(sequence))])

    def _generation(
        self, prompt: list[int], params: SamplingParams, options: GenerationOptions, choice: int
    ) -> Generation:
        self._check_prompt(prompt)
        assert params.seed is not None
        room = self.target.context_length - len(prompt)
        asked = options.get("max_tokens")
        if asked is not None:
            check_whole("max_tokens", asked, 1, 2**31)
        spelled = self._control_tokens(options.get("spelled", ()))
        text = TextStream(self.target.vocabulary, _strings(options.get("stop")), min(asked or room, room), spelled)
        constraint = self._constraint(options.get("grammar"))
        sampler = Sampler(params, self.target.vocabulary.size, prompt, Noise(params.seed, choice), constraint)
        logprobs = options.get("logprobs", True)
        most = options.get("num_draft_tokens")
        if most is not None:
            check_whole("num_draft_tokens", most, 0, MOST_DRAFT_TOKENS)
        top = options.get("top_logprobs", 0)
        check_whole("top_logprobs", top, 0, MOST_TOP_LOGPROBS)
        sequence = Sequence(
            prompt,
            sampler,
            text,
            logprobs=logprobs,
            top_logprobs=top,
            num_draft_tokens=most,
            prediction=self._predicted(options.get("prediction")),
            scope=options.get("scope", ""),
        )
        completion = Completion(
            prompt,
            seed=params.seed,
            drafter=self._drafters_of(sequence),
            logprobs=[] if logprobs else None,
            statistics=sequence.statistics,
        )
        return Generation(sequence, completion)

    def _predicted(self, prediction: str | Several[int] | None) -> list[int]:
        """Ids of a prediction; no more of it than could come out."""
        if isinstance(prediction, str):
            ids: list[int] | None = self._beginning(prediction)
        else:
            ids = _ids(() if prediction is None else prediction)
        if ids is None or not all(0 <= one < self.target.vocabulary.size for one in ids):
            raise UsageError("prediction must be a text, or a list of the model's token ids.")
        return ids[: self.target.context_length]

    def _beginning(self, text: str) -> list[int]:
        """Ids of a text's beginning, at least as many as the context holds; only what is needed of it is tokenised."""
        wanted = self.target.context_length
        length = CHARACTERS_PER_TOKEN * wanted
        while True:
            ids = self.target.vocabulary.tokenize(text[:length], add_bos=False, parse_special=False)
            if len(ids) > wanted or length >= len(text):  # the last token may be half of one
                return ids
            length *= 4

    def _check_prompt(self, prompt: list[int]) -> None:
        size = self.target.vocabulary.size
        if not prompt:
            raise UsageError("The prompt is empty; give at least one token of text.")
        if min(prompt) < 0 or max(prompt) >= size:
            raise UsageError(f"The prompt has token ids outside 0 to {size - 1}.")
        self._check_room(len(prompt), str(len(prompt)))

    def _check_room(self, tokens: int, told: str) -> None:
        """Raise ContextLimitError where a prompt of so many tokens leaves no room for an answer."""
        limit = self.target.context_length
        if tokens >= limit:
            raise ContextLimitError(
                f"The prompt has {told} tokens and the context holds {limit}, "
                "which leaves no room for an answer; shorten the prompt or load the model with a larger --ctx."
            )

    def _control_tokens(self, names: Several[str]) -> list[int]:
        """Ids of control tokens; a name that is none in this vocabulary would be text anyway."""
        vocabulary = self.target.vocabulary
        found = [vocabulary.tokenize(name, add_bos=False, parse_special=True) for name in names]
        return [tokens[0] for tokens in found if len(tokens) == 1 and not vocabulary.token_bytes(tokens[0])]

    def _lacks_bos(self, text: str) -> bool:
        """Templates usually write the first token themselves; it must not come twice."""
        bos = self.target.vocabulary.bos
        return bos is None or not text.startswith(self.target.vocabulary.token_name(bos))


def _ids(given: object) -> list[int] | None:
    """A list of whole numbers, numpy's among them; None for what is none."""
    items = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray) else [None]
    if not all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items):
        return None
    return [int(item) for item in cast(list[int], items)]


def _names(drafters: Several[Drafter]) -> str:
    return "+".join(drafter.name for drafter in drafters) or "none"


def _seeing(drafters: list[Drafter], target: Model) -> list[Drafter]:
    """The drafters. Raises UnsupportedModelError for one that wants to see what the target does not show."""
    for drafter in drafters:
        if drafter.requires.hidden_layers and not target.capabilities.hidden_states:
            raise UnsupportedModelError(
                f"{drafter.name} needs hidden states, and {target.name} has none on {target.runtime}; use the native "
                "runtime, or another draft."
            )
    return drafters


def _listed(drafters: Several[Drafter] | Drafter | None) -> list[Drafter]:
    if drafters is None:
        return []
    return [drafters] if isinstance(drafters, Drafter) else list(drafters)


def _draft_spec(draft: DraftSpec, speculation: str, length: int | None, slowdown: float) -> str | list[Drafter]:
    """Check what is asked for: a specification, "none" where nothing would be drafted, or drafters of one's own."""
    if speculation not in get_args(Speculation):
        raise UsageError(f'speculation must be "auto", "on" or "off", not {speculation!r}.')
    if length is not None:
        check_whole("num_draft_tokens", length, 0, MOST_DRAFT_TOKENS)
    check_number("max_slowdown", slowdown, 0, 1)
    if draft is None or isinstance(draft, str | Path):
        return "none" if draft is None or length == 0 or speculation == "off" else str(draft)
    given: object = draft  # what callers pass, whatever the type says
    own = [given] if isinstance(given, Drafter) else list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(one, Drafter) for one in own):
        raise UsageError(f"draft must be a name, a path, a Drafter or a list of them, not {type(draft).__name__}.")
    return cast(list[Drafter], own)


def _strings(stop: str | Several[str] | None) -> list[str]:
    strings = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else [stop]
    if stop is None:
        return []
    if not all(isinstance(string, str) for string in strings):
        raise UsageError("stop must be a string or a list of strings.")
    return cast(list[str], strings)
