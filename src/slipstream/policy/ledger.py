"""What a policy's rounds took, against what plain decoding would have taken."""


class Ledger:
    """Sums over rounds; times in seconds, plain ones from measured costs."""

    def __init__(self) -> None:
        self.rounds = self.speculated = self.nodes = self.tokens = 0
        self.actual = self.plain = 0.0
        self._recent_actual = self._recent_plain = 0.0

    def add(self, nodes: int, tokens: int, actual: float, plain: float) -> None:
        self.rounds += 1
        self.speculated += nodes > 0
        self.nodes += nodes
        self.tokens += tokens
        self.actual += actual
        self.plain += plain
        self._recent_actual = 0.97 * self._recent_actual + actual
        self._recent_plain = 0.97 * self._recent_plain + plain

    @property
    def gain(self) -> float | None:
        """Times faster than plain decoding, so far; None before the first round."""
        return self.plain / self.actual if self.actual > 0 else None

    @property
    def recent_gain(self) -> float:
        """The same for the last 30 rounds or so."""
        return self._recent_plain / self._recent_actual if self._recent_actual > 0 else 1.0
