"""The excess bank: the reason why speculation cannot make a program slower than it was promised."""

DEFAULT_MAX_SLOWDOWN = 0.03
STARTING_CREDIT = 0.5
"""Seconds that a drafter may lose before it has earned anything."""
LARGEST_BALANCE = 4 * STARTING_CREDIT
MOST_ROOM = 20.0
"""Seconds that a balance may grow to where a draft model needs long to read a prompt; it has to be earned first."""


class ExcessBank:
    """Keeps `balance = credit + max_slowdown * plain time - (actual time - plain time)`, capped.

    A round may lose what is in the bank and no more: with `spare >= loss` asked before every step that costs time,
    the total of actual times stays within `(1 + max_slowdown) * plain time + credit`, whatever is accepted. The cap
    only lowers the balance, so the bound holds from every moment on, too: after any stretch of gains at most
    `largest` can be lost.
    """

    def __init__(self, max_slowdown: float = DEFAULT_MAX_SLOWDOWN, credit: float = STARTING_CREDIT) -> None:
        self.max_slowdown = max_slowdown
        self.largest = LARGEST_BALANCE
        self.balance = min(credit, self.largest)

    def make_room(self, seconds: float) -> None:
        """Something that costs so much was wanted: let as much be saved up."""
        self.largest = max(self.largest, min(1.2 * seconds, MOST_ROOM))

    def settle(self, actual: float, plain: float) -> None:
        """A round took `actual` seconds; plain decoding would have taken `plain` for the same tokens."""
        self.balance = min(self.balance + (1 + self.max_slowdown) * plain - actual, self.largest)
