"""When to try a drafter again that did not pay: texts change, and what is never tried is never known."""

SHORTEST, LONGEST = 16, 512
"""Rounds between two tries."""
BURST, LONGEST_BURST = 3, 12
"""Rounds of one try: what the drafter has missed meanwhile is read once for all of them. More while it does well."""
SHARE = 0.01
"""Of plain decoding's time that tries may take."""
FIRST_CREDIT = 0.1
"""Seconds that tries may take from the first: a few misses must not end a draft model before it has shown anything."""
MOST_CREDIT = 2.0
"""Seconds that are saved up for them at most."""


class Probing:
    """Tries come ever more seldom while they fail, and again soon after a new text has begun, if they can be paid.

    credit: seconds that tries may take by now
    """

    def __init__(self, credit: float = FIRST_CREDIT) -> None:
        self.credit = credit
        self._waits: dict[int, int] = {}
        self._rounds: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._tried: dict[int, int] = {}

    def due(self, drafter: int, seconds: float) -> bool:
        """Whether a drafter that would not be chosen should be tried in this round. seconds: what its step takes."""
        self._waits.setdefault(drafter, SHORTEST)
        if self._left.get(drafter, 0) > 0:
            return True
        return self._rounds.get(drafter, 0) >= self._waits[drafter] and self.credit >= seconds

    def used(self, drafter: int, seconds: float, *, paid: bool) -> None:
        """It drafts in this round, because that pays or as a try."""
        if not paid:
            self.credit -= seconds
        if paid:
            self._waits[drafter], self._left[drafter] = SHORTEST, 0
        elif self._left.get(drafter, 0) > 0:
            self._left[drafter] -= 1
            self._tried[drafter] += 1
        else:
            self._left[drafter], self._tried[drafter] = BURST - 1, 1
            self._waits[drafter] = min(2 * self._waits.get(drafter, SHORTEST), LONGEST)
        self._rounds[drafter] = 0

    def goes_on(self, drafter: int, seconds: float) -> None:
        """It could not read in this round all that it has missed: a try waits until it has.

        seconds: what the rest takes, which is paid when it is read
        """
        if self._left.get(drafter, 0) > 0:
            self._left[drafter] += 1
            self._tried[drafter] -= 1
            self.credit += seconds

    def was_right(self, drafter: int) -> None:
        """What it proposed in this round came true: a try goes on."""
        if self._tried.get(drafter, LONGEST_BURST) < LONGEST_BURST:
            self._left[drafter] = max(self._left[drafter], 2)

    def tick(self, plain: float) -> None:
        """A round is over that would have taken plain decoding so many seconds."""
        self.credit = min(self.credit + SHARE * plain, MOST_CREDIT)
        for drafter in self._waits:
            self._rounds[drafter] = self._rounds.get(drafter, 0) + 1

    def new_text(self) -> None:
        """The next text may be of another kind."""
        for drafter, wait in self._waits.items():
            self._waits[drafter] = max(wait // 4, SHORTEST)
