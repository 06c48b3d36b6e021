"""How a drafter that has logits adds to a draft: the likeliest tokens with the target's own noise.

Where both distributions agree, so do the tokens, at any temperature (coupled sampling; Daliri, Musco, Suresh 2024,
arXiv 2408.07978).
"""

from slipstream.core.protocols import Growth, Logits

PRIOR = 0.6
"""How often the first draft tokens are believed to be right, before it is known."""


def propose(growth: Growth, logits: Logits, source: str) -> None:
    """Go on behind the draft's tip: the best token, and beside it siblings, which cost no forward of their own.

    logits: [vocab of the target], what the drafter says behind the tip; -inf for what it does not know
    """
    sequence, draft, parent = growth.sequence, growth.draft, growth.draft.tip
    prefix = draft.path_tokens(parent)
    count = min(growth.siblings, growth.limit)
    proposal = sequence.sampler.propose(logits, len(sequence.tokens) + len(prefix), prefix, count)
    greedy = sequence.sampler.params.temperature == 0
    for rank, (token, margin) in enumerate(zip(proposal.tokens, proposal.margins, strict=True)):
        bucket = _bucket(margin, rank, greedy=greedy)
        if rank == 0:
            draft.append(token, source=source, estimate=PRIOR, bucket=bucket)
        else:
            draft.add(token, parent, source=source, estimate=(1 - PRIOR) / 2**rank, bucket=bucket)


def _bucket(margin: float, rank: int, *, greedy: bool) -> int:
    """Feature bucket: how clearly the best beat the runner-up, or how far behind it a sibling is, by rank.

    In steps that double; 7 is beyond doubt. Margins with noise mean something else than margins without.
    """
    size = min(int(margin * 4), 2**30).bit_length() if margin < 16 else 7
    return size + 8 * (min(rank, 3) + 4 * greedy)
