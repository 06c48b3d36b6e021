"""Plain decoding: the drafter that never proposes."""

from slipstream.draft.base import BaseDrafter


class NoDrafter(BaseDrafter):
    """Proposes nothing, so that every round is one token of the target's own."""

    name = "none"
