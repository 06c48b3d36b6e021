"""What most drafters have in common: nothing to prepare, nothing to require, nothing to give back."""

from collections.abc import Sequence

from slipstream.core.protocols import Growth, Model, Requirements, Rows, SequenceView
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict


class BaseDrafter:
    """Defaults for the `Drafter` protocol; a drafter overrides `name`, `extend` and what it needs."""

    name = "base"
    requires = Requirements()
    model: Model | None = None
    free = False

    def lag(self, sequence: SequenceView) -> int:
        return 1

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        """Nothing is prepared."""

    def observe_prompt(self, sequence: SequenceView, start: int, count: int, rows: Rows) -> None:
        """Nothing is kept."""

    def extend(self, frontier: Sequence[Growth]) -> None:
        """Nothing is proposed."""

    def observe(self, sequence: SequenceView, draft: Draft, verdict: Verdict, rows: Rows) -> None:
        """Nothing is learned."""

    def end(self, sequence: SequenceView) -> None:
        """Nothing is given back."""

    def memory(self) -> int:
        return 0

    def keep_sessions(self, most: int) -> None:
        """None are used."""

    def close(self) -> None:
        """Nothing is held."""


class TextDrafter(BaseDrafter):
    """A drafter for texts that brought something of their own to draft from: a grammar, a prediction.

    An engine has one of each and asks it where a text has what it needs.
    """

    free = True

    def serves(self, sequence: SequenceView) -> bool:
        """Whether there is something to draft from."""
        raise NotImplementedError
