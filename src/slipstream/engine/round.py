"""One round of speculative decoding: draft, verify, commit.

With empty drafts this is plain decoding; there is no other loop. Prompts are read through the same forward.
(Leviathan, Kalman, Matias 2022, arXiv 2211.17192, algorithm 1, with the token rule of `core.verify` in place of
rejection sampling.)
"""

from collections.abc import Callable
from collections.abc import Sequence as Several
from time import perf_counter

from slipstream.core.protocols import Drafter, Model, Policy, Rows, Segment
from slipstream.core.stats import Clock, RoundRecord
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict, walk
from slipstream.engine.sequence import Sequence
from slipstream.errors import SlipstreamError, UsageError


def play_round(
    target: Model,
    sequences: Several[Sequence],
    drafters: Several[Drafter],
    policy: Policy,
    timer: Callable[[], float] = perf_counter,
    reading: Several[Segment] = (),
) -> list[Verdict]:
    """Advance every sequence by at least one token. A session changes only after its sequence was verified.

    What goes wrong with one sequence is its `failure`, and ends it alone.

    reading: parts of other sequences' prompts, which the same forward reads
    """
    if not sequences:
        _read(target, reading)
        return []
    clock = Clock(timer)
    steps = 0
    beside = sum([len(segment.tokens) for segment in reading])
    for step in policy.draft(sequences, drafters, beside):
        drafters[step.drafter].extend(step.growths)
        steps += not drafters[step.drafter].free
    drafts = _fitting(policy.choose(), target.max_rows - beside)
    for sequence, draft in zip(sequences, drafts, strict=True):
        _check_draft(draft, sequence, target)
    clock.lap("draft")
    rows = _read(target, reading, [_segment(s, draft) for s, draft in zip(sequences, drafts, strict=True)])
    clock.lap("verify")
    verdicts = [_walk(s, draft, row) for s, draft, row in zip(sequences, drafts, rows, strict=True)]
    clock.lap("sample")
    for s, draft, verdict, row in zip(sequences, drafts, verdicts, rows, strict=True):
        s.placed.session.commit([0, *(node + 1 for node in verdict.kv_path)])
        s.commit(verdict)
        for drafter in drafters:
            drafter.observe(s, draft, verdict, row)
    clock.lap("other")
    if any(verdict.commits for verdict in verdicts):
        plain = policy.observe([verdict.tokens for verdict in verdicts], clock.seconds)
        _count(sequences, drafts, verdicts, steps, clock, plain)
    return verdicts


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


def _read(target: Model, reading: Several[Segment], decoding: Several[Segment] = ()) -> Several[Rows]:
    """One forward; returns the rows of what is decoded. What was read of prompts is committed at once."""
    rows = target.forward([*decoding, *reading])
    for segment in reading:
        segment.session.commit(range(len(segment.tokens)))
    return rows[: len(decoding)]


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


def _segment(sequence: Sequence, draft: Draft) -> Segment:
    """The pending token and below it the draft."""
    parents = None if draft.is_chain else [0 if parent < 0 else parent + 1 for parent in draft.parents]
    return Segment(sequence.placed.session, [sequence.pending, *draft.tokens], parents and [-1, *parents])


def _count(
    sequences: Several[Sequence],
    drafts: Several[Draft],
    verdicts: Several[Verdict],
    steps: int,
    clock: Clock,
    plain: float | None,
) -> None:
    share = {phase: seconds / len(sequences) for phase, seconds in clock.seconds.items()}
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
