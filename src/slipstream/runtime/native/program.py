"""The vocabulary in which an architecture is written down: a decoder as a list of fused operations.

Matrices are named by their tensors in the file. `compiled` hands the list to the C++ side, which runs it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipstream.runtime.native._native import Program, Weights


@dataclass(frozen=True, slots=True)
class Normalise:
    """RMSNorm of the residual stream x (Zhang, Sennrich 2019): what the next operation reads."""

    weight: str
    epsilon: float

    def tensors(self) -> tuple[str, ...]:
        return (self.weight,)

    def add_to(self, program: Program, index: Mapping[str, int]) -> None:
        program.normalise(index[self.weight], self.epsilon)


@dataclass(frozen=True, slots=True)
class Attend:
    """Queries, keys and values of the normalised stream, rotated; causal attention over the cache.

    Query heads that share a key-value head lie beside each other. `scale` multiplies the scores.
    """

    query: str
    key: str
    value: str
    scale: float

    def tensors(self) -> tuple[str, ...]:
        return (self.query, self.key, self.value)

    def add_to(self, program: Program, index: Mapping[str, int]) -> None:
        program.attend(index[self.query], index[self.key], index[self.value], self.scale)


@dataclass(frozen=True, slots=True)
class GatedUnit:
    """SwiGLU of the normalised stream: silu(gate x) * (up x) (Shazeer 2020)."""

    gate: str
    up: str

    def tensors(self) -> tuple[str, ...]:
        return (self.gate, self.up)

    def add_to(self, program: Program, index: Mapping[str, int]) -> None:
        program.gated_unit(index[self.gate], index[self.up])


@dataclass(frozen=True, slots=True)
class AddProjected:
    """x += matrix * what the operation before computed."""

    matrix: str

    def tensors(self) -> tuple[str, ...]:
        return (self.matrix,)

    def add_to(self, program: Program, index: Mapping[str, int]) -> None:
        program.add_projected(index[self.matrix])


Operation = Normalise | Attend | GatedUnit | AddProjected


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary position embedding (Su et al. 2021).

    frequencies: radians per position of each pair of a head's dimensions
    halves:      a pair is (i, i + size / 2) and not (2i, 2i + 1)
    """

    frequencies: tuple[float, ...]
    halves: bool = False


@dataclass(frozen=True, slots=True)
class Decoder:
    """A whole model. Sizes are checked against the tensors when it is loaded.

    embedding, output: may name the same tensor, which is then stored once
    """

    width: int
    heads: int
    key_value_heads: int
    head_size: int
    feed_forward: int
    embedding: str
    rotary: Rotary
    layers: tuple[tuple[Operation, ...], ...]
    output_norm: Normalise
    output: str

    def tensors(self) -> list[str]:
        """Names of all tensors, each once, in the order of their use."""
        return list(dict.fromkeys(self._uses()))

    def norms(self) -> frozenset[str]:
        """Names of the tensors that must be vectors."""
        operations = [operation for layer in self.layers for operation in layer]
        return frozenset(one.weight for one in [*operations, self.output_norm] if isinstance(one, Normalise))

    def gates(self) -> frozenset[str]:
        """Names of the matrices with `feed_forward` rows."""
        units = [one for layer in self.layers for one in layer if isinstance(one, GatedUnit)]
        return frozenset(name for unit in units for name in unit.tensors())

    def _uses(self) -> Iterator[str]:
        yield self.embedding
        for layer in self.layers:
            for operation in layer:
                yield from operation.tensors()
        yield from (self.output_norm.weight, self.output)


def compiled(decoder: Decoder, weights: Weights, names: Sequence[str]) -> Program:
    """The decoder as the C++ side runs it; `names` are the tensors of `weights` in their order.

    Raises ValueError, with a clause about the file, if matrices do not fit together.
    """
    index = {name: position for position, name in enumerate(names)}
    program = Program(weights, decoder.width, decoder.heads, decoder.key_value_heads, decoder.head_size)
    program.embedding(index[decoder.embedding])
    program.rotary(decoder.rotary.frequencies, decoder.rotary.halves)
    for layer in decoder.layers:
        program.layer()
        for operation in layer:
            operation.add_to(program, index)
    norm = decoder.output_norm
    program.output(index[norm.weight], norm.epsilon, index[decoder.output])
    program.check()
    return program
