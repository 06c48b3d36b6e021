"""Toy worlds that can be enumerated: every noise table, every draft tree."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from slipstream.core.noise import Noise
from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Constraint, Emission, Segment
from slipstream.core.sampling import Sampler
from slipstream.core.tree import ROOT, Draft
from slipstream.core.verify import walk
from tests.fakes import FakeModel, SmallVocabulary

VOCABULARY = 3
POSITIONS = 3
PROMPT = [0, 1]


class TableNoise(Noise):
    """Noise read from a table: table[position - len(PROMPT)] lists the noise of each token."""

    def __init__(self, table: Sequence[Sequence[float]]) -> None:
        super().__init__(0)
        self.table = table

    def at(self, position: int) -> "TableAt":  # type: ignore[override]
        return TableAt(self.table[position - len(PROMPT)])


class TableAt:
    def __init__(self, values: Sequence[float]) -> None:
        self._values = np.array(values, np.float64)

    def gumbel(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._values[ids]

    def block_minima(self, count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        # token i is the only member of block i
        return np.exp(-self._values[:count]), np.zeros(count, np.int64)

    def member_exponentials(self, ids: NDArray[np.int64], *_: object) -> NDArray[np.float64]:
        return np.exp(-self._values[ids])


class Recorder:
    """A stop rule that stops after `length` tokens, or at a token."""

    def __init__(self, length: int, end: int | None = None) -> None:
        self.left, self.end = length, end

    def push(self, token: int) -> Emission:
        self.left -= 1
        return Emission("", "stop" if token == self.end else "length" if self.left == 0 else None)


def noise_tables() -> Iterator[tuple[tuple[float, ...], ...]]:
    """Every assignment of three noise levels to each token at each position."""
    return product(*[list(product((0.0, 1.0, 3.0), repeat=VOCABULARY))] * POSITIONS)


def trees(nodes: int) -> Iterator[Draft]:
    """Every draft tree with that many nodes."""
    for parents in product(*[range(ROOT, index) for index in range(nodes)]):
        for tokens in product(range(VOCABULARY), repeat=nodes):
            if len(set(zip(parents, tokens, strict=True))) == nodes:
                yield Draft(list(tokens), list(parents), [0.5] * nodes, ["toy"] * nodes, [0] * nodes)


def toy_model(sharpness: float = 1.0) -> FakeModel:
    return FakeModel(SmallVocabulary(VOCABULARY), order=3, sharpness=sharpness, seed=5)


def make_sampler(params: SamplingParams, noise: Noise, constraint: Constraint | None = None) -> Sampler:
    return Sampler(params, VOCABULARY, PROMPT, noise, constraint and constraint.fork())


def plain(
    model: FakeModel,
    params: SamplingParams,
    noise: Noise,
    length: int,
    end: int | None = None,
    constraint: Constraint | None = None,
) -> list[int]:
    """Decoding one token at a time, written out."""
    sampler, tokens = make_sampler(params, noise, constraint), list(PROMPT)
    while len(tokens) < len(PROMPT) + length and (len(tokens) == len(PROMPT) or tokens[-1] != end):
        tokens.append(sampler.choose(model.row(tokens), len(tokens)))
        sampler.accept(tokens[-1])
    return tokens[len(PROMPT) :]


def walked(
    model: FakeModel,
    params: SamplingParams,
    noise: Noise,
    draft: Draft,
    length: int,
    end: int | None = None,
    constraint: Constraint | None = None,
    walk=walk,
) -> list[int]:  # type: ignore[no-untyped-def]
    """What one round with this draft commits."""
    session = model.open_session()
    model.forward([Segment(session, PROMPT[:-1], outputs=0)])
    session.commit([0])
    parents = [-1, *(parent + 1 for parent in draft.parents)]
    [rows] = model.forward([Segment(session, [PROMPT[-1], *draft.tokens], parents)])
    sampler = make_sampler(params, noise, constraint)
    verdict = walk(draft, rows, sampler, Recorder(length, end), len(PROMPT))
    session.commit([0, *(node + 1 for node in verdict.kv_path)])
    assert session.tokens == [*PROMPT, *verdict.tokens][:-1], "the KV cache holds every committed token but the last"
    session.close()
    tokens: list[int] = verdict.tokens
    return tokens
