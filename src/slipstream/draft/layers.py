"""The target drafts for itself with a part of its layers, on its own weights and its own KV cache.

No second model and no prompt to read: a draft step is a forward that leaves layers out (Draft & Verify, arXiv
2309.08168; SWIFT, arXiv 2410.06916). Its rows lie behind the committed ones, which they leave as they are, until the
target's next forward, which verifies the draft, takes their place.
"""

from collections.abc import Sequence

from slipstream.core.layer_subset import LayerSubset
from slipstream.core.protocols import Growth, Model, Requirements, Segment, SequenceView, Session
from slipstream.draft.base import BaseDrafter
from slipstream.draft.proposing import propose

MOST_READ = 64
"""Tokens of a prompt that a draft may begin before the target has read them; a longer one is read first."""


class LayersDrafter(BaseDrafter):
    """Drafts one level a step for all sequences in one forward, as `ModelDrafter` does.

    The target's session has everything but the pending token. Before each step it is given what its held rows lack of
    the draft's path, whoever drafted that; rows that are not this drafter's, or of another path, are forgotten first.

    target: a loaded model of `Capabilities.layer_subsets`; it belongs to somebody else
    layers: those that are run, ascending
    expected_rate: P(a token is right) as a search has found it, with which the policy begins; None where nobody knows
    """

    requires = Requirements(session=True)

    def __init__(
        self, target: Model, layers: Sequence[int], *, source: str = "layers", expected_rate: float | None = None
    ) -> None:
        self.name = source
        self.expected_rate = expected_rate
        self.model: Model = LayerSubset(target, layers, f"{source} of {target.name}")
        self._target, self._layers = target, tuple(layers)
        self._held: dict[int, tuple[object | None, list[int]]] = {}
        """By sequence: what its session held when this drafter held rows last, and their tokens."""

    def lag(self, sequence: SequenceView) -> int:
        """1 but for a text whose prompt the target has not read to its end."""
        return 1 if sequence.session is None else max(len(sequence.tokens) - sequence.session.length, 1)

    def end(self, sequence: SequenceView) -> None:
        self._held.pop(sequence.id, None)

    def extend(self, frontier: Sequence[Growth]) -> None:
        waiting = [(g, session) for g in frontier if (session := g.sequence.session) is not None and self._fits(g)]
        if not waiting:
            return
        share = max(self._target.max_rows // len(waiting), 1)
        batch = [Segment(session, self._catch_up(growth, session, share), outputs=1) for growth, session in waiting]
        forwarded = self._target.forward(batch, layers=self._layers)
        for (growth, _), segment, rows in zip(waiting, batch, forwarded, strict=True):
            self._hold(growth.sequence, segment)
            propose(growth, rows.logits(len(segment.tokens) - 1), self.name)

    def _fits(self, growth: Growth) -> bool:
        """Whether a step is possible, and no prompt has to be read for it."""
        sequence, draft = growth.sequence, growth.draft
        room = len(sequence.tokens) + len(draft.path(draft.tip)) <= self._target.context_length
        return room and self.lag(sequence) <= MOST_READ

    def _catch_up(self, growth: Growth, session: Session, most: int) -> Sequence[int]:
        """Make the session hold rows of a prefix of what is to be continued; returns the rest, 1 to `most` tokens."""
        sequence, draft = growth.sequence, growth.draft
        wanted = [*sequence.tokens[session.length :], *draft.path_tokens(draft.tip)]
        mine, tokens = self._held.get(sequence.id, (None, []))
        if session.held is None or session.held is not mine or tokens != wanted[:-1][: len(tokens)]:
            session.truncate(session.length)  # forgets what is held, and nothing else
            tokens = []
        self._held[sequence.id] = session.held, list(tokens)
        lacking = wanted[len(tokens) :]
        early = max(len(lacking) - most, 0)
        for start in range(0, early, most):
            segment = Segment(session, lacking[start : min(start + most, early)], outputs=0)
            self._target.forward([segment], layers=self._layers)
            self._hold(sequence, segment)
        return lacking[early:]

    def _hold(self, sequence: SequenceView, segment: Segment) -> None:
        segment.session.hold(range(len(segment.tokens)))
        _, tokens = self._held[sequence.id]
        self._held[sequence.id] = segment.session.held, [*tokens, *segment.tokens]
