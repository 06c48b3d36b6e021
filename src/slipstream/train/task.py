"""What the training loop asks of what is trained: a head or a draft model."""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.train.acceptance import Matches, noise_of
from slipstream.train.packs import Batch
from slipstream.train.target import States
from slipstream.train.teacher import Teacher
from slipstream.train.texts import Text


class Learned(NamedTuple):
    """One step's figures, of first guesses. loss: per token, in nats; agreement: how many are the target's best."""

    loss: float
    agreement: float


class Task(Protocol):
    """A drafter in training."""

    parameters: dict[str, Tensor]

    def learn(self, batch: Batch, total: float, ahead: int) -> Learned:
        """Add a batch's gradients to `parameters`.

        total: tokens to be guessed in the whole step, which losses are divided by
        ahead: tokens that are guessed in a row, each from the state of the one before; a model needs no such thing
        """

    def matches(self, text: Text, states: States, steps: int) -> Matches:
        """What would become of drafts of so many tokens in a text."""

    def write(self, path: Path, metadata: dict[str, Any]) -> None:
        """Write the drafter's file."""


class Places(NamedTuple):
    """The places of a text that are to be guessed.

    rows:   [n] index of the token that the target chose the next one after
    noise:  [n, drafted tokens] that it was chosen with
    wanted: [n] the token that it chose
    """

    rows: NDArray[np.int64]
    noise: Tensor
    wanted: NDArray[np.int64]


def places_of(text: Text, teacher: Teacher, first: int) -> Places:
    """Where drafts are tried. first: tokens of the answer that there are before one can be drafted."""
    rows = np.arange(max(text.prompt - 1, 0) + first, len(text.tokens) - 1)
    noise = torch.from_numpy(noise_of(text, rows + 1, teacher.ids))
    return Places(rows, noise, text.tokens[rows + 1].astype(np.int64))


def guesses(logits: Tensor, noise: Tensor, ids: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """[n, most] the tokens that a drafter would propose, best first."""
    best = torch.topk(logits.float() + noise, min(most, len(ids)), dim=-1).indices
    return np.asarray(ids[best.numpy()])


def tensor(array: NDArray[Any], device: str) -> Tensor:
    """The same numbers on a device. What lies in a file is copied: torch warns of memory that cannot be written."""
    return torch.from_numpy(np.require(array, requirements=("C", "W"))).to(device)
