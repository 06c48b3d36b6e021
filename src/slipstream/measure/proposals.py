"""What a drafter proposes after one context, thousands of times with other noise."""

import numpy as np

from slipstream.core.feed import feed
from slipstream.core.pool import SessionPool
from slipstream.core.protocols import Drafter, Logits, Model, Segment
from slipstream.core.sampling import Sampler
from slipstream.core.tree import Draft
from slipstream.measure.distribution import PAIR, Propose, Table, Tokens, coupled, drafted_by


class DraftRows:
    """Rows of a draft model, as a target with a vocabulary of `size` would see them.

    Close it before the drafter drafts: it may have the model's only session.

    sessions: those that are there already, where the model drafts on another one's
    """

    def __init__(self, model: Model, size: int, sessions: SessionPool | None = None) -> None:
        self._model = model
        self._size = size
        self._pool = sessions or SessionPool(model)
        self._own = sessions is None

    def after(self, tokens: Tokens) -> Logits:
        """[size] logits; what the model does not know is never proposed."""
        with self._pool.lent(tokens) as session:
            for _ in feed(self._model, session, tokens[session.length : -1]):
                pass
            [rows] = self._model.forward([Segment(session, tokens[-1:])])
            row = np.full(self._size, -np.inf, np.float32)
            known = min(self._size, self._model.vocabulary.size)
            row[:known] = rows.logits(0)[:known]
            return row

    def close(self) -> None:
        if self._own:
            self._pool.close()


def proposals(drafter: Drafter, rows: DraftRows | None, context: Tokens) -> Propose:
    """The drafter's proposals after a context.

    A draft model's rows do not depend on the noise, so each is computed once, and its proposals are made of it as the
    drafter makes them. Others are asked every time.

    rows: the draft model's, None for drafters without one
    """
    model = drafter.model
    if rows is None or model is None or len(context) + PAIR > model.context_length:
        return drafted_by(drafter, context)
    size = model.vocabulary.size
    table = Table(context, rows.after)
    from_rows = coupled(table.after, drafter.name)

    def propose(sampler: Sampler, tokens: Tokens, position: int) -> Draft:
        known = max((*context, *tokens)) < size
        return from_rows(sampler, tokens, position) if known else Draft()

    return propose
