"""One round of speculative decoding: draft, verify, commit.

With empty drafts this is plain decoding; there is no other loop. (Leviathan, Kalman, Matias 2022, arXiv
2211.17192, algorithm 1, with the token rule of `core.verify` in place of rejection sampling.)
"""

from collections.abc import Sequence as Several

from slipstream.core.protocols import Drafter, Growth, Model, Policy, Segment
from slipstream.core.stats import Clock, RoundRecord
from slipstream.core.tree import Draft
from slipstream.core.verify import Verdict, walk
from slipstream.engine.sequence import Sequence
from slipstream.errors import UsageError


def play_round(target: Model, sequences: Several[Sequence], drafter: Drafter, policy: Policy) -> list[Verdict]:
    """Advance every sequence by at least one token. A session changes only after its sequence was verified."""
    clock = Clock()
    drafts = policy.choose(propose(target, drafter, sequences, policy))
    clock.lap("draft")
    rows = target.forward([_segment(s, draft) for s, draft in zip(sequences, drafts, strict=True)])
    clock.lap("verify")
    verdicts = [
        walk(draft, row, s.sampler, s.text, len(s.tokens), logprobs=s.logprobs)
        for s, draft, row in zip(sequences, drafts, rows, strict=True)
    ]
    clock.lap("sample")
    for s, draft, verdict, row in zip(sequences, drafts, verdicts, rows, strict=True):
        s.placed.session.commit([0, *(node + 1 for node in verdict.kv_path)])
        s.commit(verdict)
        drafter.observe(s, draft, verdict, row)
    clock.lap("other")
    _count(sequences, drafts, verdicts, clock, policy)
    return verdicts


def propose(target: Model, drafter: Drafter, sequences: Several[Sequence], policy: Policy) -> list[Draft]:
    """Let the drafter grow a draft for every sequence, as long as the policy finds a step worth its time."""
    drafts = [Draft() for _ in sequences]
    growing = [Growth(s, draft, 0) for s, draft in zip(sequences, drafts, strict=True)]
    while frontier := [growth for one in growing if (growth := _limited(one, drafter, policy)).limit > 0]:
        sizes = [len(growth.draft) for growth in frontier]
        drafter.extend(frontier)
        growing = [growth for growth, size in zip(frontier, sizes, strict=True) if len(growth.draft) > size]
    for sequence, draft in zip(sequences, drafts, strict=True):
        _check_draft(draft, sequence, drafter, target)
    return drafts


def _check_draft(draft: Draft, sequence: Sequence, drafter: Drafter, target: Model) -> None:
    """A drafter is anybody's code; what the target cannot compute is refused by name."""
    if not draft.tokens:
        return
    size = target.vocabulary.size
    if len(draft) > max(sequence.draft_limit, 0):
        raise UsageError(f"The drafter {drafter.name} added more tokens than it was allowed.")
    if not 0 <= min(draft.tokens) <= max(draft.tokens) < size:
        raise UsageError(f"The drafter {drafter.name} proposed a token id outside 0 to {size - 1}.")
    if not (target.capabilities.trees or draft.is_chain):
        raise UsageError(f"The drafter {drafter.name} proposed a tree, but {target.runtime} takes chains only.")


def _limited(growth: Growth, drafter: Drafter, policy: Policy) -> Growth:
    """How far a draft may grow now: what the policy wants, never beyond what could be committed."""
    useful = growth.sequence.draft_limit - len(growth.draft)
    return Growth(growth.sequence, growth.draft, min(useful, policy.limit(growth, drafter)))


def _segment(sequence: Sequence, draft: Draft) -> Segment:
    """The pending token and below it the draft."""
    parents = None if draft.is_chain else [0 if parent < 0 else parent + 1 for parent in draft.parents]
    return Segment(sequence.placed.session, [sequence.pending, *draft.tokens], parents and [-1, *parents])


def _count(
    sequences: Several[Sequence],
    drafts: Several[Draft],
    verdicts: Several[Verdict],
    clock: Clock,
    policy: Policy,
) -> None:
    share = {phase: seconds / len(sequences) for phase, seconds in clock.seconds.items()}
    for s, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
        drafter = draft.sources[0] if len(draft) else ""
        record = RoundRecord(len(draft), verdict.tested, verdict.accepted, len(verdict.commits), drafter, share)
        s.statistics.add(record)
        policy.observe(record)
