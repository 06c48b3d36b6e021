"""Where the newest tokens of a text occurred in millions of others, found in a few steps.

Two hash tables lead from the last 4 and from the last 12 tokens to the newest place at which they occurred; from there
a chain goes back to earlier places. A look at the tokens before a place says how much agrees. All of it is flat arrays:
10 to 14 bytes a token, and nothing that Python has to walk through but the chain's first few steps.
"""

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SHORT, LONG = 4, 12
"""Tokens in common that lead to a place."""
MAX_MATCH = 16
"""Longer matches count as this long."""
MOST_MATCHES, MOST_STEPS = 8, 24
"""Places that a look-up returns, and steps that it goes back for them: the newest."""
SMALLEST = 1 << 12
CHUNK = 1 << 16
"""Tokens that are entered at once."""
_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)
_LONG_FACTORS = (0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3)
_MASK = (1 << 64) - 1

Ids = NDArray[np.integer[Any]]


class Match(NamedTuple):
    """An earlier occurrence. following: tokens that came after it; length: tokens before them that agree."""

    following: list[int]
    length: int


class _Arrays:
    """What an index consists of; exchanged as a whole when it grows.

    tokens:   [capacity] the texts, each with a separator before it
    previous: [capacity] for a place the one before it with the same hash of 4 tokens
    short, long: [capacity / 2] the newest place by hash of 4 and of 12 tokens; 0 is none
    count:    tokens that are there

    A place is the index of the token that followed a run.
    """

    __slots__ = ("bits", "count", "fast", "long", "previous", "raw", "short", "tokens")

    def __init__(self, capacity: int, kind: type[np.unsignedinteger[Any]]) -> None:
        self.tokens = np.empty(capacity, kind)
        self.tokens[:MAX_MATCH] = np.iinfo(kind).max  # so that nobody looks before the beginning
        self.count = MAX_MATCH
        self.previous = np.empty(capacity, np.int32)
        self.bits = (capacity // 2).bit_length() - 1
        self.short = np.zeros(1 << self.bits, np.int32)
        self.long = np.zeros(1 << self.bits, np.int32)
        self.raw = self.tokens.data.cast("B")
        # views whose items are Python's own numbers at once
        self.fast = self.previous.data, self.short.data, self.long.data


class CorpusIndex:
    """Texts that grow at the end, and where runs of their tokens occurred.

    vocabulary_size: ids below it; up to 65,535 of them take two bytes each, else four
    most:            tokens that are kept; when there are more, the oldest quarter is given up

    One thread may add while others look up: these see what was there before, or some of what comes.
    """

    def __init__(self, vocabulary_size: int, most: int) -> None:
        self._kind: type[np.unsignedinteger[Any]] = np.uint16 if vocabulary_size < 1 << 16 else np.uint32
        self._width = np.dtype(self._kind).itemsize
        self._code = "H" if self._width == 2 else "I"
        self._separator = int(np.iinfo(self._kind).max)
        self._size = vocabulary_size
        self._most = max(most, SMALLEST)
        self._arrays = _Arrays(SMALLEST, self._kind)

    def __len__(self) -> int:
        """Tokens, separators included."""
        return self._arrays.count

    def memory(self, expected: int = 0) -> int:
        """Bytes in use, or of an index of so many tokens, if that is more."""
        count = max(self._arrays.count, expected)
        return count * (self._width + 4) + 2 * 4 * max(len(self._arrays.short), self._capacity_for(expected) // 2)

    def add(self, texts: Sequence[Ids]) -> None:
        """Enter texts; those with ids that the vocabulary does not have are left out."""
        separator = np.array([self._separator], self._kind)
        usable = [text for text in texts if len(text) and int(text.max()) < self._size]
        parts = [part for text in usable for part in (separator, text.astype(self._kind))]
        if parts:
            self._append(np.concatenate(parts))

    def reserve(self, tokens: int) -> None:
        """Make room for so many tokens in an index that is empty, so that it need not grow by and by."""
        if self._arrays.count == MAX_MATCH:
            self._arrays = self._arrays_for(tokens)

    def clear(self) -> None:
        """Forget everything."""
        self._arrays = _Arrays(SMALLEST, self._kind)

    def matches(self, tail: Sequence[int], most: int) -> list[Match]:
        """Earlier occurrences of the newest tokens, the newest last; at least `SHORT` tokens agree.

        tail: at least the last `MAX_MATCH` tokens of a text, where it has so many
        most: tokens of what followed
        """
        arrays = self._arrays
        if len(tail) < SHORT or arrays.count == MAX_MATCH:
            return []
        tail = tail[-MAX_MATCH:]
        found = self._places(arrays, tail)
        return [Match(self._following(arrays, place, most), length) for place, length in reversed(found)]

    # --- looking up

    def _places(self, arrays: _Arrays, tail: Sequence[int]) -> list[tuple[int, int]]:
        """(place, tokens in common), the newest first."""
        previous, short, long = arrays.fast
        text, most = self._number(tail), len(tail)
        hashed, shift = _hash(tail, most), 64 - arrays.bits
        found: list[tuple[int, int]] = []
        far = long[_long_hash(tail, hashed) >> shift] if most >= LONG else 0
        if far and (length := self._agreement(arrays, far, text)) >= LONG:
            found.append((far, length))
        place = short[hashed >> shift]
        for _ in range(MOST_STEPS):
            if not place or len(found) == MOST_MATCHES:
                break
            length = self._agreement(arrays, place, text)
            if length >= SHORT and place != far:
                found.append((place, min(length, most)))
            place = previous[place]
        return found

    def _following(self, arrays: _Arrays, place: int, most: int) -> list[int]:
        """Up to so many tokens from a place on, to the end of its text."""
        tokens: list[int] = arrays.tokens[place : min(place + most, arrays.count)].tolist()
        return tokens[: tokens.index(self._separator)] if self._separator in tokens else tokens

    def _number(self, tail: Sequence[int]) -> int:
        """The tokens as one number, the newest in its highest places."""
        return int.from_bytes(array(self._code, tail).tobytes(), "little") << (MAX_MATCH - len(tail)) * self._width * 8

    def _agreement(self, arrays: _Arrays, place: int, text: int) -> int:
        """Tokens before a place that are those of the text."""
        width = self._width
        raw = arrays.raw[(place - MAX_MATCH) * width : place * width]
        return (MAX_MATCH * width * 8 - (int.from_bytes(raw, "little") ^ text).bit_length()) // (width * 8)

    # --- growing

    def _append(self, added: NDArray[np.unsignedinteger[Any]]) -> None:
        arrays = self._arrays
        if arrays.count + len(added) > len(arrays.tokens):
            old = arrays.tokens[MAX_MATCH : arrays.count]
            kept = old if len(old) + len(added) + MAX_MATCH <= self._most else old[max(len(old) // 4, 1) :]
            added = np.concatenate((kept, added))[-(self._most - MAX_MATCH) :]
            arrays = self._arrays_for(len(added))
        for start in range(0, len(added), CHUNK):
            self._enter(arrays, added[start : start + CHUNK])
        self._arrays = arrays

    def _capacity_for(self, tokens: int) -> int:
        return max(1 << (min(tokens + MAX_MATCH, self._most) - 1).bit_length(), SMALLEST)

    def _arrays_for(self, tokens: int) -> _Arrays:
        return _Arrays(self._capacity_for(tokens), self._kind)

    def _enter(self, arrays: _Arrays, added: NDArray[np.unsignedinteger[Any]]) -> None:
        start = arrays.count
        end = start + len(added)
        arrays.tokens[start:end] = added
        first = max(start - LONG, MAX_MATCH) - LONG  # runs may begin before what is added
        window = arrays.tokens[first:end]
        hashes, shift = _hashes(window), np.uint64(64 - arrays.bits)
        index = np.arange(len(window))
        since = index - np.maximum.accumulate(np.where(window == self._separator, index, 0))
        since[: start - first] = 0  # these were entered before
        short, long = np.flatnonzero(since > SHORT), np.flatnonzero(since > LONG)
        _chain(arrays, (hashes[short - SHORT] >> shift << np.uint64(32)) | (first + short).astype(np.uint64))
        arrays.long[_long_hashes(hashes, long) >> shift] = first + long
        arrays.count = end


def _chain(arrays: _Arrays, keys: NDArray[np.uint64]) -> None:
    """Put places at the head of the chains of their hashes. keys: [n] hash and place."""
    if not len(keys):
        return
    keys.sort()
    heads = (keys >> np.uint64(32)).astype(np.int64)
    places = (keys & np.uint64(0xFFFFFFFF)).astype(np.int32)
    begins = np.empty(len(keys), np.bool_)
    begins[0] = True
    np.not_equal(heads[1:], heads[:-1], out=begins[1:])
    before = np.empty_like(places)
    before[1:] = places[:-1]
    before[begins] = arrays.short[heads[begins]]
    arrays.previous[places] = before
    ends = np.append(begins[1:], True)
    arrays.short[heads[ends]] = places[ends]


def _hash(tail: Sequence[int], end: int) -> int:
    """Of the 4 tokens before `end`."""
    a, b, c, d = tail[end - 4 : end]
    return (a * _FACTORS[0] + b * _FACTORS[1] + c * _FACTORS[2] + d * _FACTORS[3]) & _MASK


def _long_hash(tail: Sequence[int], last: int) -> int:
    """Of the last 12 tokens. last: the hash of the last 4."""
    end = len(tail)
    first, second = _hash(tail, end - 8), _hash(tail, end - 4)
    return (first * _LONG_FACTORS[0] + second * _LONG_FACTORS[1] + last * _LONG_FACTORS[2]) & _MASK


def _hashes(tokens: Ids) -> NDArray[np.uint64]:
    """[n - 3] `_hash` of the 4 tokens that begin at each."""
    wide = tokens.astype(np.uint64)
    count = max(len(wide) - 3, 0)
    result = np.zeros(count, np.uint64)
    for place, factor in enumerate(_FACTORS):
        result += wide[place : place + count] * np.uint64(factor)
    return result


def _long_hashes(hashes: NDArray[np.uint64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """`_long_hash` of the 12 tokens before each of `ends`."""
    result = np.zeros(len(ends), np.uint64)
    for back, factor in zip((12, 8, 4), _LONG_FACTORS, strict=True):
        result += hashes[ends - back] * np.uint64(factor)
    return result
