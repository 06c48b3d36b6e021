"""Tokens that are cut out of a text before it is tokenised: control tokens, and what a vocabulary's author added."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

Fragment = str | int
"""A stretch of text, or a token."""

_BLANKS = " \t\n\v\f\r"
_PREFIX = 3
"""Tokens that begin with the same characters are looked for together, and not at all where these do not occur."""


class SpecialTokens:
    """Finds them as llama.cpp does: the longest token first, wherever it is, then the next in what is left.

    spellings:  of all tokens by id
    on_request: those among them that a text has only where somebody vouches for it
    swallowing: those behind which blanks belong to the token
    """

    def __init__(self, spellings: Mapping[int, str], on_request: set[int], swallowing: frozenset[int]) -> None:
        self._on_request = on_request
        self._swallowing = swallowing
        self._by_prefix: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        longest_first = sorted(spellings.items(), key=lambda item: -len(item[1].encode()))
        for rank, (token, spelling) in enumerate(longest_first):
            self._by_prefix[spelling[:_PREFIX]].append((rank, token, spelling))

    def cut(self, text: str, *, parse_special: bool) -> list[Fragment]:
        """The text as fragments, none of them empty. parse_special: look for those `on_request`, too."""
        fragments: list[Fragment] = [text] if text else []
        for _, token, spelling in sorted(self._present(text, parse_special)):
            fragments = [part for fragment in fragments for part in self._split(fragment, token, spelling)]
        return fragments

    def _present(self, text: str, parse_special: bool) -> Iterator[tuple[int, int, str]]:
        for prefix, entries in self._by_prefix.items():
            if prefix in text:
                for entry in entries:
                    if entry[2] in text and (parse_special or entry[1] not in self._on_request):
                        yield entry

    def _split(self, fragment: Fragment, token: int, spelling: str) -> Iterator[Fragment]:
        if isinstance(fragment, int):
            yield fragment
            return
        start = 0
        while (place := fragment.find(spelling, start)) >= 0:
            if place > start:
                yield fragment[start:place]
            yield token
            start = place + len(spelling)
            if token in self._swallowing:
                start = len(fragment) - len(fragment[start:].lstrip(_BLANKS))
        if start < len(fragment):
            yield fragment[start:]
