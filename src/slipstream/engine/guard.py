"""A drafter changes how fast a text comes, never which: one that fails ends drafting, and no text."""

import logging
from collections.abc import Sequence as Several

from slipstream.core.protocols import Drafter, Growth, Model, Requirements, Rows, SequenceView
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict
from slipstream.draft import TextDrafter
from slipstream.errors import SlipstreamError, UsageError

_logger = logging.getLogger(__name__)


class Guard(TextDrafter):
    """A drafter, until it raises anything (but what stops programs, such as KeyboardInterrupt) or proposes what the
    target cannot compute. Then a warning is logged, once, and it proposes nothing more; for the texts that it knows it
    gets its `end`, as ever.

    The target's sessions need nothing of it: rows of a draft, or of a part of the layers, are gone with the next
    forward.
    """

    def __init__(self, drafter: Drafter, target: Model) -> None:
        self.name = drafter.name
        self.requires = drafter.requires
        self.model = drafter.model
        self.free = drafter.free
        self.failed = False
        self._drafter, self._target = drafter, target
        self._begun: set[int] = set()

    def serves(self, sequence: SequenceView) -> bool:
        if self.failed or not isinstance(self._drafter, TextDrafter):
            return False
        try:
            return self._drafter.serves(sequence)
        except Exception as error:
            self._fail(error, "serves")
            return False

    def lag(self, sequence: SequenceView) -> int:
        if self.failed:
            return 0
        try:
            return self._drafter.lag(sequence)
        except Exception as error:
            self._fail(error, "lag")
            return 0

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        if self.failed:
            return
        self._begun.add(sequence.id)
        try:
            self._drafter.begin(sequence, reused_length)
        except Exception as error:
            self._fail(error, "begin")

    def observe_prompt(self, sequence: SequenceView, start: int, count: int, rows: Rows) -> None:
        if self.failed:
            return
        try:
            self._drafter.observe_prompt(sequence, start, count, rows)
        except Exception as error:
            self._fail(error, "observe_prompt")

    def extend(self, frontier: Several[Growth]) -> None:
        """What a step that fails has added is taken out again."""
        if self.failed:
            return
        before = [(len(growth.draft.tokens), growth.draft.tip) for growth in frontier]
        try:
            self._drafter.extend(frontier)
            for growth, (size, _) in zip(frontier, before, strict=True):
                _check(growth, size, self.name, self._target)
        except Exception as error:
            for growth, (size, tip) in zip(frontier, before, strict=True):
                growth.draft.shorten(size, tip)
            self._fail(error, "extend")

    def observe(self, sequence: SequenceView, draft: Draft, verdict: Verdict, rows: Rows) -> None:
        if self.failed:
            return
        try:
            self._drafter.observe(sequence, draft, verdict, rows)
        except Exception as error:
            self._fail(error, "observe")

    def end(self, sequence: SequenceView) -> None:
        if sequence.id not in self._begun:
            return
        self._begun.remove(sequence.id)
        try:
            self._drafter.end(sequence)
        except Exception as error:
            self._fail(error, "end")

    def memory(self) -> int:
        return self._drafter.memory()

    def close(self) -> None:
        self._drafter.close()

    def _fail(self, error: Exception, method: str) -> None:
        """Say what is wrong, so that who writes a drafter can mend it; what fails after that is said to who looks."""
        if not self.failed:
            what = str(error) if isinstance(error, SlipstreamError) else f"{type(error).__name__}: {error}"
            _logger.warning(
                "The drafter %s failed in %s, and texts go on without it until the model is loaded again: %s",
                self.name,
                method,
                what,
            )
        _logger.debug("Where the drafter %s failed in %s:", self.name, method, exc_info=error)
        self.failed, self.requires = True, Requirements()


def _check(growth: Growth, size: int, name: str, target: Model) -> None:
    """A drafter is anybody's code: raise UsageError for what it may not add to a draft of so many nodes."""
    added, most = growth.draft.tokens[size:], target.vocabulary.size
    if len(added) > growth.limit:
        raise UsageError(f"The drafter {name} added more tokens than it was allowed.")
    if added and not 0 <= min(added) <= max(added) < most:
        raise UsageError(f"The drafter {name} proposed a token id outside 0 to {most - 1}.")
    if added and not (target.capabilities.trees or growth.draft.is_chain):
        raise UsageError(f"The drafter {name} proposed a tree, but {target.runtime} takes chains only.")
