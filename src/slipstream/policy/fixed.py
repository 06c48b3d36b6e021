"""The simplest policy: the same draft length every round."""

from collections.abc import Sequence

from slipstream.core.params import check_whole
from slipstream.core.protocols import Drafter, Growth
from slipstream.core.stats import RoundRecord
from slipstream.core.tree import Draft

MAX_DRAFT_TOKENS = 64


class FixedLength:
    """Drafts of at most `num_draft_tokens` nodes; 0 is plain decoding."""

    def __init__(self, num_draft_tokens: int) -> None:
        check_whole("num_draft_tokens", num_draft_tokens, 0, MAX_DRAFT_TOKENS)
        self.num_draft_tokens = num_draft_tokens

    def limit(self, growth: Growth, drafter: Drafter) -> int:
        return self.num_draft_tokens - len(growth.draft)

    def choose(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        return drafts

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learned."""
