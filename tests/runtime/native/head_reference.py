"""A head in plain PyTorch, as its paper and its published checkpoints have it: one text, no cache, float32.

Li et al. 2025 (arXiv 2503.01840). Rotary pairs are (i, i + size / 2), and `d2t` holds differences.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tests.tiny_heads import Arrays, HeadShape

EPSILON = 1e-5


@dataclass(frozen=True)
class Reference:
    """weights: as a checkpoint has them. table: embeddings, [vocab, width]."""

    weights: Arrays
    shape: HeadShape
    table: Any

    def fused(self, hidden: Any) -> Any:
        """[n, width] from the target's hidden states, [n, 3 * target width]."""
        if self.shape.norm_before_fc:
            hidden = self._norm(hidden, "input_norm")
        return hidden @ self._weight("fc").T

    def rows(self, states: Any, tokens: list[int]) -> tuple[Any, Any]:
        """(logits [n, drafted], own states [n, width]) of a whole text.

        states: [n, width], what each row goes on from; tokens: [n], the token behind each
        """
        embedded = self._norm(torch.as_tensor(self.table)[tokens], "midlayer.input_layernorm")
        if self.shape.direct:
            states = states + embedded @ self._weight("embd_fc").T
        normed = self._norm(states, "midlayer.hidden_norm")
        residual = normed if self.shape.norm_before_residual else states
        x = residual + self._attention(torch.cat([embedded, normed], dim=-1))
        y = self._norm(x, "midlayer.post_attention_layernorm")
        gate, up = y @ self._weight("midlayer.mlp.gate_proj").T, y @ self._weight("midlayer.mlp.up_proj").T
        x = x + (torch.nn.functional.silu(gate) * up) @ self._weight("midlayer.mlp.down_proj").T
        return self._norm(x, "norm") @ self._weight("lm_head").T, x

    def _attention(self, x: Any) -> Any:
        size = self.shape.head_size
        query, key, value = (
            (x @ self._weight(f"midlayer.self_attn.{name}_proj").T).view(len(x), -1, size).transpose(0, 1)
            for name in "qkv"
        )
        query, key = self._rotated(query), self._rotated(key)
        group = len(query) // len(key)
        key, value = key.repeat_interleave(group, dim=0), value.repeat_interleave(group, dim=0)
        scores = query @ key.transpose(1, 2) / size**0.5
        mask = torch.full((len(x), len(x)), float("-inf")).triu(1)
        mixed = torch.softmax(scores + mask, dim=-1) @ value
        return mixed.transpose(0, 1).reshape(len(x), -1) @ self._weight("midlayer.self_attn.o_proj").T

    def _rotated(self, heads: Any) -> Any:
        size = heads.shape[-1]
        frequencies = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.outer(torch.arange(heads.shape[1], dtype=torch.float64), frequencies).repeat(1, 2).float()
        half = torch.cat([-heads[..., size // 2 :], heads[..., : size // 2]], dim=-1)
        return heads * torch.cos(angles) + half * torch.sin(angles)

    def _norm(self, x: Any, name: str) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * self._weight(name)

    def _weight(self, name: str) -> Any:
        return torch.as_tensor(self.weights[f"{name}.weight"])
