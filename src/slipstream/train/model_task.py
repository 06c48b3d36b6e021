"""Training a small draft model of the llama architecture, for any engine that reads GGUF files.

Its logits of tokens that are rare in the answers are all 0: they are trained as one class, which is exact, because that
is what the file says. (Distillation with a reduced softmax; the embedding begins as the target's by a truncated SVD.)
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from slipstream.models.gguf_writer import stored, write_gguf
from slipstream.train.acceptance import Matches
from slipstream.train.layers import (
    Shape,
    attention,
    causal_mask,
    distilled,
    gated,
    initial,
    normalised,
    rotary,
    rotated,
)
from slipstream.train.packs import Batch
from slipstream.train.recipe import Recipe
from slipstream.train.target import States, Weights
from slipstream.train.task import Learned, guesses, places_of, tensor
from slipstream.train.teacher import Teacher
from slipstream.train.texts import Text

ROTARY_BASE = 10000.0
EPSILON = 1e-5
IN_LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


def model_shapes(recipe: Recipe, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Tensors of the file, as PyTorch says their shapes."""
    width, wide = recipe.width, recipe.feed_forward
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (width, width),
        "attn_v": (width, width),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_gate": (wide, width),
        "ffn_up": (wide, width),
        "ffn_down": (width, wide),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocabulary, width)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(recipe.depth) for name, shape in layer.items()}
    return shapes | {"output_norm": (width,), "output": (vocabulary, width)}


class ModelTask:
    """Implements `Task` for a draft model."""

    def __init__(self, weights: Weights, teacher: Teacher, recipe: Recipe, half: bool) -> None:
        self._teacher, self._recipe, self._half = teacher, recipe, half
        self._vocabulary = len(teacher.embedding)
        self._shape = Shape(recipe.heads, recipe.heads, recipe.width // recipe.heads)
        others = self._vocabulary - len(teacher.ids)
        self._rest = torch.tensor(math.log(others), device=teacher.device) if others else None
        self.parameters: dict[str, Tensor] = {
            name: one.to(teacher.device).requires_grad_() for name, one in self._first_weights().items()
        }

    def _first_weights(self) -> dict[str, Tensor]:
        recipe, teacher = self._recipe, self._teacher
        generator = torch.Generator().manual_seed(recipe.seed)
        basis = principal_axes(teacher.embedding.float(), recipe.width)
        made: dict[str, Tensor] = {}
        for name, shape in model_shapes(recipe, self._vocabulary).items():
            small = 0.5 / math.sqrt(recipe.depth) if name.endswith(("attn_output", "ffn_down")) else 1.0
            made[name] = torch.ones(shape) if len(shape) == 1 else torch.zeros(0)
            if len(shape) > 1 and name not in ("token_embd", "output"):
                made[name] = initial(shape, generator, small)
        embedding = teacher.embedding.float() @ basis
        made["token_embd"] = (embedding / embedding.square().mean().sqrt()).cpu()
        # the axes keep the target's logits as far as they go; a normalised row has size 1 in each number
        made["output"] = (teacher.output @ basis).cpu()
        return made

    def learn(self, batch: Batch, total: float, ahead: int) -> Learned:
        """Guess what the target chose after every token of an answer."""
        device = self._teacher.device
        tokens, texts, wanted = (tensor(part, device) for part in batch[:3])
        last = tensor(np.ascontiguousarray(batch.hidden[:, :, -1]), device)[wanted].float()
        chances = self._teacher.chances(last, tensor(batch.mass, device)[wanted])
        output = self.parameters["output"]
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=self._half):
            rows = self._rows(tokens, texts)[wanted]
            found = distilled(rows.detach(), output.detach(), chances, self._rest, self._half)
        (rows * found.rows).sum().div(total).backward()
        by_output = found.output / total
        output.grad = by_output if output.grad is None else output.grad + by_output
        return Learned(found.loss / total, float(found.agreement.sum()) / total)

    def matches(self, text: Text, states: States, steps: int) -> Matches:
        """A draft is right as long as each of its tokens is: what comes before it is then the text."""
        places = places_of(text, self._teacher, 1)
        tokens = tensor(text.tokens.astype(np.int64), self._teacher.device)[None]
        with torch.no_grad(), torch.autocast(tokens.device.type, torch.bfloat16, enabled=self._half):
            rows = self._rows(tokens, torch.zeros_like(tokens))[0, places.rows]
            logits = (rows @ self.parameters["output"].T).float().cpu()
        found = guesses(logits, places.noise, self._teacher.ids, 3)
        right = found[:, 0] == places.wanted
        whole = max(len(right) - steps + 1, 0)
        chain = np.stack([right[step : whole + step] for step in range(steps)], axis=1)
        return Matches(text.kind, text.temperature, chain, (found == places.wanted[:, None]).any(axis=1)[:whole])

    def _rows(self, tokens: Tensor, texts: Tensor) -> Tensor:
        """[B, T, width] what the output matrix multiplies."""
        p = self.parameters
        stream = functional.embedding(tokens, p["token_embd"])
        mask, turn = causal_mask(texts), rotary(tokens.shape[1], self._shape.head_size, ROTARY_BASE)
        turn = turn[0].to(tokens.device), turn[1].to(tokens.device)
        for i in range(self._recipe.depth):
            layer = {name: p[f"blk.{i}.{name}"] for name in IN_LAYER}
            inner = normalised(stream, layer["attn_norm"], EPSILON)
            query, key, value = (
                functional.linear(inner, layer[name]).unflatten(-1, (-1, self._shape.head_size))
                for name in ("attn_q", "attn_k", "attn_v")
            )
            query, key = rotated(query, turn).to(value.dtype), rotated(key, turn).to(value.dtype)
            seen = attention(query, key, value, mask, [], self._shape)
            stream = stream + functional.linear(seen, layer["attn_output"]).float()
            inner = normalised(stream, layer["ffn_norm"], EPSILON)
            stream = stream + gated(inner, layer["ffn_gate"], layer["ffn_up"], layer["ffn_down"]).float()
        return normalised(stream, p["output_norm"], EPSILON)

    def write(self, path: Path, metadata: dict[str, Any]) -> None:
        """Write a llama file with the target's vocabulary."""
        recipe = self._recipe
        arrays: dict[str, NDArray[np.float32]] = {
            name: one.detach().cpu().float().numpy() for name, one in self.parameters.items()
        }
        arrays["output"] = self._spread_output(arrays["output"])
        tensors = [
            stored(f"{name}.weight", array, "F32" if array.ndim < 2 else recipe.quantisation)
            for name, array in arrays.items()
        ]
        described = {
            "llama.block_count": recipe.depth,
            "llama.context_length": metadata.pop("context_length"),
            "llama.embedding_length": recipe.width,
            "llama.feed_forward_length": recipe.feed_forward,
            "llama.attention.head_count": recipe.heads,
            "llama.attention.head_count_kv": recipe.heads,
            "llama.attention.layer_norm_rms_epsilon": EPSILON,
            "llama.rope.freq_base": ROTARY_BASE,
            "llama.rope.dimension_count": self._shape.head_size,
            "llama.vocab_size": self._vocabulary,
        }
        write_gguf(path, {"general.architecture": "llama", **metadata, **described}, tensors)

    def _spread_output(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """[vocabulary, width] the rows of the tokens that can be drafted in their places, 0 for all others."""
        whole = np.zeros((self._vocabulary, rows.shape[1]), np.float32)
        whole[self._teacher.ids] = rows
        return whole


def principal_axes(embedding: Tensor, count: int) -> Tensor:
    """[width, count] the right singular vectors of the embedding's largest singular values."""
    _, vectors = torch.linalg.eigh(embedding.T @ embedding)
    return vectors[:, -count:].flip(1)
