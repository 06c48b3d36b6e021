"""What a grammar forces is drafted for free: keys of a JSON schema, quotes, brackets."""

from collections.abc import Sequence

from slipstream.core.protocols import Growth, SequenceView
from slipstream.draft.base import TextDrafter


class ForcedDrafter(TextDrafter):
    """Proposes the tokens that the sequence's constraint forces; nothing for a sequence without one.

    Forced text can be spelt in several ways, and the target chooses which; the constraint names the usual one. So these
    are drafts like any others, and nearly always right.
    """

    name = "grammar"

    def serves(self, sequence: SequenceView) -> bool:
        return sequence.sampler.constraint is not None

    def extend(self, frontier: Sequence[Growth]) -> None:
        for growth in frontier:
            constraint = growth.sequence.sampler.constraint
            if constraint is not None and len(growth.draft) == 0:
                for token in constraint.forced()[: growth.limit]:
                    growth.draft.append(token, source=self.name, estimate=0.95)
