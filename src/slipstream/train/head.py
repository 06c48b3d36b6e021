"""A head in the manner of EAGLE-3, and its training-time test (Li et al. 2025, arXiv 2503.01840; docs/heads.md)."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from slipstream.train.layers import Shape, attention, causal_mask, gated, initial, normalised, rotary, rotated
from slipstream.train.target import Sizes, Weights

Parameters = dict[str, Tensor]
"""Tensors by the names that they have in the file, without `blk.0.` and `.weight`."""

MATRICES = ("fc", "embd_fc", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output")
FIRST_LOGITS = 1.0
"""Size of a new head's logits."""
VECTORS = ("enc.output_norm", "attn_norm", "attn_norm_2", "ffn_norm", "output_norm")


def head_shapes(sizes: Sizes, vocabulary: int, *, direct: bool = True) -> dict[str, tuple[int, int]]:
    """Rows and columns of each matrix. direct: with `embd_fc`, which adds the embedding to the stream."""
    width, heads, keys = sizes.width, sizes.heads * sizes.head_size, sizes.key_value_heads * sizes.head_size
    own = {"embd_fc": (width, width)} if direct else {}
    return own | {
        "fc": (width, 3 * width),
        "attn_q": (heads, 2 * width),
        "attn_k": (keys, 2 * width),
        "attn_v": (keys, 2 * width),
        "attn_output": (width, heads),
        "ffn_gate": (sizes.feed_forward, width),
        "ffn_up": (sizes.feed_forward, width),
        "ffn_down": (width, sizes.feed_forward),
        "output": (vocabulary, width),
    }


class Spread(NamedTuple):
    """How large a target's states are.

    size:   root mean square of a token's three states together
    number: [3 * width] root mean square of each number after they were divided by that
    """

    size: float
    number: NDArray[np.float32]


def new_head(weights: Weights, output: Tensor, spread: Spread, seed: int, *, direct: bool = True) -> Parameters:
    """First weights: the target's output rows with its output norm multiplied in, the rest random.

    spread: so that all numbers of the states weigh the same at first
    """
    sizes = weights.sizes
    width, generator = sizes.width, torch.Generator().manual_seed(seed)
    shapes = head_shapes(sizes, len(output), direct=direct)
    # what is added to the residual stream begins small
    gains = {"attn_output": 0.5, "ffn_down": 0.5, "fc": 0.5, "embd_fc": 0.5}
    made = {name: initial(shape, generator, gains.get(name, 1.0)) for name, shape in shapes.items()}
    made |= {name: torch.ones(width) for name in VECTORS}
    made["enc.output_norm"] = torch.from_numpy(1 / spread.number)
    rows = output.detach().cpu().float() * torch.from_numpy(weights.read(weights.decoder.output_norm.weight))
    # a state has size 1 in each number: logits that begin as large as the target's would all be wrong, and sure of it
    made["output"] = rows * (FIRST_LOGITS / (rows.square().mean().sqrt() * math.sqrt(width)))
    return made


def started_as_target(head: Parameters, weights: Weights, output: Tensor, spread: Spread) -> bool:
    """Let a new head compute what the target's last layer does with the last of the three states, its input.

    False, and nothing has changed, where the target's layers are not a head's.
    """
    layer = weights.last_layer()
    if layer is None:
        return False
    width = weights.sizes.width
    with torch.no_grad():
        for name in ("attn_q", "attn_k", "attn_v"):
            head[name] *= 0.1
            head[name][:, width:] = torch.from_numpy(layer[name])
        for name in ("attn_norm_2", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
            head[name] = torch.from_numpy(layer[name]).clone()
        for name in ("fc", *({"embd_fc"} & set(head))):
            head[name] *= 0.1
        # undoes the division by size and spread
        head["fc"][:, 2 * width :] = torch.diag(torch.from_numpy(spread.number[2 * width :] * spread.size))
        head["output"] = output.detach().cpu().float().clone()
        head["output_norm"] = torch.from_numpy(weights.read(weights.decoder.output_norm.weight)).clone()
    return True


class Head:
    """The head's forward. parameters: see `Parameters`."""

    def __init__(self, parameters: Parameters, sizes: Sizes) -> None:
        self.parameters, self.sizes = parameters, sizes
        self._shape = Shape(sizes.heads, sizes.key_value_heads, sizes.head_size)

    def begin(self, hidden: Tensor, texts: Tensor, steps: int) -> None:
        """Read true states.

        hidden: [B, T, 3 * width]
        texts:  [B, T] which text a token belongs to
        steps:  that are to follow, at most
        """
        length = texts.shape[1]
        cosines, sines = rotary(length + steps, self.sizes.head_size, self.sizes.rotary_base)
        self._turn = cosines.to(texts.device), sines.to(texts.device)
        self._mask = causal_mask(texts)
        p = self.parameters
        self._state = functional.linear(normalised(hidden, p["enc.output_norm"], self.sizes.epsilon), p["fc"])
        self._first: tuple[Tensor, Tensor] | None = None
        self._later: list[tuple[Tensor, Tensor]] = []
        self._step = 0

    def step(self, embedding: Tensor) -> Tensor:
        """The next step's states [B, T, width], before the output norm.

        embedding: [B, T, width] of the tokens that the step before guessed; of those that came, in the first step
        """
        p, sizes, epsilon = self.parameters, self.sizes, self.sizes.epsilon
        residual = self._state.float()
        read = normalised(embedding, p["attn_norm"], epsilon)
        if "embd_fc" in p:
            residual = residual + functional.linear(read, p["embd_fc"]).float()
        both = torch.cat((read, normalised(residual, p["attn_norm_2"], epsilon)), -1)
        length = residual.shape[1]
        turn = tuple(part[self._step : self._step + length] for part in self._turn)
        query, key, value = (
            functional.linear(both, p[name]).unflatten(-1, (-1, sizes.head_size))
            for name in ("attn_q", "attn_k", "attn_v")
        )
        query, key = rotated(query, turn).to(value.dtype), rotated(key, turn).to(value.dtype)
        if self._first is None:
            self._first = key, value
        else:
            self._later.append((key, value))
        seen = attention(query, *self._first, self._mask, self._later, self._shape)
        residual = residual + functional.linear(seen, p["attn_output"]).float()
        inner = normalised(residual, p["ffn_norm"], epsilon)
        self._state = residual + gated(inner, p["ffn_gate"], p["ffn_up"], p["ffn_down"]).float()
        self._step += 1
        return self._state

    def rows(self, state: Tensor) -> Tensor:
        """What the output matrix multiplies."""
        return normalised(state, self.parameters["output_norm"], self.sizes.epsilon)


def shifted(values: Tensor, by: int, fill: float = 0) -> Tensor:
    """[B, T, ...] moved to the left along T."""
    tail = torch.full_like(values[:, :by], fill)
    return torch.cat((values[:, by:], tail), 1)


def as_numpy(parameters: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    """For a file."""
    return {name: tensor.detach().cpu().float().numpy() for name, tensor in parameters.items()}
