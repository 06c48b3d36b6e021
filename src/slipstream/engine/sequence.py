"""One generation: its tokens, its sampler, its place in the target's KV cache and how far it has come."""

from collections.abc import Sequence as Tokens
from itertools import count

from slipstream.core.pool import Slot
from slipstream.core.protocols import Session
from slipstream.core.sampling import Sampler
from slipstream.core.stats import Statistics
from slipstream.core.verify import Verdict
from slipstream.engine.text import TextStream
from slipstream.errors import SlipstreamError

_ids = count()


class Sequence:
    """The state of one generation; only `commit` changes it once it has begun.

    tokens: all committed ids, prompt included; the last one is pending. The target's KV cache holds every
    committed token but the last.
    failure: what went wrong with it, where others in the batch go on; the reason is then "error"
    num_draft_tokens: most draft tokens of a round, None for as many as the policy likes
    prediction: ids of the text that is expected to come out, with changes; empty for none
    scope: whose text it is, for drafters that learn from texts
    """

    def __init__(
        self,
        prompt: Tokens[int],
        sampler: Sampler,
        text: TextStream,
        *,
        logprobs: bool = False,
        top_logprobs: int = 0,
        num_draft_tokens: int | None = None,
        prediction: Tokens[int] = (),
        scope: str = "",
    ) -> None:
        self.id = next(_ids)
        self.tokens: list[int] = list(prompt)
        self.num_prompt_tokens = len(self.tokens)
        self.sampler = sampler
        self.text = text
        self.logprobs = logprobs
        self.top_logprobs = top_logprobs
        self.num_draft_tokens = num_draft_tokens
        self.prediction = prediction
        self.scope = scope
        self.finish_reason: str | None = None
        self.failure: SlipstreamError | None = None
        self.statistics = Statistics()
        self.slot: Slot | None = None

    @property
    def placed(self) -> Slot:
        """The sequence's session with the target."""
        assert self.slot is not None, "a sequence is placed before it is decoded"
        return self.slot

    @property
    def session(self) -> Session | None:
        """The target's session, None before there is one."""
        return None if self.slot is None else self.slot.session

    @property
    def lacking(self) -> list[int]:
        """Tokens that the KV cache lacks beside the pending one: what of the prompt has not been read yet."""
        return self.tokens[self.placed.session.length : -1]

    @property
    def pending(self) -> int:
        """The last committed token, not yet in the KV cache."""
        return self.tokens[-1]

    @property
    def completion_tokens(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def draft_limit(self) -> int:
        """Most draft tokens that can be of use (one committed token is always the target's own) and are allowed."""
        useful = self.text.tokens_left - 1
        return useful if self.num_draft_tokens is None else min(useful, self.num_draft_tokens)

    def fail(self, error: SlipstreamError) -> Verdict:
        """End without a token."""
        self.failure = error
        return Verdict(finish_reason="error")

    def commit(self, verdict: Verdict) -> None:
        """Take over what a round decided."""
        self.tokens.extend(verdict.tokens)
        self.finish_reason = verdict.finish_reason
