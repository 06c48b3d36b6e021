"""The one rule of the adaptive policy: is it worth its time?

Let `rate` be the tokens per second that are achieved now. A token is worth 1, a second costs `rate` tokens. Drafting
goes on while the expected gain exceeds `rate` times the step's time; then the nodes with the best path probabilities S
are verified, as many as maximise

    sum of S - rate * (seconds(B + n) - seconds(B))          B: sequences, n: nodes

which is Dinkelbach's method (1967) for the largest ratio of expected tokens to expected time. The same rule gives
long drafts to a lone user, short ones or none on a busy machine, and none where drafts are bad.
"""

from collections.abc import Sequence

from slipstream.policy.costs import MOST_ROWS, CostTable

LOOKAHEAD = 8
"""Levels beyond the present one that a decision to draft on looks at: costs have cliffs."""
NEGLIGIBLE = 0.02
"""Nodes that are reached more seldom than this are not looked at."""


class Rule:
    """The rule in one round.

    rate:   tokens per second achieved, never below those of plain decoding; `temper` lowers it
    plain:  tokens per second of plain decoding
    count:  sequences, each of which commits a token anyway
    rows:   rows that are computed anyway: one for each sequence, and those of prompts; `most` of a forward
    worth:  of a drafted token, where one that plain decoding makes is worth 1
    """

    __slots__ = ("_cells", "_most", "_token", "base", "count", "gain", "plain", "rate", "rows", "speed", "worth")

    def __init__(
        self,
        costs: CostTable,
        count: int,
        rate: float,
        token_seconds: float,
        most: int = MOST_ROWS,
        beside: int = 0,
        worth: float = 1.0,
    ) -> None:
        self.speed, self._cells = costs.curve()
        self.count, self.rows = count, min(count + beside, MOST_ROWS)
        self._token, self._most = token_seconds, max(most - self.rows, 0)
        self.base = costs.seconds(self.rows)
        self.plain = count / (costs.seconds(count) + count * token_seconds)
        self.rate = max(rate, self.plain)
        self.worth = worth
        self.gain = worth * (1 - self.rate * token_seconds)
        """What a drafted token is worth, less the time to sample it."""

    def temper(self, best: float) -> None:
        """What can be achieved now is `best` tokens per second; do not ask for more.

        A stretch of easy text raises the rate above what comes after it. Where every draft then looks too dear, the
        rule has only plain decoding to choose, although the draft would still be faster.
        """
        self.rate = max(min(self.rate, best), self.plain)
        self.gain = self.worth * (1 - self.rate * self._token)

    def best_rate(self, levels: Sequence[float], most: int, factor: float, first: float, one: float) -> float:
        """Tokens per second of a round with the best number of levels, if this sequence's were the only draft."""
        cells, speed = self._cells, self.speed
        place, last, reached = self.rows, len(levels) - 1, 1.0
        best, tokens, time = self.plain, float(self.count), first
        for level in range(min(LOOKAHEAD, most)):
            reached *= factor * (levels[level] if level < last else levels[last])
            if reached < NEGLIGIBLE:
                break
            tokens += reached
            place += 1
            rate = tokens / (time + speed * cells[place] + tokens * self._token)
            if rate > best:
                best = rate
            time += one
        return best

    def best_rate_of(self, reached: Sequence[float]) -> float:
        """The same of the best part of a draft that is there; `reached` as for `best_part`."""
        rows, cells, speed = self.rows, self._cells, self.speed
        best, tokens = self.plain, float(self.count)
        for count, one in enumerate(reached[: self._most], 1):
            if one < NEGLIGIBLE:
                break
            tokens += one
            rate = tokens / (speed * cells[rows + count] + tokens * self._token)
            if rate > best:
                best = rate
        return best

    def extra(self, nodes: int) -> float:
        """Seconds that verifying so many nodes adds to the round."""
        return self.speed * self._cells[min(self.rows + nodes, MOST_ROWS)] - self.base

    def best_part(self, reached: Sequence[float], allowed: float) -> tuple[float, int]:
        """(expected gain in tokens, nodes) of the best part of a draft.

        reached: S of the nodes, descending. A parent's is no less than its child's, so that any first part is a tree.
        allowed: seconds that may be lost by it
        """
        rows, cells, gain = self.rows, self._cells, self.gain
        price = self.rate * self.speed
        before, most = cells[rows], allowed / self.speed
        best, nodes, total = 0.0, 0, 0.0
        for count, one in enumerate(reached[: self._most], 1):
            if one < NEGLIGIBLE:
                break
            total += one
            extra = cells[rows + count] - before
            value = gain * total - price * extra
            if value > best and extra <= most:
                best, nodes = value, count
        return best, nodes

    def worthwhile(
        self, reached: float, levels: Sequence[float], depth: int, most: int, factor: float, one: float
    ) -> bool:
        """Whether some number of further levels is worth its price; as `prospect`, which says how much."""
        cells, gain, price, speed = self._cells, self.gain, self.rate, self.speed
        place, last = self.rows + depth, len(levels) - 1
        before, total, time = cells[place], 0.0, one
        for level in range(depth, min(depth + LOOKAHEAD, most)):
            reached *= factor * (levels[level] if level < last else levels[last])
            if reached < NEGLIGIBLE:
                break
            total += reached
            place += 1
            if gain * total > price * (time + speed * (cells[place] - before)):
                return True
            time += one
        return False

    def prospect(self, levels: Sequence[float], most: int, factor: float, first: float, one: float) -> float:
        """Largest expected gain of a draft's levels, in tokens, their price deducted; -1 if there can be none.

        levels: P(right) of each level, given that those before are, but for `factor`
        first:  seconds of the first step, `one`: of each after it
        """
        cells, gain, rate, speed = self._cells, self.gain, self.rate, self.speed
        place, last, reached = self.rows, len(levels) - 1, 1.0
        before = cells[place]
        best, total, time = -1.0, 0.0, first
        for level in range(min(LOOKAHEAD, most)):
            reached *= factor * (levels[level] if level < last else levels[last])
            if reached < NEGLIGIBLE:
                break
            total += reached
            place += 1
            value = gain * total - rate * (time + speed * (cells[place] - before))
            if value > best:
                best = value
            time += one
        return best
