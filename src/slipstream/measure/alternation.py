"""What draft steps and verification take where they alternate, which is not what each takes by itself.

A draft model that was read a moment ago is partly still in the processor's caches; after the target's forward it is
not. So a few rounds are played in turn: a plain one, one with a draft. What was accepted in them nobody looks at.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

from slipstream.core.protocols import Drafter, Growth, Rows, SequenceView, Step
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict
from slipstream.draft import BaseDrafter
from slipstream.engine import Engine, GenerationOptions
from slipstream.measure.tracing import usual
from slipstream.policy import FixedLength

LENGTH = 4
"""Tokens of a draft."""
TOKENS = 32
"""Of the text that the rounds are played on."""


class Alternation(NamedTuple):
    """Seconds, means without hiccups.

    plain:       of the target's forward of one row
    verify:      of the one of `LENGTH` + 1 rows, after a draft
    first, rest: of the first step of a draft, and of each of the others
    """

    plain: float
    verify: float
    first: float
    rest: float


def alternate(plain: Engine, drafter: Drafter, prompt: Sequence[int], options: GenerationOptions) -> Alternation | None:
    """Play some rounds on the target of `plain`; None where the drafter had no whole draft for any of them."""
    watched = _Watched(drafter)
    with plain.sharing(draft=watched, speculation="on") as engine:
        engine.policy = _EveryOther()
        short: GenerationOptions = {**options, "max_tokens": min(options.get("max_tokens") or TOKENS, TOKENS)}
        rounds = engine.generate(prompt, **short).rounds
    singles = [one.seconds["verify"] for one in rounds if not one.drafted]
    drafted = [one.seconds["verify"] for one in rounds if one.drafted == LENGTH]
    if not (singles and drafted and watched.first and watched.rest):
        return None
    return Alternation(usual(singles), usual(drafted), usual(watched.first), usual(watched.rest))


class _EveryOther(FixedLength):
    """Drafts in every second round."""

    def __init__(self) -> None:
        super().__init__(LENGTH)

    def draft(self, sequences: Sequence[SequenceView], drafters: Sequence[Drafter], beside: int = 0) -> Iterator[Step]:
        self.num_draft_tokens = LENGTH - self.num_draft_tokens
        return super().draft(sequences, drafters, beside)


class _Watched(BaseDrafter):
    """Another's drafter, with a stopwatch; the other one is not closed with it."""

    def __init__(self, inner: Drafter) -> None:
        self.name, self.model, self.requires = inner.name, inner.model, inner.requires
        self.first: list[float] = []
        self.rest: list[float] = []
        self._inner = inner

    def lag(self, sequence: SequenceView) -> int:
        return self._inner.lag(sequence)

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        self._inner.begin(sequence, reused_length)

    def observe_prompt(self, sequence: SequenceView, start: int, count: int, rows: Rows) -> None:
        self._inner.observe_prompt(sequence, start, count, rows)

    def extend(self, frontier: Sequence[Growth]) -> None:
        steps = self.rest if any(growth.draft.tokens for growth in frontier) else self.first
        started = perf_counter()
        self._inner.extend(frontier)
        steps.append(perf_counter() - started)

    def observe(self, sequence: SequenceView, draft: Draft, verdict: Verdict, rows: Rows) -> None:
        self._inner.observe(sequence, draft, verdict, rows)

    def end(self, sequence: SequenceView) -> None:
        self._inner.end(sequence)
