"""One round of speculative decoding: draft, verify, commit.

With empty drafts this is plain decoding; there is no other loop. Prompts are read through the same forward, and the
last part of one gives its text's first token.
(Leviathan, Kalman, Matias 2022, arXiv 2211.17192, algorithm 1, with the token rule of `core.verify` in place of
rejection sampling.)
"""

from collections.abc import Callable
from collections.abc import Sequence as Several
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.protocols import Drafter, Logits, Model, Policy, Rows, Segment
from slipstream.core.stats import Clock, RoundRecord
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict, walk
from slipstream.engine.sequence import Sequence
from slipstream.errors import SlipstreamError, UsageError


class Reading(NamedTuple):
    """A part of a prompt that a forward reads beside what it decodes."""

    sequence: Sequence
    segment: Segment


class Played(NamedTuple):
    """What a round came to.

    verdicts: one for each sequence
    reading:  seconds of its forward that went into prompts, divided by rows
    """

    verdicts: list[Verdict]
    reading: float


def play_round(
    target: Model,
    sequences: Several[Sequence],
    drafters: Several[Drafter],
    policy: Policy,
    timer: Callable[[], float] = perf_counter,
    reading: Several[Reading] = (),
) -> Played:
    """Advance every sequence by at least one token. A session changes only after its sequence was verified.

    What a sequence's KV cache lacks of its prompt is read as well. What goes wrong with one sequence is its `failure`,
    and ends it alone.

    reading: parts of other sequences' prompts, which the same forward reads
    """
    clock = Clock(timer)
    if not sequences:
        _read(target, reading, drafters)
        clock.lap("verify")
        return Played([], clock.seconds["verify"])
    steps = 0
    lacking = [sequence.lacking for sequence in sequences]
    beside = sum([len(segment.tokens) for _, segment in reading]) + sum(map(len, lacking))
    for step in policy.draft(sequences, drafters, beside):
        drafters[step.drafter].extend(step.growths)
        steps += not drafters[step.drafter].free
    drafts = _fitting(policy.choose(), target.max_rows - beside)
    for sequence, draft in zip(sequences, drafts, strict=True):
        _check_draft(draft, sequence, target)
    clock.lap("draft")
    segments = [_segment(*each) for each in zip(sequences, lacking, drafts, strict=True)]
    found = _read(target, reading, drafters, segments)
    for s, read, row in zip(sequences, lacking, found, strict=True):
        _show_prompt(s, len(read), row, drafters)
    rows = [_Tail(row, len(read)) if read else row for row, read in zip(found, lacking, strict=True)]
    clock.lap("verify")
    verdicts = [_walk(s, draft, row) for s, draft, row in zip(sequences, drafts, rows, strict=True)]
    clock.lap("sample")
    for s, read, draft, verdict, row in zip(sequences, lacking, drafts, verdicts, rows, strict=True):
        pending = len(read)
        s.placed.session.commit([*range(pending + 1), *(pending + 1 + node for node in verdict.kv_path)])
        s.commit(verdict)
        for drafter in drafters:
            drafter.observe(s, draft, verdict, row)
    clock.lap("other")
    share = beside / (beside + len(sequences) + sum(map(len, drafts)))
    if any(verdict.commits for verdict in verdicts):
        plain = policy.observe([verdict.tokens for verdict in verdicts], clock.seconds)
        own = {**clock.seconds, "verify": (1 - share) * clock.seconds["verify"]}
        if beside and plain is not None:
            plain = sum(own.values())  # what a token costs beside a prompt nobody knows
        _count(sequences, drafts, verdicts, steps, own, plain)
    return Played(verdicts, share * clock.seconds["verify"])


class _Tail:
    """Rows of a segment from the pending token on, where it begins with rows of the prompt."""

    __slots__ = ("_first", "_rows")

    def __init__(self, rows: Rows, first: int) -> None:
        self._rows, self._first = rows, first

    def logits(self, row: int) -> Logits:
        return self._rows.logits(self._first + row)

    def top(self, row: int, count: int) -> tuple[NDArray[np.int64], Logits]:
        return self._rows.top(self._first + row, count)

    def hidden(self, row: int, layer: int) -> NDArray[np.float32]:
        return self._rows.hidden(self._first + row, layer)


def _walk(sequence: Sequence, draft: Draft, rows: Rows) -> Verdict:
    """What one sequence's draft comes to; what goes wrong in it ends this sequence and no other."""
    try:
        return walk(
            draft,
            rows,
            sequence.sampler,
            sequence.text,
            len(sequence.tokens),
            logprobs=sequence.logprobs,
            top_logprobs=sequence.top_logprobs,
        )
    except SlipstreamError as error:
        return sequence.fail(error)


def _read(
    target: Model,
    reading: Several[Reading],
    drafters: Several[Drafter],
    decoding: Several[Segment] = (),
) -> Several[Rows]:
    """One forward; returns the rows of what is decoded. What was read of prompts is committed at once."""
    hidden = sorted({layer for drafter in drafters for layer in drafter.requires.hidden_layers})
    batch = [*decoding, *(segment for _, segment in reading)]
    rows = target.forward(batch, hidden=hidden) if hidden else target.forward(batch)
    for (sequence, segment), row in zip(reading, rows[len(decoding) :], strict=True):
        _show_prompt(sequence, len(segment.tokens), row, drafters)
        segment.session.commit(range(len(segment.tokens)))
    return rows[: len(decoding)]


def _show_prompt(sequence: Sequence, count: int, rows: Rows, drafters: Several[Drafter]) -> None:
    """Let drafters that go on from hidden states see the first `count` rows, which are the prompt's next tokens."""
    for drafter in drafters if count else ():
        if drafter.requires.hidden_layers:
            drafter.observe_prompt(sequence, sequence.placed.session.length, count, rows)


def _fitting(drafts: Several[Draft], most: int) -> Several[Draft]:
    """The drafts, each cut to its first nodes where all of them would be more rows than a forward takes."""
    if len(drafts) + sum([len(draft.tokens) for draft in drafts]) <= most:
        return drafts
    share = most // len(drafts) - 1
    return [draft.subset(range(min(len(draft), share))) for draft in drafts]


def _check_draft(draft: Draft, sequence: Sequence, target: Model) -> None:
    """A drafter is anybody's code; what the target cannot compute is refused by name."""
    if not draft.tokens:
        return
    size, name = target.vocabulary.size, draft.sources[0]
    if len(draft) > max(sequence.draft_limit, 0):
        raise UsageError(f"The drafter {name} added more tokens than it was allowed.")
    if not 0 <= min(draft.tokens) <= max(draft.tokens) < size:
        raise UsageError(f"The drafter {name} proposed a token id outside 0 to {size - 1}.")
    if not (target.capabilities.trees or draft.is_chain):
        raise UsageError(f"The drafter {name} proposed a tree, but {target.runtime} takes chains only.")


def _segment(sequence: Sequence, lacking: Several[int], draft: Draft) -> Segment:
    """What is left of the prompt, the pending token, and below it the draft."""
    tokens, pending = [*lacking, sequence.pending, *draft.tokens], len(lacking)
    chain = range(-1, pending)
    parents = None if draft.is_chain else [*chain, *(pending + 1 + parent for parent in draft.parents)]
    return Segment(sequence.placed.session, tokens, parents, 1 + len(draft) if lacking else None)


def _count(
    sequences: Several[Sequence],
    drafts: Several[Draft],
    verdicts: Several[Verdict],
    steps: int,
    seconds: dict[str, float],
    plain: float | None,
) -> None:
    share = {phase: spent / len(sequences) for phase, spent in seconds.items()}
    tokens = sum([len(verdict.commits) for verdict in verdicts])
    for s, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
        committed = len(verdict.commits)
        s.statistics.add(
            RoundRecord(
                len(s.tokens) - committed,
                steps,
                len(draft),
                verdict.tested,
                verdict.accepted,
                committed,
                draft.sources[0] if len(draft) else "",
                share,
                None if plain is None else plain * committed / tokens,
            )
        )
