"""The Python API: load a model, generate text."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from pathlib import Path
from types import TracebackType
from typing import Unpack, cast

import numpy as np

from slipstream.core.params import SamplingParams, check_whole
from slipstream.core.pool import SessionPool
from slipstream.core.protocols import Drafter, Model, Policy
from slipstream.core.sampling import Sampler
from slipstream.draft import NoDrafter
from slipstream.engine.completion import Completion
from slipstream.engine.loading import (
    DraftPlan,
    DraftSpec,
    LoadProgress,
    ModelOptions,
    load_drafter,
    load_model,
    plan_draft,
    sampling_defaults,
)
from slipstream.engine.options import GenerationOptions, Message, Prompt, sampling_params
from slipstream.engine.sequence import Sequence
from slipstream.engine.stream import Batch, Generation, Stream
from slipstream.engine.text import TextStream
from slipstream.errors import ChatTemplateError, ContextLimitError, RuntimeUnavailableError, UsageError
from slipstream.models import ChatTemplate, read_model_header, resolve
from slipstream.policy import FixedLength
from slipstream.runtime import choose

DEFAULT_NUM_DRAFT_TOKENS = 4


class Engine:
    """A target model, a drafter and the loop that joins them. Use one engine from one thread at a time.

    >>> from slipstream import Engine
    >>> with Engine.load("smollm2-135m", draft="suffix") as engine:
    ...     print(engine.generate([{"role": "user", "content": "Name a colour."}], seed=7).text)
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
        *,
        template: ChatTemplate | None = None,
        defaults: SamplingParams | None = None,
        notices: Several[str] = (),
    ) -> None:
        """Join loaded parts; `Engine.load` is the usual way.

        template: the model's chat template, None if it has none
        defaults: sampling parameters where a call gives none
        """
        self.target = target
        self.drafter: Drafter = NoDrafter() if drafter is None else drafter
        self.policy: Policy = FixedLength(DEFAULT_NUM_DRAFT_TOKENS) if policy is None else policy
        self.template = template
        self.defaults = defaults or SamplingParams()
        self.notices: list[str] = list(notices)
        self._pool = SessionPool(target)
        if target.notice is not None:
            self.notices.append(target.notice)
        if not target.capabilities.rollback:
            self.drafter.close()
            self.drafter = NoDrafter()
        self._closed = False

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        draft: DraftSpec = None,
        num_draft_tokens: int = DEFAULT_NUM_DRAFT_TOKENS,
        fetch: bool = False,
        options: ModelOptions | None = None,
        progress: LoadProgress | None = None,
    ) -> "Engine":
        """Load a target and its drafter.

        model:            a path, a short name or `hf:owner/repo/file.gguf` (docs/models.md)
        draft:            None or "none", "suffix", a model as above, "suffix+" and a model, or a `Drafter` of your
                          own, which the engine closes when it is closed
        num_draft_tokens: draft length, 0 to 64
        fetch:            download a known model that is not here yet
        options:          the runtimes, the context's length, threads, ...
        progress:         called from this thread with a model's name and the fraction of its weights that is ready,
                          by runtimes that prepare them at load

        Raises SlipstreamError: unknown names, unreadable files, vocabularies that differ, a runtime that cannot run
        the file, too little memory.
        """
        options = options or ModelOptions()
        policy = FixedLength(num_draft_tokens)
        path = resolve(str(model), fetch=fetch)
        header = read_model_header(path)
        template = ChatTemplate.from_header(header) if header.chat_template else None
        defaults = sampling_defaults(header)
        if not (draft is None or isinstance(draft, str | Path | Drafter)):
            raise UsageError(f"draft must be a name, a path or a Drafter, not {type(draft).__name__}.")
        own = draft if isinstance(draft, Drafter) else None
        spec = "none" if draft is None or num_draft_tokens == 0 else str(draft)
        choice = choose(header, options.for_target())
        plan = plan_draft(spec, header, options) if own is None else DraftPlan()
        notices = [one.notice for one in (choice, plan.choice) if one is not None and one.notice is not None]
        target = load_model(path, choice, options.for_target(), progress)
        try:
            drafter = load_drafter(plan, target, options, progress) if own is None else own
        except BaseException:
            target.close()
            raise
        return cls(target, drafter, policy, template=template, defaults=defaults, notices=notices)

    def tokenize(self, prompt: Prompt, *, think: bool | None = None) -> list[int]:
        """Ids of a prompt: plain text is continued as it is, messages go through the chat template.

        think: for templates with a thinking switch; None leaves the template's own default.
        """
        self._require_open()
        if isinstance(prompt, str):
            return self.target.vocabulary.tokenize(prompt, add_bos=True, parse_special=False)
        given: object = prompt  # what callers pass, whatever the type says
        items = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray) else [None]
        if items and all(isinstance(item, Mapping) for item in items):
            return self.tokenize_rendered(self.render(cast(list[Message], items), think=think))
        if not all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items):
            raise UsageError("A prompt is text, or a list of token ids, or a list of chat messages.")
        return [int(item) for item in cast(list[int], items)]

    def render(self, messages: Several[Message], *, think: bool | None = None) -> str:
        """The text that the model's template makes of a conversation, with the answer's beginning at its end.

        Raises ChatTemplateError if there is no template or it refuses the conversation.
        """
        if self.template is None:
            raise ChatTemplateError(
                f"{self.target.name} has no chat template; give the prompt as plain text (--raw on the command line)."
            )
        return self.template.render(messages, add_generation_prompt=True, enable_thinking=think)

    def tokenize_rendered(self, text: str) -> list[int]:
        """Ids of what `render` made: control tokens are read as such, and the first token does not come twice."""
        return self.target.vocabulary.tokenize(text, add_bos=self._lacks_bos(text), parse_special=True)

    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Stream:
        """Generate token by token: iterate over the result. Options as in `GenerationOptions`."""
        batch, [generation] = self._begin([prompt], options)
        return Stream(batch, generation)

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
        batch, generations = self._begin(prompts, options)
        try:
            for generation in generations:
                for _ in batch.prefill(generation):
                    pass
            while not batch.finished:
                batch.play_round()
        finally:
            batch.close()
        return [generation.completion for generation in generations]

    @property
    def draft_model(self) -> Model | None:
        """The model behind the drafter, None if it drafts without one."""
        return self.drafter.model

    def memory(self) -> dict[str, int]:
        """Bytes taken by the target and by the drafter."""
        return {"target": self.target.memory(), "drafter": self.drafter.memory()}

    def close(self) -> None:
        """Give all memory back; closing twice is harmless, using the engine afterwards a RuntimeUnavailableError."""
        self._closed = True
        self._pool.close()
        self.drafter.close()
        self.target.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeUnavailableError("This engine has been closed; load it again.")

    def _begin(self, prompts: Several[Prompt], options: GenerationOptions) -> tuple[Batch, list[Generation]]:
        """Check everything a caller can get wrong before anything is computed."""
        self._require_open()
        params = sampling_params(self.defaults, options).seeded()
        think = options.get("think")
        generations = [self._generation(self.tokenize(prompt, think=think), params, options) for prompt in prompts]
        return Batch(self.target, self._pool, self.drafter, self.policy), generations

    def _generation(self, prompt: list[int], params: SamplingParams, options: GenerationOptions) -> Generation:
        self._check_prompt(prompt)
        assert params.seed is not None
        room = self.target.context_length - len(prompt)
        asked = options.get("max_tokens")
        if asked is not None:
            check_whole("max_tokens", asked, 1, 2**31)
        text = TextStream(self.target.vocabulary, _strings(options.get("stop")), min(asked or room, room))
        sampler = Sampler(params, self.target.vocabulary.size, prompt)
        logprobs = options.get("logprobs", True)
        completion = Completion(prompt, seed=params.seed, drafter=self.drafter.name, logprobs=[] if logprobs else None)
        sequence = Sequence(prompt, sampler, text, logprobs=logprobs)
        completion.statistics = sequence.statistics
        return Generation(sequence, completion)

    def _check_prompt(self, prompt: list[int]) -> None:
        size, limit = self.target.vocabulary.size, self.target.context_length
        if not prompt:
            raise UsageError("The prompt is empty; give at least one token of text.")
        if min(prompt) < 0 or max(prompt) >= size:
            raise UsageError(f"The prompt has token ids outside 0 to {size - 1}.")
        if len(prompt) >= limit:
            raise ContextLimitError(
                f"The prompt has {len(prompt)} tokens and the context holds {limit}, "
                "which leaves no room for an answer; shorten the prompt or load the model with a larger --ctx."
            )

    def _lacks_bos(self, text: str) -> bool:
        """Templates usually write the first token themselves; it must not come twice."""
        bos = self.target.vocabulary.bos
        return bos is None or not text.startswith(self.target.vocabulary.token_name(bos))


def _strings(stop: str | Several[str] | None) -> list[str]:
    strings = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else [stop]
    if stop is None:
        return []
    if not all(isinstance(string, str) for string in strings):
        raise UsageError("stop must be a string or a list of strings.")
    return cast(list[str], strings)
