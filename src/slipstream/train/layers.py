"""A decoder layer's arithmetic in torch, as the runtime computes it (docs/heads.md), and the loss."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

MASKED = -1e30


class Shape(NamedTuple):
    """Of one layer's attention."""

    heads: int
    key_value_heads: int
    head_size: int


def normalised(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMS norm over the last dimension, in float32."""
    values = values.float()
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + epsilon) * weight


def rotary(length: int, size: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, size / 2] of positions from 0."""
    frequencies = base ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotated(values: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """[B, T, heads, size] turned by position; pairs are neighbours."""
    cosines, sines = (part[:, None, :] for part in turn)
    first, second = values.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((first * cosines - second * sines, first * sines + second * cosines), -1).flatten(-2)


def causal_mask(texts: Tensor) -> Tensor:
    """What is added to scores [B, 1, T, T]: a token sees its own text up to itself.

    texts: [B, T] which text a token belongs to
    """
    same = texts[:, :, None] == texts[:, None, :]
    seen = torch.ones(same.shape[1:], dtype=torch.bool, device=texts.device).tril()
    return torch.where(same & seen, 0.0, MASKED)[:, None]


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, later: list[tuple[Tensor, Tensor]], shape: Shape
) -> Tensor:
    """[B, T, heads * size]. query: [B, T, heads, size]; key, value: [B, T, key_value_heads, size], of true states.

    later: keys and values of the drafted tokens on a row's own path, one for each self-fed step, its own the last
    """
    batch, length = query.shape[:2]
    groups = shape.heads // shape.key_value_heads
    query = query.reshape(batch, length, shape.key_value_heads, groups, shape.head_size) * shape.head_size**-0.5
    grouped = query.permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, kv, groups * T, size]
    scores = (grouped @ key.permute(0, 2, 3, 1)).float()
    scores = scores.unflatten(2, (groups, length)) + mask[:, :, None]
    own = [(query * one[:, :, :, None]).sum(-1).permute(0, 2, 3, 1)[..., None].float() for one, _ in later]
    weights = torch.softmax(torch.cat((scores, *own), -1), -1)
    seen = weights[..., :length].flatten(2, 3).to(value.dtype) @ value.permute(0, 2, 1, 3)
    result = seen.unflatten(2, (groups, length)).permute(0, 3, 1, 2, 4)  # [B, T, kv, groups, size]
    for step, (_, one) in enumerate(later):
        weight = weights[..., length + step].permute(0, 3, 1, 2)[..., None]
        result = result + weight.to(one.dtype) * one[:, :, :, None]
    return result.reshape(batch, length, shape.heads * shape.head_size)


def gated(values: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """down * (silu(gate x) * (up x))."""
    return functional.linear(functional.silu(functional.linear(values, gate)) * functional.linear(values, up), down)


class Distilled(NamedTuple):
    """What a step's rows come to.

    loss:      summed over rows
    rows:      [n, width] gradient of the loss by the rows
    output:    [vocabulary, width] gradient by the output matrix
    agreement: [n] bool whether row and target like the same token best
    """

    loss: float
    rows: Tensor
    output: Tensor
    agreement: Tensor


CHUNK = 1024
"""Rows whose logits are held at once."""


def distilled(rows: Tensor, output: Tensor, chances: Tensor, rest: Tensor | None, half: bool) -> Distilled:
    """Cross-entropy of the drafter against the target: - sum of p log q, with its gradients. No graph is kept.

    rows:    [n, width] normalised states
    output:  [vocabulary, width]
    chances: [n, vocabulary] p of the tokens that can be drafted; they sum to 1 or less, and what they lack weighs less
    rest:    for a model that drafts any token: the logarithm of how many others there are, whose logits are all 0
    half:    multiply in bfloat16
    """
    loss, agreement = 0.0, []
    by_rows, by_output = torch.empty_like(rows), torch.zeros_like(output)
    narrow = torch.bfloat16 if half else torch.float32
    matrix = output.to(narrow)
    for start in range(0, len(rows), CHUNK):
        piece, wanted = rows[start : start + CHUNK].to(narrow), chances[start : start + CHUNK]
        logits = (piece @ matrix.T).float()
        total = torch.logsumexp(logits, -1, keepdim=True)
        mass = wanted.sum(-1, keepdim=True)
        if rest is not None:
            total = torch.logaddexp(total, rest)
            mass = torch.ones_like(mass)
        loss += float((mass * total).sum() - (wanted * logits).sum())
        agreement.append(logits.argmax(-1) == wanted.argmax(-1))
        error = (mass * torch.exp(logits - total) - wanted).to(narrow)
        by_rows[start : start + CHUNK] = (error @ matrix).float()
        by_output += (error.T @ piece).float()
    return Distilled(loss, by_rows, by_output, torch.cat(agreement))


def initial(shape: tuple[int, ...], generator: torch.Generator, gain: float = 1.0) -> Tensor:
    """[rows, columns] that keeps the size of what it multiplies, times `gain`."""
    return torch.randn(shape, generator=generator) * (gain / math.sqrt(shape[-1]))
