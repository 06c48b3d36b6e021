"""What training needs of a target: some of its weights, and what it thinks while it reads a text."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.protocols import Model, Segment
from slipstream.core.sampling import log_probability
from slipstream.errors import UnsupportedModelError
from slipstream.models.gguf import GgufHeader
from slipstream.runtime.native import _native
from slipstream.runtime.native.loading import Plan, plan
from slipstream.runtime.native.modelfile import NotSupported
from slipstream.runtime.native.program import Attend, Decoder, GatedUnit, Normalise

Numbers = NDArray[np.float32]
MOST_HALF = 65504.0
"""The largest number in half precision; a first token's state can be larger."""


class States(NamedTuple):
    """What a target computed for the n tokens of a text.

    hidden: [n, layers, width] float16, as many layers as were asked for, and the last one's output
    mass:   [n] float32 logarithm of the sum of the exponentials of all logits; 0 for tokens of the prompt but the last
    best:   [n] int32 the token with the largest logit; -1 likewise
    """

    hidden: NDArray[np.float16]
    mass: NDArray[np.float32]
    best: NDArray[np.int32]


class Sizes(NamedTuple):
    """Of a target's layers, as a head has them."""

    width: int
    heads: int
    key_value_heads: int
    head_size: int
    feed_forward: int
    epsilon: float
    rotary_base: float


class Weights:
    """Numbers of a target's tensors, whatever type they are stored in."""

    def __init__(self, header: GgufHeader) -> None:
        try:
            self._plan = plan(header)
        except NotSupported as reason:
            raise UnsupportedModelError(
                f"No drafter can be trained for {header.path.name}: the native runtime cannot run it ({reason})."
            ) from None
        self._header = header
        self.decoder: Decoder = self._plan.decoder

    @property
    def vocabulary(self) -> int:
        return self._plan.vocabulary

    @property
    def layer_count(self) -> int:
        return len(self.decoder.layers)

    @property
    def sizes(self) -> Sizes:
        decoder, header = self.decoder, self._header
        base = header.metadata.get(f"{header.architecture}.rope.freq_base", 10000.0)
        return Sizes(
            width=decoder.width,
            heads=decoder.heads,
            key_value_heads=decoder.key_value_heads,
            head_size=decoder.head_size,
            feed_forward=decoder.feed_forward,
            epsilon=decoder.output_norm.epsilon,
            rotary_base=float(base) if isinstance(base, int | float) else 10000.0,
        )

    def read(self, name: str, rows: Sequence[int] | None = None) -> Numbers:
        """[rows, columns] of a matrix, [columns] of a vector. rows: which of them; None for all."""
        return read_tensor(self._plan, name, rows)

    def last_layer(self) -> dict[str, Numbers] | None:
        """The last layer by the names of a head's tensors; None where it is no plain layer of a llama."""
        operations = self.decoder.layers[-1]
        kinds = [type(operation).__name__ for operation in operations]
        if kinds != ["Normalise", "Attend", "AddProjected", "Normalise", "GatedUnit", "AddProjected"]:
            return None
        first, attend, project, second, unit, down = operations
        assert isinstance(first, Normalise)
        assert isinstance(attend, Attend)
        assert isinstance(second, Normalise)
        assert isinstance(unit, GatedUnit)
        if attend.query.norm or attend.rotary.halves:
            return None
        names = {
            "attn_norm_2": first.weight,
            "attn_q": attend.query.matrix,
            "attn_k": attend.key.matrix,
            "attn_v": attend.value.matrix,
            "attn_output": project.matrix,  # type: ignore[union-attr]
            "ffn_norm": second.weight,
            "ffn_gate": unit.gate,
            "ffn_up": unit.up,
            "ffn_down": down.matrix,  # type: ignore[union-attr]
        }
        return {name: self.read(tensor) for name, tensor in names.items()}


def read_tensor(planned: Plan, name: str, rows: Sequence[int] | None = None) -> Numbers:
    """As `Weights.read`, of any file that the native runtime knows."""
    place = next(place for place in planned.places if place[0] == name)
    weights = _native.load_weights([str(part) for part in planned.parts], [place], 1, None)
    count = place[2]
    wanted = range(count) if rows is None else rows
    numbers = np.empty((len(wanted), place[3]), np.float32)
    for index, row in enumerate(wanted):
        numbers[index] = _native.row_of(weights, 0, int(row))
    return numbers[0] if count == 1 else numbers


def think(model: Model, tokens: Sequence[int] | NDArray[np.int32], prompt: int, layers: Sequence[int]) -> States:
    """What the target computes for a text, read in one session of its own.

    layers: whose outputs are wanted, counted from 0
    prompt: tokens before the first that was chosen by the target
    """
    session = model.open_session()
    try:
        parts = []
        for start in range(0, len(tokens), model.max_rows):
            piece = [int(token) for token in tokens[start : start + model.max_rows]]
            outputs = min(len(piece), max(start + len(piece) - (prompt - 1), 0))
            (rows,) = model.forward([Segment(session, piece, outputs=outputs)], hidden=sorted(set(layers)))
            hidden = np.array([[rows.hidden(row, layer) for layer in layers] for row in range(len(piece))])
            mass, best = np.zeros(len(piece), np.float32), np.full(len(piece), -1, np.int32)
            for row in range(len(piece) - outputs, len(piece)):
                logits = rows.logits(row)
                best[row] = token = int(logits.argmax())
                mass[row] = float(logits[token]) - log_probability(logits, token)
            session.commit(range(len(piece)))
            parts.append(States(np.clip(hidden, -MOST_HALF, MOST_HALF).astype(np.float16), mass, best))
        return States(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    finally:
        session.close()
