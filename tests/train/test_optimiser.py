"""Which parameters get which optimiser, and that a checkpoint of it goes on to the same bits."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [train]")

from slipstream.train.optimiser import Optimiser  # noqa: E402
from slipstream.train.recipe import Recipe  # noqa: E402


def recipe(**changes: Any) -> Recipe:
    return Recipe(kind="head", target="t", fingerprint="f", **changes)


def parameters() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"fc": (6, 9), "output": (20, 6), "norm": (6,)}
    return {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in shapes.items()}


def stepped(given: dict[str, Any], optimiser: Optimiser, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 + step)
        for one in given.values():
            one.grad = torch.randn(one.shape, generator=generator)
        optimiser.step(1.0)


def test_a_matrix_moves_in_all_directions_alike_and_tables_by_number() -> None:
    given = parameters()
    before = {name: one.detach().clone() for name, one in given.items()}
    stepped(given, Optimiser(given, recipe(weight_decay=0.0)), 1)
    moved = torch.linalg.svdvals(given["fc"].detach() - before["fc"])
    assert float(moved.max() / moved.min()) < 2
    rates = {"output": recipe().table_rate, "norm": recipe().learning_rate}
    for name, rate in rates.items():
        assert torch.allclose((given[name] - before[name]).abs(), torch.tensor(rate), rtol=1e-3)


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_it_goes_on_from_a_checkpoint_to_the_same_bits(kind: str) -> None:
    whole, halves = parameters(), parameters()
    stepped(whole, Optimiser(whole, recipe(optimiser=kind)), 6)
    first = Optimiser(halves, recipe(optimiser=kind))
    stepped(halves, first, 3)
    second = Optimiser(halves, recipe(optimiser=kind))
    second.load_state_dict(first.state_dict())
    stepped(halves, second, 3, 3)
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_gradients_are_forgotten_and_rates_are_shares_of_the_highest() -> None:
    given = parameters()
    optimiser = Optimiser(given, recipe())
    before = {name: one.detach().clone() for name, one in given.items()}
    for one in given.values():
        one.grad = torch.ones_like(one)
    optimiser.step(0.0)
    assert all(one.grad is None for one in given.values())
    assert all(torch.equal(one, before[name]) for name, one in given.items())
