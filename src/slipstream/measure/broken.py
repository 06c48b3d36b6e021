"""Verifiers with one mistake each. A certificate is worth something only if none of them would get it.

Each is the real walk with a sampler that is wrong in one way, or a verdict that is, so that the mistake is the only
difference. The engine has no seam for them, on purpose: what is not the walk has no business in a round. `planted`
puts one there for a while.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Unpack, cast

from slipstream.core.protocols import Logits, Rows, StopRule
from slipstream.core.sampling import Sampler
from slipstream.core.tree import ROOT, Draft
from slipstream.core.verify import Asked, Verdict, walk
from slipstream.engine import round as rounds
from slipstream.measure.distribution import Verify

ELSEWHERE = 2**40
"""So far away no sequence has a position."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A broken verifier and what is wrong with it.

    shows_in_law: whether tokens then come with other frequencies; if not, only the ids tell
    """

    name: str
    what: str
    verify: Verify
    shows_in_law: bool


@contextmanager
def planted(verify: Verify) -> Iterator[None]:
    """Inside, all engines verify with this."""
    genuine = rounds.walk  # type: ignore[attr-defined]
    rounds.walk = verify  # type: ignore[assignment, attr-defined]
    try:
        yield
    finally:
        rounds.walk = genuine  # type: ignore[attr-defined]


class _Chooser:
    """A sampler whose choices can be bent; all else is the sampler's."""

    def __init__(self, sampler: Sampler, draft: Draft, position: int) -> None:
        self._sampler, self._draft, self._first = sampler, draft, position

    def choose(self, row: Logits, position: int) -> int:
        return self._sampler.choose(row, position)

    def accept(self, token: int) -> None:
        self._sampler.accept(token)


class _Argmax(_Chooser):
    def choose(self, row: Logits, position: int) -> int:
        return int(row.argmax()) if len(self._draft) else super().choose(row, position)


class _SameNoise(_Chooser):
    def choose(self, row: Logits, position: int) -> int:
        return super().choose(row, self._first)


class _OtherNoise(_Chooser):
    def choose(self, row: Logits, position: int) -> int:
        return super().choose(row, position + ELSEWHERE if len(self._draft) else position)


class _OneTooMany(_Chooser):
    """Follows the draft, and takes the first token that is refused all the same."""

    def __init__(self, sampler: Sampler, draft: Draft, position: int) -> None:
        super().__init__(sampler, draft, position)
        self._node: int | None = ROOT

    def choose(self, row: Logits, position: int) -> int:
        token, draft = super().choose(row, position), self._draft
        if self._node is None:
            return token
        child = draft.child(self._node, token)
        if child is None and draft.has_children(self._node):
            token = draft.tokens[draft.parents.index(self._node)]
            self._node = None
        else:
            self._node = child
        return token


class _StaleVerdict(Verdict):
    """Leaves the row of the first refused draft token in the KV cache."""

    refused: int | None = None

    @property
    def kv_path(self) -> list[int]:
        path = super().kv_path
        return path if self.refused is None else [*path, self.refused]


def _with(chooser: type[_Chooser]) -> Verify:
    def verify(
        draft: Draft, rows: Rows, sampler: Sampler, stop: StopRule, position: int, **asked: Unpack[Asked]
    ) -> Verdict:
        bent = cast(Sampler, chooser(sampler, draft, position))
        return walk(draft, rows, bent, stop, position, **asked)

    return verify


def _stale(
    draft: Draft, rows: Rows, sampler: Sampler, stop: StopRule, position: int, **asked: Unpack[Asked]
) -> Verdict:
    right = walk(draft, rows, sampler, stop, position, **asked)
    verdict = _StaleVerdict(right.commits, right.tested, right.finish_reason)
    last = right.kv_path[-1] if right.kv_path else ROOT
    if right.commits[-1].node is None and draft.has_children(last):
        verdict.refused = draft.parents.index(last)
    return verdict


MISTAKES = (
    Mistake("argmax", "takes the likeliest token where it should sample", _with(_Argmax), True),
    Mistake("one too many", "accepts the first draft token that it should refuse", _with(_OneTooMany), True),
    Mistake("stale KV", "leaves a refused draft token in the KV cache", _stale, False),
    Mistake("reused noise", "chooses all tokens of a round with one position's noise", _with(_SameNoise), True),
    Mistake("other noise", "checks drafts with noise that plain decoding does not have", _with(_OtherNoise), False),
)
