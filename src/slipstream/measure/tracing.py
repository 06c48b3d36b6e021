"""What a draft model proposes at each token of an answer that is known already.

A draft model shares the target's noise, so what it proposes at a place depends on the text before that place alone:
whether it is right there is a property of the answer, not of the round. One step for each token of a plain answer
therefore tells what every draft of any length would have been, as far as it was right.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple

from slipstream.core.feed import feed
from slipstream.core.protocols import Drafter, Growth, Session
from slipstream.core.sampling import Sampler
from slipstream.core.tree import Draft
from slipstream.engine import Engine


class Level(NamedTuple):
    """Candidates for one token, the main chain's first; empty where the drafter had none."""

    tokens: Sequence[int]
    buckets: Sequence[int]
    estimates: Sequence[float]


class Trace(NamedTuple):
    """Candidates for each token of an answer, and seconds of the first step, which reads the prompt."""

    levels: Sequence[Level]
    reading: float


def trace(
    drafter: Drafter,
    prompt: Sequence[int],
    answer: Sequence[int],
    sampler: Sampler,
    *,
    siblings: int,
    should_stop: Callable[[], bool] = lambda: False,
    plain: Engine | None = None,
) -> Trace | None:
    """Let a drafter that grows level by level propose each token of the answer; None if it was stopped.

    sampler:  a fresh one with the parameters and the seed that the answer came from
    siblings: candidates for each token
    plain:    has the target, for drafters that want its sessions
    """
    with ExitStack() as stack:
        text = _Text(prompt, sampler, siblings)
        if plain is not None and drafter.requires.session:
            text.session = stack.enter_context(plain.sessions.lent(text.tokens))
        drafter.begin(text, 0)
        stack.callback(drafter.end, text)
        return _traced(drafter, answer, text, should_stop, plain)


def _traced(
    drafter: Drafter, answer: Sequence[int], text: "_Text", should_stop: Callable[[], bool], plain: Engine | None
) -> Trace | None:
    levels, reading, siblings, sampler = [], 0.0, text.draft_limit, text.sampler
    for token in answer:
        if should_stop():
            return None
        if plain is not None and text.session is not None:
            for _ in feed(plain.target, text.session, text.tokens[text.session.length : -1]):
                pass
        draft = Draft()
        started = perf_counter()
        drafter.extend([Growth(text, draft, siblings, siblings)])
        reading = reading or perf_counter() - started
        levels.append(Level(draft.tokens, draft.buckets, draft.estimates))
        sampler.accept(token)
        text.tokens.append(token)
    return Trace(levels, reading)


def usual(seconds: Sequence[float]) -> float:
    """The mean, in which a hiccup counts as three times the median at most.

    A sum of many durations is what is asked for, to which the slower ones add more than a median knows.
    """
    most = 3 * median(seconds)
    return fmean(min(one, most) for one in seconds)


class _Text:
    """A sequence whose tokens are given; `core.protocols.SequenceView`."""

    id = -1
    prediction: Sequence[int] = ()
    scope = ""

    def __init__(self, prompt: Sequence[int], sampler: Sampler, draft_limit: int) -> None:
        self.tokens = list(prompt)
        self.sampler = sampler
        self.draft_limit = draft_limit
        self.session: Session | None = None
