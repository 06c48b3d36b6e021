"""The merges of a vocabulary: read from the file, or derived from scores.

SentencePiece vocabularies have no list of merges. What llama.cpp does with one is this: of all neighbours whose joint
spelling is a token, join the two whose token has the best score, the leftmost of equals, until there are none. As a
list of merges that is, for every token, the pairs it can be joined from, those of the best scores first. One pair of a
token is enough: until the token is there nothing outside it has been joined with anything inside, so what happened
inside is what happens to the token's spelling alone, and there one pair is joined last.

A list of merges cannot say "the leftmost of equals". It need not where scores differ, and neither for the one case of
equal scores that is in use: runs of one character, whose lengths have no gap. They grow from the left until they have
their full length; the longest first has the same effect.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise

from slipstream.errors import UnsupportedModelError
from slipstream.models.vocabulary import USER_DEFINED
from slipstream.tokenizer.alphabet import UTF8_BYTES, byte_name
from slipstream.tokenizer.specification import Specification

Merge = tuple[str, str]
MOST_WORK = 1 << 28
"""Sum of the squared lengths of tokens; real vocabularies stay below a tenth of it."""
BLANK = "▁"
"""SentencePiece's spelling of a space, U+2581."""


def merges_of(specification: Specification, texts: Mapping[str, int]) -> list[Merge]:
    """All merges, most urgent first. Parts of those that are derived may be characters that are no tokens.

    texts: the tokens by their spelling, in the order of their ids
    Raises ModelFileError for merges that cannot be, or whose order is not known.
    """
    if specification.pre is None:
        return _derived(specification, texts)
    return _stated(specification, texts)


def _stated(specification: Specification, texts: Mapping[str, int]) -> list[Merge]:
    assert specification.merges is not None
    merges: dict[Merge, None] = {}  # of two that are equal the first one counts
    for raw in specification.merges:
        text = raw.decode(errors="replace")
        left, _, right = text[1:].partition(" ")  # the first character is no separator
        left = text[:1] + left
        if not (left in texts and right in texts and left + right in texts):
            raise specification.damaged(f"the merge {text[:80]!r} is not one of tokens")
        merges.setdefault((left, right))
    if not specification.byte_level:
        _refuse_bytes(specification, merges)
    return list(merges)


def _derived(specification: Specification, texts: Mapping[str, int]) -> list[Merge]:
    assert specification.scores is not None
    if sum(len(text) ** 2 for text in texts) > MOST_WORK:
        raise specification.damaged("its tokens are impossibly long")
    scores = dict(zip(texts, specification.scores.tolist(), strict=True))
    merges = [merge for text in texts if (merge := _last_merge(text, scores)) is not None]
    merges.sort(key=lambda merge: (-scores[merge[0] + merge[1]], -len(merge[0] + merge[1])))
    # User-defined tokens are cut out of a text before anything is joined, unless they only arise with a blank.
    cut = {
        text
        for text, kind in zip(texts, specification.types.tolist(), strict=True)
        if kind == USER_DEFINED and BLANK not in text
    }
    joined = [text for left, right in merges if (text := left + right) not in cut]
    _require_order(specification, joined, scores)
    _refuse_bytes(specification, merges)
    return merges


def _last_merge(text: str, scores: Mapping[str, float]) -> Merge | None:
    """The pair that is joined last when this token comes into being, None if it never does."""
    cuts = [
        cut
        for cut in range(1, len(text))
        if (cut == 1 or text[:cut] in scores) and (cut == len(text) - 1 or text[cut:] in scores)
    ]
    if len(cuts) < 2:  # there is no choice; the pair does no harm where it is never found
        return (text[: cuts[0]], text[cuts[0] :]) if cuts else None
    parts = list(text)
    while len(parts) > 2:
        joint = [scores.get(left + right, -math.inf) for left, right in pairwise(parts)]
        best = max(joint)
        if best == -math.inf:
            return None
        place = joint.index(best)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def _require_order(specification: Specification, joined: Sequence[str], scores: Mapping[str, float]) -> None:
    """Refuse tokens of equal scores, unless they are runs of one character. joined: best first, then longest first."""
    for _, group in groupby(joined, scores.__getitem__):
        first, *others = equals = list(group)
        if others and equals != [first[0] * length for length in range(len(equals) + 1, 1, -1)]:
            raise UnsupportedModelError(
                f"{specification.path.name} has a tokenizer whose scores do not say which of "
                f"{first!r} and {others[0]!r} comes first."
            )


def _refuse_bytes(specification: Specification, merges: Iterable[Merge]) -> None:
    """Tokens that stand for a byte, in place of what has no token, are never joined with anything."""
    names = {byte_name(byte) for byte in UTF8_BYTES}
    for left, right in merges:
        if left in names or right in names:
            raise specification.damaged(f"it merges {left!r} and {right!r}")
