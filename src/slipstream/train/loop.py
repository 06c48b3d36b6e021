"""Steps of the optimiser, checkpoints, and measuring on what was held back. The same steps whatever interrupts them."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch

from slipstream.train.acceptance import figures, sentence
from slipstream.train.files import DamagedFileError, read_checked, read_json, write_checked, write_json
from slipstream.train.optimiser import Optimiser
from slipstream.train.packs import Order, gather
from slipstream.train.recipe import Recipe
from slipstream.train.states import StateStore
from slipstream.train.target import States
from slipstream.train.task import Learned, Task
from slipstream.train.texts import Text

CHECKPOINT_SECONDS = 120.0
MEASURE_SECONDS = 600.0
TRIAL_STEPS = 4
"""Steps that are timed before it is decided how many there is time for."""
MICRO = 2048
"""Tokens whose graph is held at once."""
OVERHEAD = 1.06
"""What checkpoints and measurements take beside the steps."""


class Held(NamedTuple):
    """A text that is never trained on, with the target's states."""

    text: Text
    states: States


@dataclass
class Report:
    """Where the loop says how far it is."""

    say: Callable[[str], None]
    progress: Callable[[int, int, str], None]
    should_stop: Callable[[], bool] = lambda: False


@dataclass
class Training:
    """One drafter's training in a folder of its own.

    seconds: that there are for it, over all runs of the program; None for all epochs
    """

    task: Task
    recipe: Recipe
    store: StateStore
    held: Sequence[Held]
    folder: Path
    report: Report
    seconds: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0
    spent: float = 0.0

    def __post_init__(self) -> None:
        recipe = self.recipe
        self._order = Order([len(text.tokens) for text in self.store.texts], recipe.pack, recipe.seed)
        self._optimiser = Optimiser(self.task.parameters, recipe)
        self._rows = max(recipe.batch // recipe.pack, 1)
        self.steps = max(math.ceil(recipe.epochs * self._order.rows / self._rows), 1)

    def run(self) -> bool:
        """Train to the end; False if it was stopped before. A checkpoint holds what was reached."""
        self._resume()
        self._plan()
        since = saved = measured = monotonic()
        before = self.spent
        recent: list[Learned] = []
        while self.step < self.steps:
            recent.append(self._advance())
            now = monotonic()
            self.spent = before + now - since
            self._tell(recent)
            stopping = self.report.should_stop()
            if stopping or now - saved > CHECKPOINT_SECONDS:
                self._save()
                saved = monotonic()
            if stopping:
                return False
            if now - measured > MEASURE_SECONDS:
                self._measure(recent)
                recent, measured = [], monotonic()
        self._save()
        return True

    def measure(self, steps: int, every: int = 1) -> dict[str, Any]:
        """Held-out acceptance of drafts of so many tokens."""
        matches = [self.task.matches(*one, steps) for one in self.held[::every]]
        return figures([one for one in matches if len(one.chain)])

    def _advance(self) -> Learned:
        recipe = self.recipe
        rows = [self._order.row(number) for number in range(self.step * self._rows, (self.step + 1) * self._rows)]
        batch = gather(rows, self.store, recipe.pack)
        total = max(float(batch.wanted.sum()), 1.0)
        micro = max(MICRO // recipe.pack, 1)
        parts = [batch.rows(at, at + micro) for at in range(0, len(rows), micro)]
        ahead = self._guesses(self.step)
        learned = [self.task.learn(part, total, ahead) for part in parts if part.wanted.any()]
        torch.nn.utils.clip_grad_norm_(list(self.task.parameters.values()), recipe.clip)
        self._optimiser.step(rate(self.step / self.steps, recipe))
        self.step += 1
        return Learned(sum(one.loss for one in learned), sum(one.agreement for one in learned))

    def _guesses(self, step: int) -> int:
        """How many tokens in a row are guessed in a step of the optimiser."""
        recipe = self.recipe
        return 1 if step < recipe.single_share * self.steps else recipe.self_fed_steps

    def _plan(self) -> None:
        """How many steps there are, decided once: a step's rate depends on it."""
        path = self.folder / "plan.json"
        planned = read_json(path)
        if planned is None:
            if self.seconds is not None:
                self.steps = min(self.steps, self._affordable(self.seconds))
            write_json(path, {"steps": self.steps})
        else:
            self.steps = planned["steps"]

    def _affordable(self, seconds: float) -> int:
        """Steps that fit; those that are timed here leave no trace."""
        state = self._snapshot()
        each = 0.0
        share = self.recipe.single_share
        for first, weight in ((0, share), (math.ceil(share * self.steps), 1 - share)):
            if weight == 0:
                continue
            self.step = first
            started = monotonic()
            for _ in range(TRIAL_STEPS):
                self._advance()
            each += weight * (monotonic() - started) / TRIAL_STEPS
        self._restore(state)
        return max(int(seconds / (each * OVERHEAD)), 1)

    def _tell(self, recent: Sequence[Learned]) -> None:
        last = recent[-20:]
        loss = sum(one.loss for one in last) / len(last)
        agreement = sum(one.agreement for one in last) / len(last)
        self.report.progress(self.step, self.steps, f"training: loss {loss:.3f}, agrees {agreement:.3f}")

    def _measure(self, recent: Sequence[Learned]) -> None:
        found = self.measure(3, len(self.held) // 32 | 1)  # odd: texts at temperatures 0 and 1 take turns
        loss = sum(one.loss for one in recent) / max(len(recent), 1)
        tokens = self.step * self._rows * self.recipe.pack
        self.history.append({"step": self.step, "tokens": tokens, "seconds": round(self.spent), "loss": loss} | found)
        if found:
            self.report.say(f"step {self.step} of {self.steps}: loss {loss:.3f}, {sentence(found)}")

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.bin"

    def _snapshot(self) -> bytes:
        buffer = io.BytesIO()
        state = {
            "parameters": {name: one.detach() for name, one in self.task.parameters.items()},
            "optimiser": self._optimiser.state_dict(),
            "step": self.step,
            "spent": self.spent,
            "history": self.history,
        }
        torch.save(state, buffer)
        return buffer.getvalue()

    def _restore(self, data: bytes) -> None:
        state = torch.load(io.BytesIO(data), weights_only=True)
        with torch.no_grad():
            for name, one in self.task.parameters.items():
                one.copy_(state["parameters"][name])
        self._optimiser.load_state_dict(state["optimiser"])
        self.step, self.spent, self.history = state["step"], state["spent"], state["history"]

    def _save(self) -> None:
        write_checked(self._checkpoint, self._snapshot())

    def _resume(self) -> None:
        try:
            data = read_checked(self._checkpoint)
        except FileNotFoundError:
            return
        except DamagedFileError:
            self.report.say("The checkpoint is damaged; training begins anew.")
            return
        self._restore(data)
        self.report.say(f"Training goes on after step {self.step}.")


def rate(done: float, recipe: Recipe) -> float:
    """The share of the learning rate at a share of the steps: a warm-up, then half a cosine down to `final_rate`."""
    if done < recipe.warmup:
        return (done + 1e-3) / (recipe.warmup + 1e-3)
    after = (done - recipe.warmup) / (1 - recipe.warmup)
    return recipe.final_rate + (1 - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * after))
