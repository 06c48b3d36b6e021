"""Training a head: the training-time test, and what verification would accept of its drafts."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.models.gguf_writer import stored, write_gguf
from slipstream.train.acceptance import Matches
from slipstream.train.head import (
    MATRICES,
    VECTORS,
    Head,
    Parameters,
    Spread,
    as_numpy,
    new_head,
    shifted,
    started_as_target,
)
from slipstream.train.layers import distilled
from slipstream.train.packs import Batch
from slipstream.train.recipe import Recipe
from slipstream.train.target import States, Weights
from slipstream.train.task import Learned, guesses, places_of, tensor
from slipstream.train.teacher import Teacher
from slipstream.train.texts import Text

IN_BLOCK = frozenset(MATRICES + VECTORS) - {"fc", "embd_fc", "output", "enc.output_norm", "output_norm"}


class HeadTask:
    """Implements `Task` for a head.

    half:  multiply in bfloat16
    begun: first weights, where the recipe begins with those of a head
    """

    def __init__(
        self,
        weights: Weights,
        teacher: Teacher,
        recipe: Recipe,
        half: bool,
        sample: Sequence[States],
        begun: Parameters | None = None,
    ) -> None:
        spread = spread_of(sample)
        if begun is None:
            first = new_head(weights, teacher.output, spread, recipe.seed, direct=recipe.direct)
        else:
            first = begun
        if recipe.start == "target" and recipe.layers[2] == weights.layer_count - 1:
            started_as_target(first, weights, teacher.output, spread)
        self.parameters: Parameters = {name: one.to(teacher.device).requires_grad_() for name, one in first.items()}
        self._teacher, self._recipe, self._half = teacher, recipe, half
        self._sizes, self._layer_count = weights.sizes, weights.layer_count
        self._head = Head(self.parameters, self._sizes)

    def learn(self, batch: Batch, total: float, ahead: int) -> Learned:
        """Every step guesses one token further, from the states of the step before."""
        device, recipe = self._teacher.device, self._recipe
        tokens, texts, wanted = (tensor(part, device) for part in batch[:3])
        hidden = tensor(batch.hidden, device)
        chances = self._teacher.chances(hidden[:, :, -1][wanted].float(), tensor(batch.mass, device)[wanted])
        slots = torch.full(wanted.shape, -1, device=device)
        slots[wanted] = torch.arange(len(chances), device=device)
        output = self.parameters["output"]
        by_output, surrogate = torch.zeros_like(output), torch.zeros((), device=device)
        figures = Learned(0.0, 0.0)
        with self._multiplying(device):
            self._head.begin(hidden[:, :, :3].flatten(2), texts, ahead)
            for step in range(1, ahead + 1):
                state = self._head.step(self._teacher.embedding[shifted(tokens, step)])
                # row t guesses what the target chose after token t + step
                valid = shifted(wanted, step) & (shifted(texts, step, -1) == texts)
                rows = self._head.rows(state)[valid]
                found = distilled(
                    rows.detach(), output.detach(), chances[shifted(slots, step)[valid]], None, self._half
                )
                weight = recipe.step_decay ** (step - 1) / total
                surrogate = surrogate + weight * (rows * found.rows).sum()
                by_output += weight * found.output
                if step == 1:
                    figures = Learned(found.loss / total, float(found.agreement.sum()) / total)
        surrogate.backward()
        output.grad = by_output if output.grad is None else output.grad + by_output
        return figures

    def matches(self, text: Text, states: States, steps: int) -> Matches:
        """As if a round began at every place of the answer."""
        device, ids = self._teacher.device, self._teacher.ids
        places = places_of(text, self._teacher, 1)
        hidden = tensor(states.hidden, device)[None]
        tokens = tensor(text.tokens.astype(np.int64), device)[None]
        chain = np.zeros((len(places.rows), steps), np.bool_)
        among: NDArray[np.bool_] = np.zeros(len(places.rows), np.bool_)
        with torch.no_grad(), self._multiplying(device):
            self._head.begin(hidden[:, :, :3].flatten(2), torch.zeros_like(tokens), steps)
            for step in range(1, steps + 1):
                state = self._head.step(self._teacher.embedding[shifted(tokens, step)])
                # a round that begins before place i + step - 1 drafts the token there in this step
                count = len(places.rows) - step + 1
                if count < 1:
                    break
                rows = self._head.rows(state)[0, places.rows[:count] - 1]
                logits = (rows @ self.parameters["output"].T).float().cpu()
                found = guesses(logits, places.noise[step - 1 :], ids, 3)
                chain[:count, step - 1] = found[:, 0] == places.wanted[step - 1 :]
                if step == 1:
                    among = (found == places.wanted[:, None]).any(axis=1)
        whole = len(places.rows) - steps + 1  # at the very end a draft cannot be as long
        return Matches(text.kind, text.temperature, chain[: max(whole, 0)], among[: max(whole, 0)])

    def write(self, path: Path, metadata: dict[str, Any]) -> None:
        """Write the head in the layout of docs/heads.md."""
        recipe, sizes, ids = self._recipe, self._sizes, self._teacher.ids
        arrays = as_numpy(self.parameters)
        tensors = [stored(_tensor_name(name), arrays[name], "F32") for name in VECTORS]
        tensors += [
            stored(_tensor_name(name), arrays[name], recipe.quantisation) for name in MATRICES if name in arrays
        ]
        if len(ids) < len(self._teacher.embedding):
            tensors.append(stored("d2t", ids, "I64"))
        described = {
            "eagle3.block_count": 1,
            "eagle3.context_length": metadata.pop("context_length"),
            "eagle3.embedding_length": sizes.width,
            "eagle3.feed_forward_length": sizes.feed_forward,
            "eagle3.attention.head_count": sizes.heads,
            "eagle3.attention.head_count_kv": sizes.key_value_heads,
            "eagle3.attention.key_length": sizes.head_size,
            "eagle3.attention.value_length": sizes.head_size,
            "eagle3.attention.layer_norm_rms_epsilon": sizes.epsilon,
            "eagle3.rope.freq_base": sizes.rotary_base,
            "eagle3.rope.dimension_count": sizes.head_size,
            "eagle3.vocab_size": len(self._teacher.embedding),
            "eagle3.target_hidden_size": sizes.width,
            "eagle3.target_layers": np.array(recipe.layers, np.int32),
            "eagle3.norm_before_residual": False,
            "eagle3.norm_before_fc": True,
            "slipstream.head.version": 2 if recipe.direct else 1,
            "slipstream.head.target_layer_count": self._layer_count,
        }
        write_gguf(path, {"general.architecture": "eagle3", **metadata, **described}, tensors)

    def _multiplying(self, device: str) -> AbstractContextManager[Any]:
        kind = torch.device(device).type
        autocast: AbstractContextManager[Any] = torch.autocast(kind, torch.bfloat16, enabled=self._half)
        return autocast


def _tensor_name(name: str) -> str:
    return f"blk.0.{name}.weight" if name in IN_BLOCK else f"{name}.weight"


def spread_of(sample: Sequence[States]) -> Spread:
    """The sizes of states, first tokens left out: theirs are like no others'."""
    sizes: list[NDArray[np.float32]] = []
    squares: NDArray[np.float32] = np.zeros(sample[0].hidden[0, :3].size, np.float32)
    count = 0
    for states in sample:
        values = states.hidden[1:, :3].reshape(len(states.hidden) - 1, -1).astype(np.float32)
        size = np.sqrt(np.square(values).mean(axis=1, keepdims=True)) + 1e-6
        values /= size
        sizes.append(size)
        squares, count = squares + np.square(values).sum(axis=0), count + len(values)
    number = np.sqrt(np.maximum(squares / max(count, 1), 1e-4)).astype(np.float32)
    return Spread(float(np.sqrt(np.square(np.concatenate(sizes)).mean())), number)
