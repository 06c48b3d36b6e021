"""The vocabulary in which an architecture is written down: a decoder as a list of fused operations.

Matrices are named by their tensors in the file. `compiled` hands the list to the C++ side, which runs it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipstream.runtime.native._native import Activation, Program, Weights

Index = Mapping[str, int]
"""Tensors by name: their numbers in `Weights`."""


@dataclass(frozen=True, slots=True)
class Normalise:
    """RMSNorm of the residual stream x (Zhang, Sennrich 2019): what the next operation reads."""

    weight: str
    epsilon: float

    def vectors(self) -> tuple[str, ...]:
        return (self.weight,)

    def matrices(self) -> tuple[str, ...]:
        return ()

    def numbers(self, index: Index) -> tuple[int, float]:
        """Where it is a part of another operation."""
        return index[self.weight], self.epsilon

    def add_to(self, program: Program, index: Index, rotaries: Sequence["Rotary"]) -> None:
        program.normalise(self.numbers(index))


@dataclass(frozen=True, slots=True)
class Join:
    """The embedding of each row's token, normalised, and behind it the stream: an input twice as wide.

    stream: the norm of the stream, None for the stream as it is
    """

    embedding: Normalise
    stream: Normalise | None

    def vectors(self) -> tuple[str, ...]:
        return self.embedding.vectors() + (self.stream.vectors() if self.stream else ())

    def matrices(self) -> tuple[str, ...]:
        return ()

    def add_to(self, program: Program, index: Index, rotaries: Sequence["Rotary"]) -> None:
        program.join(self.embedding.numbers(index), self.stream.numbers(index) if self.stream else None)


@dataclass(frozen=True, slots=True)
class ReadEmbedding:
    """The embedding of each row's token, normalised: what the next projection reads."""

    norm: Normalise

    def vectors(self) -> tuple[str, ...]:
        return self.norm.vectors()

    def matrices(self) -> tuple[str, ...]:
        return ()

    def add_to(self, program: Program, index: Index, rotaries: Sequence["Rotary"]) -> None:
        program.read_embedding(self.norm.numbers(index))


@dataclass(frozen=True, slots=True)
class Fuse:
    """How rows begin that go on from another model's hidden states: x = after(matrix * before(states)).

    Rows that go on from a state of their own kind begin with after(state). Norms may be None.
    """

    matrix: str
    before: Normalise | None = None
    after: Normalise | None = None

    def vectors(self) -> tuple[str, ...]:
        return tuple(norm.weight for norm in (self.before, self.after) if norm)


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of queries, of keys or of values: matrix * the normalised stream.

    bias: is added
    norm: of each head, before it is turned
    """

    matrix: str
    bias: str | None = None
    norm: Normalise | None = None

    def vectors(self) -> tuple[str, ...]:
        norm = self.norm.vectors() if self.norm else ()
        return ((self.bias,) if self.bias else ()) + norm

    def numbers(self, index: Index) -> tuple[int, int | None, tuple[int, float] | None]:
        bias = index[self.bias] if self.bias else None
        return index[self.matrix], bias, self.norm.numbers(index) if self.norm else None


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary position embedding (Su et al. 2021).

    frequencies: radians per position of each pair of a head's dimensions
    halves:      a pair is (i, i + size / 2) and not (2i, 2i + 1)
    """

    frequencies: tuple[float, ...]
    halves: bool = False


@dataclass(frozen=True, slots=True)
class Attend:
    """Queries, keys and values of the normalised stream, rotated; causal attention over the cache.

    Query heads that share a key-value head lie beside each other.

    scale:  multiplies the scores
    window: how many positions a row sees, the last of them its own; None is all
    """

    query: Heads
    key: Heads
    value: Heads
    rotary: Rotary
    scale: float
    window: int | None = None

    def vectors(self) -> tuple[str, ...]:
        return self.query.vectors() + self.key.vectors() + self.value.vectors()

    def matrices(self) -> tuple[str, ...]:
        return (self.query.matrix, self.key.matrix, self.value.matrix)

    def add_to(self, program: Program, index: Index, rotaries: Sequence[Rotary]) -> None:
        query, key, value = (heads.numbers(index) for heads in (self.query, self.key, self.value))
        program.attend(query, key, value, self.scale, rotaries.index(self.rotary), self.window or 0)


@dataclass(frozen=True, slots=True)
class GatedUnit:
    """activation(gate x) * (up x) of the normalised stream: SwiGLU or, with GELU's approximation by tanh, GEGLU
    (Shazeer 2020).
    """

    gate: str
    up: str
    activation: Activation = Activation.SILU

    def vectors(self) -> tuple[str, ...]:
        return ()

    def matrices(self) -> tuple[str, ...]:
        return (self.gate, self.up)

    def add_to(self, program: Program, index: Index, rotaries: Sequence[Rotary]) -> None:
        program.gated_unit(index[self.gate], index[self.up], self.activation)


@dataclass(frozen=True, slots=True)
class AddProjected:
    """x += matrix * what the operation before computed, and with a norm: x += norm(matrix * that)."""

    matrix: str
    norm: Normalise | None = None

    def vectors(self) -> tuple[str, ...]:
        return self.norm.vectors() if self.norm else ()

    def matrices(self) -> tuple[str, ...]:
        return (self.matrix,)

    def add_to(self, program: Program, index: Index, rotaries: Sequence[Rotary]) -> None:
        if self.norm:
            program.add_normalised(index[self.matrix], self.norm.numbers(index))
        else:
            program.add_projected(index[self.matrix])


Operation = Normalise | Join | ReadEmbedding | Attend | GatedUnit | AddProjected


@dataclass(frozen=True, slots=True)
class Decoder:
    """A whole model. Sizes are checked against the tensors when it is loaded.

    embedding, output: may name the same tensor, which is then stored once; without `embedding` whoever calls has
                       the embeddings
    embedding_scale:   what embeddings are multiplied by
    fuse:              what rows begin with instead of their embeddings
    """

    width: int
    heads: int
    key_value_heads: int
    head_size: int
    feed_forward: int
    embedding: str | None
    layers: tuple[tuple[Operation, ...], ...]
    output_norm: Normalise
    output: str
    embedding_scale: float = 1.0
    fuse: Fuse | None = None

    def tensors(self) -> list[str]:
        """Names of all tensors, each once."""
        names = [self.embedding] if self.embedding else []
        if self.fuse:
            names += [self.fuse.matrix, *self.fuse.vectors()]
        for operation in self._operations():
            names += [*operation.matrices(), *operation.vectors()]
        return list(dict.fromkeys([*names, self.output_norm.weight, self.output]))

    def vectors(self) -> frozenset[str]:
        """Names of the tensors that must be vectors."""
        names = [name for operation in self._operations() for name in operation.vectors()]
        names += self.fuse.vectors() if self.fuse else ()
        return frozenset([*names, self.output_norm.weight])

    def gates(self) -> frozenset[str]:
        """Names of the matrices with `feed_forward` rows."""
        units = [one for one in self._operations() if isinstance(one, GatedUnit)]
        return frozenset(name for unit in units for name in unit.matrices())

    def rotaries(self) -> list[Rotary]:
        """The rotary embeddings of all layers, each once."""
        return list(dict.fromkeys(one.rotary for one in self._operations() if isinstance(one, Attend)))

    def windows(self) -> list[int]:
        """How many positions a row sees in each layer; 0 for all."""
        return [sum(one.window or 0 for one in layer if isinstance(one, Attend)) for layer in self.layers]

    def _operations(self) -> Iterator[Operation]:
        for layer in self.layers:
            yield from layer


def compiled(decoder: Decoder, weights: Weights, names: Sequence[str]) -> Program:
    """The decoder as the C++ side runs it; `names` are the tensors of `weights` in their order.

    Raises ValueError, with a clause about the file, if matrices do not fit together.
    """
    index = {name: position for position, name in enumerate(names)}
    program = Program(weights, decoder.width, decoder.heads, decoder.key_value_heads, decoder.head_size)
    if decoder.embedding is not None:
        program.embedding(index[decoder.embedding], decoder.embedding_scale)
    if (fuse := decoder.fuse) is not None:
        before, after = (norm.numbers(index) if norm else None for norm in (fuse.before, fuse.after))
        program.fuse(index[fuse.matrix], before, after)
    rotaries = decoder.rotaries()
    for rotary in rotaries:
        program.rotary(rotary.frequencies, rotary.halves)
    for layer in decoder.layers:
        program.layer()
        for operation in layer:
            operation.add_to(program, index, rotaries)
    program.output(decoder.output_norm.numbers(index), index[decoder.output])
    program.check()
    return program
