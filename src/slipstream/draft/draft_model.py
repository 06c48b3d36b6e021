"""A smaller model of the same vocabulary drafts.

It proposes with the target's own noise: where both distributions agree, so do the tokens, at any temperature
(coupled sampling; Daliri, Musco, Suresh 2024, arXiv 2408.07978).
"""

from collections.abc import Sequence

import numpy as np

from slipstream.core.feed import common_prefix, feed
from slipstream.core.pool import SessionPool, Slot
from slipstream.core.protocols import Growth, Logits, Model, Rows, Segment, SequenceView
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict
from slipstream.draft.base import BaseDrafter
from slipstream.draft.calibration import Calibration
from slipstream.errors import UnsupportedModelError


class ModelDrafter(BaseDrafter):
    """Drafts one token a step for all sequences in one forward.

    Before each step a session feeds whatever it lacks, be it the prompt, another drafter's tokens, the bonus
    token, or a draft that was refused and has to be taken back: there is no special case.

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
        self._calibration = Calibration(prior=0.6)

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
        share = self.model.max_rows // len(frontier)
        batch = [Segment(self._slots[g.sequence.id].session, self._catch_up(g, share), outputs=1) for g in frontier]
        for growth, segment, rows in zip(frontier, batch, self.model.forward(batch), strict=True):
            segment.session.commit(range(len(segment.tokens)))
            self._slots[growth.sequence.id].tokens.extend(segment.tokens)
            self._propose(growth, rows.logits(len(segment.tokens) - 1))

    def observe(self, sequence: SequenceView, draft: Draft, verdict: Verdict, rows: Rows) -> None:
        self._calibration.observe(draft, verdict, self.name)

    def memory(self) -> int:
        return self.model.memory()

    def close(self) -> None:
        self._pool.close()
        self.model.close()

    def _fits(self, growth: Growth) -> bool:
        """Whether the draft model can go on: its context has room, and it knows every token it lacks."""
        sequence = growth.sequence
        unknown = max(sequence.tokens[self._agreed[sequence.id] :]) >= self._usable_size
        return not unknown and len(sequence.tokens) + len(growth.draft) <= self.model.context_length

    def _catch_up(self, growth: Growth, most: int) -> Sequence[int]:
        """Make the session hold a prefix of what is to be continued; returns the rest, 1 to `most` tokens."""
        slot, sequence = self._slots[growth.sequence.id], growth.sequence
        agreed = self._agreed[sequence.id]
        wanted = [*sequence.tokens[agreed:], *growth.draft.tokens]
        kept = agreed + min(common_prefix(slot.tokens[agreed:], wanted), len(wanted) - 1)
        slot.keep(kept)
        self._agreed[sequence.id] = min(kept, len(sequence.tokens) - 1)
        lacking = wanted[kept - agreed :]
        early = max(len(lacking) - most, 0)
        for done in feed(self.model, slot.session, lacking[:early]):
            slot.tokens[kept:] = lacking[:done]
        return lacking[early:]

    def _propose(self, growth: Growth, logits: Logits) -> None:
        sequence, draft = growth.sequence, growth.draft
        logits = self._target_sized(logits, sequence.sampler.vocabulary_size)
        proposal = sequence.sampler.propose(logits, len(sequence.tokens) + len(draft), draft.tokens)
        bucket = _bucket(proposal.margin)
        estimate = self._calibration.estimate(bucket)
        draft.append(proposal.tokens[0], source=self.name, estimate=estimate, bucket=bucket)

    def _target_sized(self, logits: Logits, size: int) -> Logits:
        """Tokens that only one of the two vocabularies has can not be proposed."""
        if len(logits) == size == self._usable_size:
            return logits
        fitted = np.full(size, -np.inf, np.float32)
        fitted[: self._usable_size] = logits[: self._usable_size]
        return fitted


def _bucket(margin: float) -> int:
    """Feature bucket: how clearly the proposal beat the runner-up, in steps that double; 7 is beyond doubt."""
    return min(int(margin * 4), 2**30).bit_length() if margin < 16 else 7
