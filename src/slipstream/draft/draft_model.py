"""A smaller model of the same vocabulary drafts.

It proposes with the target's own noise: where both distributions agree, so do the tokens, at any temperature
(coupled sampling; Daliri, Musco, Suresh 2024, arXiv 2408.07978).
"""

from collections.abc import Sequence

import numpy as np

from slipstream.core.feed import common_prefix, feed
from slipstream.core.pool import SessionPool, Slot
from slipstream.core.protocols import Growth, Logits, Model, Segment, SequenceView
from slipstream.draft.base import BaseDrafter
from slipstream.draft.proposing import propose
from slipstream.draft.shares import MOST_READ, shares
from slipstream.errors import UnsupportedModelError


class ModelDrafter(BaseDrafter):
    """Drafts one level a step for all sequences in one forward: the likeliest token with noise, on which the next
    level goes on, and beside it siblings, which cost no forward of their own.

    Before each step a session feeds whatever it lacks, be it the prompt, another drafter's tokens, the bonus
    token, or a draft that was refused and has to be taken back: there is no special case. Where several texts are
    decoded, what one has missed is read over several steps, in which it gets no draft.

    model: a loaded model with rollback, whose token ids mean what the target's mean
    usable_size: ids below this are proposed (a padded vocabulary has more)
    """

    def __init__(self, model: Model, *, usable_size: int | None = None, source: str = "model") -> None:
        if not model.capabilities.rollback:
            raise UnsupportedModelError(
                f"{model.name} cannot take tokens back, so it cannot draft; use another draft model or --draft suffix."
            )
        self.name = source
        self.model: Model = model
        self._usable_size = usable_size or model.vocabulary.size
        self._pool = SessionPool(model)
        self._slots: dict[int, Slot] = {}
        self._agreed: dict[int, int] = {}

    def lag(self, sequence: SequenceView) -> int:
        """Tokens to read before the next draft begins; about, because a refused draft may have to be taken back."""
        slot = self._slots.get(sequence.id)
        return max(len(sequence.tokens) - (0 if slot is None else len(slot.tokens)), 1)

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        self._slots[sequence.id] = slot = self._pool.acquire(sequence.tokens)
        self._agreed[sequence.id] = len(slot.tokens)

    def end(self, sequence: SequenceView) -> None:
        slot = self._slots.pop(sequence.id, None)
        if slot is not None:
            del self._agreed[sequence.id]
            self._pool.release(slot, slot.tokens)

    def extend(self, frontier: Sequence[Growth]) -> None:
        frontier = [growth for growth in frontier if self._fits(growth)]
        if not frontier:
            return
        lacking = [self._catch_up(growth) for growth in frontier]
        most = self.model.max_rows if self._is_alone else min(self.model.max_rows, MOST_READ)
        granted = shares([len(tokens) for tokens in lacking], most)
        batch = [
            Segment(self._slots[growth.sequence.id].session, tokens[:count], outputs=int(count == len(tokens)))
            for growth, tokens, count in zip(frontier, lacking, granted, strict=True)
        ]
        for growth, segment, rows in zip(frontier, batch, self.model.forward(batch), strict=True):
            segment.session.commit(range(len(segment.tokens)))
            self._slots[growth.sequence.id].tokens.extend(segment.tokens)
            if segment.outputs:
                logits = rows.logits(len(segment.tokens) - 1)
                propose(growth, self._target_sized(logits, growth.sequence.sampler.vocabulary_size), self.name)

    def memory(self) -> int:
        return self.model.memory()

    def keep_sessions(self, most: int) -> None:
        """How many sessions may stay open for texts to come (`core.pool.SessionPool`)."""
        self._pool.most = most

    def close(self) -> None:
        self._pool.close()
        self.model.close()

    def _fits(self, growth: Growth) -> bool:
        """Whether the draft model can go on: its context has room, and it knows every token it lacks."""
        sequence = growth.sequence
        unknown = max(sequence.tokens[self._agreed[sequence.id] :]) >= self._usable_size
        return not unknown and len(sequence.tokens) + len(growth.draft) <= self.model.context_length

    @property
    def _is_alone(self) -> bool:
        """Whether no other text is decoded, which would wait while one is read."""
        return len(self._slots) == 1

    def _catch_up(self, growth: Growth) -> Sequence[int]:
        """Make the session hold a prefix of what is to be continued; returns the rest, 1 token or more.

        For a text that is alone, so few that one forward takes them.
        """
        slot, sequence = self._slots[growth.sequence.id], growth.sequence
        agreed = self._agreed[sequence.id]
        wanted = [*sequence.tokens[agreed:], *growth.draft.path_tokens(growth.draft.tip)]
        kept = slot.keep(agreed + min(common_prefix(slot.tokens[agreed:], wanted), len(wanted) - 1))
        if kept < agreed:  # it could not go back so far
            wanted, agreed = [*sequence.tokens[kept:agreed], *wanted], kept
        self._agreed[sequence.id] = min(kept, len(sequence.tokens) - 1)
        lacking = wanted[kept - agreed :]
        early = max(len(lacking) - self.model.max_rows, 0) if self._is_alone else 0
        for done in feed(self.model, slot.session, lacking[:early]):
            slot.tokens[kept:] = lacking[:done]
        return lacking[early:]

    def _target_sized(self, logits: Logits, size: int) -> Logits:
        """Tokens that only one of the two vocabularies has can not be proposed."""
        if len(logits) == size == self._usable_size:
            return logits
        fitted = np.full(size, -np.inf, np.float32)
        fitted[: self._usable_size] = logits[: self._usable_size]
        return fitted
