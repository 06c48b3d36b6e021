"""Verification: plain decoding with the rows known in advance.

At each node of the draft the sampler chooses a token from the target's row, exactly as it would without a
draft. If a child carries that token the walk descends; otherwise the token is the target's own (*recovered*
where a draft was wrong, *bonus* where there was none left) and the walk ends. No ratio, no residual, no extra
random numbers: what comes out is what plain decoding gives for the same noise, whatever was drafted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from slipstream.core.protocols import Rows, StopRule
from slipstream.core.sampling import Sampler, log_probabilities, log_probability
from slipstream.core.tree import ROOT, Draft


class Commit(NamedTuple):
    """One committed token.

    node: the draft node that carried it, None where the token is the target's own
    drafter: who had proposed it, "" where nobody had
    text: what may be shown now; may lag behind the token (half a character, part of a stop string)
    logprob: natural logarithm under the raw logits, None when not asked for
    top: ids and log-probabilities of the likeliest tokens in its place, as many as were asked for, likeliest first
    """

    token: int
    node: int | None
    drafter: str
    text: str
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()


@dataclass(slots=True)
class Verdict:
    """What a round decided about one sequence.

    commits: tokens in order, at least one
    tested:  draft nodes the target was asked about: accepted ones, and the first refused level
    finish_reason: why the sequence ends here, None if it goes on
    """

    commits: list[Commit] = field(default_factory=list)
    tested: int = 0
    finish_reason: str | None = None

    @property
    def accepted(self) -> int:
        """Draft tokens that were right."""
        return sum(commit.node is not None for commit in self.commits)

    @property
    def tokens(self) -> list[int]:
        return [commit.token for commit in self.commits]

    @property
    def kv_path(self) -> list[int]:
        """Draft nodes whose rows stay in the KV cache: all committed tokens but the last, which is pending."""
        return [commit.node for commit in self.commits[:-1] if commit.node is not None]

    def outcomes(self, draft: Draft) -> Iterator[tuple[int, bool]]:
        """Every draft node whose parent was accepted, and whether it was accepted itself."""
        accepted = {commit.node for commit in self.commits}
        asked = {ROOT, *(commit.node for commit in self.commits[:-1])}
        for node, parent in enumerate(draft.parents):
            if parent in asked:
                yield node, node in accepted


class Asked(TypedDict, total=False):
    """What is reported of tokens besides themselves."""

    logprobs: bool
    top_logprobs: int


def walk(
    draft: Draft,
    rows: Rows,
    sampler: Sampler,
    stop: StopRule,
    position: int,
    *,
    logprobs: bool = False,
    top_logprobs: int = 0,
) -> Verdict:
    """Walk the draft with the target's rows.

    rows:         row 0 belongs to the pending token, row i + 1 to draft node i
    position:     absolute position of the first token to choose, the number of tokens committed so far
    logprobs:     report each token's log-probability
    top_logprobs: and those of so many of the likeliest tokens in its place
    """
    verdict = Verdict()
    node: int | None = ROOT
    while node is not None:
        asked, row = node + 1, rows.logits(node + 1)
        token = sampler.choose(row, position + len(verdict.commits))
        sampler.accept(token)
        verdict.tested += draft.has_children(node)
        node = draft.child(node, token)
        text, verdict.finish_reason = stop.push(token)
        logprob = log_probability(row, token) if logprobs else None
        source = "" if node is None else draft.sources[node]
        top = log_probabilities(row, rows.top(asked, top_logprobs)) if top_logprobs else ()
        verdict.commits.append(Commit(token, node, source, text, logprob, top))
        if verdict.finish_reason is not None:
            break
    return verdict
