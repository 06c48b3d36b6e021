"""Gumbel noise keyed by (seed, choice, position, token id).

The noise of a token depends on nothing else: not on the other tokens that survive a filter, not on the order
in which positions are visited, not on who asks. Plain decoding, verification and every drafter therefore read
the same numbers, which is what makes speculation leave the text alone (Daliri, Musco, Suresh 2024, arXiv 2408.07978).

Gumbel noise is `-log E` with E ~ Exp(1), and argmax(log p + G) = argmin(E / p). The exponentials are
drawn in blocks of `BLOCK_MEMBERS` tokens, smallest first, which is how the sampler finds the winner of an
unfiltered row without hashing the whole vocabulary:

    minimum of a block of m:  E_block / m          because the least of m Exp(1) is Exp(m)
    who holds it:             uniform over the m    independent of the value (other bits of the same hash)
    all the others:           E_block / m + E_id    because the exponential has no memory

Every E(id) is exactly Exp(1) and all are independent (tests/core/test_noise.py has the arithmetic).
"""

import hashlib
import struct
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

BLOCK_MEMBERS: Final = 64
BLOCK_COLUMNS: Final = 512
"""Members of a block lie this far apart, so that block maxima of a row of logits are vertical maxima."""
SUPERBLOCK: Final = BLOCK_MEMBERS * BLOCK_COLUMNS

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_SHIFTS: Final = tuple(np.uint64(bits) for bits in (30, 27, 31, 12))
_MEMBER_MASK: Final = np.uint64(BLOCK_MEMBERS - 1)
_BLOCK_COUNTER: Final = 2**62
"""Counters of blocks begin here, those of token ids at 0."""
_KEPT_POSITIONS: Final = 64
_UNIT: Final = 2.0**-52

UInts = NDArray[np.uint64]
Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


def block_of(ids: Ids) -> Ids:
    """[n] block index of each token id."""
    return (ids >> 15 << 9) | (ids & (BLOCK_COLUMNS - 1))


def member_of(ids: Ids) -> Ids:
    """[n] place of each token id within its block, 0 .. BLOCK_MEMBERS - 1."""
    return (ids >> 9) & (BLOCK_MEMBERS - 1)


def block_count(vocabulary_size: int) -> int:
    """Number of blocks that hold at least one id below `vocabulary_size`."""
    whole, rest = divmod(vocabulary_size, SUPERBLOCK)
    return whole * BLOCK_COLUMNS + min(rest, BLOCK_COLUMNS)


def block_ids(blocks: Ids) -> Ids:
    """[n, BLOCK_MEMBERS] token ids of each block; the last ones may lie beyond the vocabulary."""
    first = (blocks >> 9 << 15) | (blocks & (BLOCK_COLUMNS - 1))
    return first[:, None] + _MEMBER_OFFSETS


_MEMBER_OFFSETS: Final = np.arange(BLOCK_MEMBERS, dtype=np.int64) * BLOCK_COLUMNS


class PositionNoise:
    """The noise of one position; made by `Noise.at`."""

    __slots__ = ("_blocks", "_keys")

    def __init__(self, key: bytes) -> None:
        self._keys = np.frombuffer(key, np.uint64)
        self._blocks: tuple[Floats, Ids] | None = None

    def _hash(self, steps: UInts) -> UInts:
        """SplitMix64 (Steele, Lea, Flood 2014) from a keyed start, with a second key inside the finaliser.

        steps: counters times `_GOLDEN`
        """
        z: UInts = steps + self._keys[0]
        z ^= z >> _SHIFTS[0]
        z *= _MIX_1
        z ^= self._keys[1]
        z ^= z >> _SHIFTS[1]
        z *= _MIX_2
        z ^= z >> _SHIFTS[2]
        return z

    def block_minima(self, count: int) -> tuple[Floats, Ids]:
        """For the first `count` blocks: the least exponential, and the member that holds it; all others' are larger."""
        if self._blocks is None or len(self._blocks[0]) != count:
            hashes = self._hash(_block_steps(count))
            minima = _exponential(hashes)
            minima *= 1.0 / BLOCK_MEMBERS
            self._blocks = minima, _holder(hashes)
        return self._blocks

    def exponential(self, ids: Ids) -> Floats:
        """[n] Exp(1) of each token id."""
        # one pass over ids and blocks together: at these sizes numpy's price is the call, not the element
        hashes = self._hash(_steps(np.concatenate((ids, block_of(ids) + _BLOCK_COUNTER))))
        values = _exponential(hashes)
        own, minima = values[: len(ids)], values[len(ids) :]
        own *= member_of(ids) != _holder(hashes[len(ids) :])
        minima *= 1.0 / BLOCK_MEMBERS
        own += minima
        return own

    def member_exponentials(self, ids: Ids, minima: Floats, holders: Ids) -> Floats:
        """`exponential` of ids when what `block_minima` gives for all blocks is known already."""
        blocks = block_of(ids)
        values = _exponential(self._hash(_steps(ids)))
        values *= member_of(ids) != holders[blocks]
        values += minima[blocks]
        return values

    def gumbel(self, ids: Ids) -> Floats:
        """[n] standard Gumbel noise of each token id."""
        values = self.exponential(ids)
        np.log(values, out=values)
        return np.negative(values, out=values)


def _steps(counters: Ids) -> UInts:
    return counters.astype(np.uint64) * _GOLDEN


@cache
def _block_steps(count: int) -> UInts:
    """The same for every row of a model, so kept."""
    return _steps(np.arange(count) + _BLOCK_COUNTER)


def _exponential(hashes: UInts) -> Floats:
    """-log of a uniform on the midpoints of 2^52 equal cells: never 0, never infinite."""
    uniform = (hashes >> _SHIFTS[3]).astype(np.float64)
    uniform += 0.5
    uniform *= _UNIT
    np.log(uniform, out=uniform)
    return np.negative(uniform, out=uniform)


def _holder(hashes: UInts) -> Ids:
    """The member that holds its block's minimum, from bits that `_exponential` does not use."""
    return (hashes & _MEMBER_MASK).view(np.int64)


class Noise:
    """All the noise of one generation.

    seed:   any integer, taken modulo 2^64
    choice: index of the completion when one prompt is answered several times (`n > 1`)
    """

    __slots__ = ("_recent", "choice", "seed")

    def __init__(self, seed: int, choice: int = 0) -> None:
        self.seed = int(seed) % 2**64
        self.choice = choice
        self._recent: dict[int, PositionNoise] = {}

    def at(self, position: int) -> PositionNoise:
        """The noise that chooses the token at this absolute position of the sequence.

        The last positions are kept: a drafter asks first, the target's verification soon after.
        """
        noise = self._recent.get(position)
        if noise is None:
            if len(self._recent) >= _KEPT_POSITIONS:
                self._recent.clear()
            name = struct.pack("<QQQ", self.seed, self.choice, position)
            key = hashlib.blake2b(name, digest_size=16, person=b"slipstream noise").digest()
            noise = self._recent[position] = PositionNoise(key)
        return noise
