"""The training-time test against a head that drafts one token at a time, written down from docs/heads.md in numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs the extra [train]")

from slipstream.core.protocols import Segment  # noqa: E402
from slipstream.models import read_model_header  # noqa: E402
from slipstream.runtime.native import load_native  # noqa: E402
from slipstream.train.head import VECTORS, Head, Spread, as_numpy, head_shapes, new_head, shifted, started_as_target  # noqa: E402
from slipstream.train.head_task import spread_of  # noqa: E402
from slipstream.train.layers import distilled, initial  # noqa: E402
from slipstream.train.target import Sizes, Weights, think  # noqa: E402

SIZES = Sizes(32, 4, 2, 16, 64, 1e-5, 10000.0)
VOCABULARY, STEPS = 24, 3
Array = NDArray[np.float32]


def random_head(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    made = {name: initial(shape, generator) for name, shape in head_shapes(SIZES, VOCABULARY).items()}
    for name in VECTORS:
        size = 3 * SIZES.width if name == "enc.output_norm" else SIZES.width
        made[name] = 1 + 0.2 * torch.randn(size, generator=generator)
    return made


def norm(values: Array, weight: Array) -> Array:
    return values / np.sqrt(np.square(values).mean() + SIZES.epsilon) * weight  # type: ignore[no-any-return]


class Reference:
    """A head as it drafts: row by row, each seeing all rows before it."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.p = as_numpy(parameters)
        self.keys: list[Array] = []
        self.values: list[Array] = []

    def fused(self, hidden: Array) -> Array:
        return self.p["fc"] @ norm(hidden, self.p["enc.output_norm"])

    def row(self, state: Array, embedding: Array) -> Array:
        p, size = self.p, SIZES.head_size
        if "embd_fc" in p:
            state = state + p["embd_fc"] @ norm(embedding, p["attn_norm"])
        both = np.concatenate([norm(embedding, p["attn_norm"]), norm(state, p["attn_norm_2"])])
        position = len(self.keys)
        query = self.turned((p["attn_q"] @ both).reshape(SIZES.heads, size), position)
        self.keys.append(self.turned((p["attn_k"] @ both).reshape(SIZES.key_value_heads, size), position))
        self.values.append((p["attn_v"] @ both).reshape(SIZES.key_value_heads, size))
        seen = []
        for head in range(SIZES.heads):
            group = head * SIZES.key_value_heads // SIZES.heads
            scores = np.array([key[group] @ query[head] for key in self.keys]) / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            seen.append(sum(w * v[group] for w, v in zip(weights / weights.sum(), self.values, strict=True)))
        state = state + p["attn_output"] @ np.concatenate(seen)
        inner = norm(state, p["ffn_norm"])
        gate = p["ffn_gate"] @ inner
        return state + p["ffn_down"] @ (gate / (1 + np.exp(-gate)) * (p["ffn_up"] @ inner))  # type: ignore[no-any-return]

    def turned(self, heads: Array, position: int) -> Array:
        angles = position * SIZES.rotary_base ** -(np.arange(0, SIZES.head_size, 2) / SIZES.head_size)
        first, second = heads[:, 0::2], heads[:, 1::2]
        turned = (first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles))
        return np.stack(turned, -1).reshape(heads.shape)


def test_every_step_is_what_drafting_would_compute() -> None:
    parameters, random = random_head(), np.random.default_rng(1)
    lengths = (7, 5)  # two texts in one row
    hidden = random.standard_normal((sum(lengths), 3 * SIZES.width)).astype(np.float32) * 3
    table = random.standard_normal((50, SIZES.width)).astype(np.float32)
    tokens = random.integers(0, 50, sum(lengths))
    head = Head(parameters, SIZES)
    texts = torch.tensor([[0] * lengths[0] + [1] * lengths[1]])
    head.begin(torch.from_numpy(hidden)[None], texts, STEPS)
    given = torch.from_numpy(tokens)[None]
    states = [head.step(torch.from_numpy(table)[shifted(given, step)])[0].numpy() for step in range(1, STEPS + 1)]
    start = 0
    for length in lengths:
        own = slice(start, start + length)
        for last in range(length - STEPS):
            reference = Reference(parameters)
            ids = tokens[own]
            for place in range(last + 1):
                state = reference.row(reference.fused(hidden[own][place]), table[ids[place + 1]])
            for step in range(STEPS):
                if step:
                    state = reference.row(state, table[ids[last + 1 + step]])
                assert np.allclose(states[step][own][last], state, atol=2e-4), (last, step)
        start += length


def test_the_loss_and_its_gradients_are_those_of_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 8, generator=generator, requires_grad=True)
    output = torch.randn(11, 8, generator=generator, requires_grad=True)
    chances = torch.softmax(torch.randn(5, 12, generator=generator), -1)[:, :11]  # some mass is on what is left out
    wanted = -(chances * torch.log_softmax(rows @ output.T, -1)).sum()
    wanted.backward()
    found = distilled(rows.detach(), output.detach(), chances, None, half=False)
    assert found.loss == pytest.approx(wanted.item(), rel=1e-5)
    assert torch.allclose(found.rows, rows.grad, atol=1e-5)
    assert torch.allclose(found.output, output.grad, atol=1e-5)


def test_tokens_without_rows_count_as_logits_of_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 8, generator=generator, requires_grad=True)
    output = torch.randn(11, 8, generator=generator, requires_grad=True)
    whole = torch.softmax(torch.randn(5, 30, generator=generator), -1)
    logits = torch.cat((rows @ output.T, torch.zeros(5, 19)), -1)
    wanted = -(whole * torch.log_softmax(logits, -1)).sum()
    wanted.backward()
    rest = torch.tensor(19.0).log()
    found = distilled(rows.detach(), output.detach(), whole[:, :11], rest, half=False)
    assert found.loss == pytest.approx(wanted.item(), rel=1e-5)
    assert torch.allclose(found.rows, rows.grad, atol=1e-5)
    assert torch.allclose(found.output, output.grad, atol=1e-5)


def test_a_new_head_begins_with_the_targets_output(tiny: Path) -> None:
    weights = Weights(read_model_header(tiny))
    output = torch.from_numpy(weights.read(weights.decoder.output, [4, 7, 9]))
    head = new_head(weights, output, Spread(2.0, np.full(3 * 64, 0.5, np.float32)), seed=0)
    direction = (head["output"] * output).sum(-1) / head["output"].norm(dim=-1) / output.norm(dim=-1)
    assert torch.allclose(direction, torch.ones(3), atol=1e-5)
    assert head["output"].norm(dim=-1).mean() == pytest.approx(1, rel=0.2)
    assert torch.equal(head["enc.output_norm"], torch.full((192,), 2.0))
    again = new_head(weights, output, Spread(2.0, np.full(3 * 64, 0.5, np.float32)), seed=0)
    assert all(torch.equal(head[name], again[name]) for name in head)


def test_a_head_can_begin_as_the_targets_last_layer(tiny: Path) -> None:
    """Given the last layer's input, it then says what the target says."""
    header = read_model_header(tiny)
    weights, tokens = Weights(header), list(range(60, 80))
    model = load_native(tiny, context_length=64, threads=1)
    states = think(model, tokens, 1, [0, 0, 0, 1])
    logits = np.array([row_of_logits(model, tokens, place) for place in range(len(tokens))])
    model.close()
    output = torch.from_numpy(weights.read(weights.decoder.output))
    spread = spread_of([states])
    parameters = new_head(weights, output, spread, seed=0)
    assert started_as_target(parameters, weights, output, spread)
    head = Head(parameters, weights.sizes)
    hidden = torch.from_numpy(states.hidden[None, :, :3].astype(np.float32)).flatten(2)
    head.begin(hidden, torch.zeros(1, len(tokens), dtype=torch.int64), 1)
    embedding = torch.zeros(1, len(tokens), weights.sizes.width)
    found = (head.rows(head.step(embedding)) @ output.T)[0].numpy()
    # the states that pass beside it are random at first, and small
    agreement = [np.corrcoef(found[place], logits[place])[0, 1] for place in range(1, len(tokens))]
    assert np.mean(agreement) > 0.8


def row_of_logits(model: Any, tokens: list[int], place: int) -> NDArray[np.float32]:
    session = model.open_session()
    (rows,) = model.forward([Segment(session, tokens)])
    row: NDArray[np.float32] = rows.logits(place).copy()
    session.close()
    return row
