#!/usr/bin/env python3
"""Python's share of a round: everything but the library's own forwards of the target and the draft model.

    python benchmarks/round_overhead.py [MODEL] [--num-draft-tokens 4] [--rounds 60] [--draft Q4_0]

The draft model is a requantised copy of the target. Each `llama_decode` is timed; what is left of a round that
drafted its full length is Python: batches, sampling, drafting, walking, counting. Two figures for each setting:

  in place   after forwards that stream all weights through the caches, and so throw Python's code and data out
  warm       the same rounds again with the forwards' rows remembered: what Python computes, without that loss
             (and without the runtime's own share of a forward, which no forward needs here)
"""

import argparse
import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np

from slipstream import Engine, Stream
from slipstream.core.stats import PHASES
from slipstream.draft import ModelDrafter
from slipstream.models import resolve
from slipstream.policy import FixedLength
from slipstream.runtime import load_llamacpp, requantize

SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "defaults (0.7, top-p 0.95, min-p 0.05)": {},
    "temperature 1.0, no filters": {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0},
}
PROMPTS = ["Once upon a time", "The history of the", "def main():", "In the morning she", "List of countries:"]
TOKENS = 64
PARTS = ("Python", "drafting", "verifying", "sample", "other", "target", "draft model")


class Library:
    """Adds up the seconds in `llama_decode`, the wait for its result included, by context."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._decode: Callable[..., int] = llama_cpp.llama_decode
        llama_cpp.llama_decode = self.decode

    def decode(self, context: Any, batch: Any) -> int:
        """Stands in for `llama_decode`."""
        started = perf_counter()
        result = self._decode(context, batch)
        llama_cpp.llama_synchronize(context)
        self.add(context, perf_counter() - started)
        return result

    def add(self, context: Any, seconds: float) -> None:
        """More seconds of a forward."""
        key = address(context)
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def seconds(self, model: Any) -> float:
        """Seconds in the library for this model so far."""
        return self._seconds.get(address(model.context), 0.0)


def address(context: Any) -> int:
    """Where a context lives, whatever kind of pointer points to it."""
    return ctypes.cast(context, ctypes.c_void_p).value or 0


class Tape:
    """A model that remembers the rows of its forwards, and on the second pass gives them without computing."""

    def __init__(self, model: Any, library: Library) -> None:
        self._model = model
        self._library = library
        self._output = np.empty((64, model.vocabulary.size), np.float32)
        self.context = model._handles.context
        self._rows: list[list[dict[int, Any]]] = []
        self._position = 0
        self._mode = "in place"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def turn_to(self, mode: str) -> None:
        """`in place` computes, `recording` computes and remembers, `warm` gives what was remembered."""
        self._mode, self._position = mode, 0

    def open_session(self) -> Any:
        """A session that only counts, when playing."""
        return PlayedSession() if self._mode == "warm" else self._model.open_session()

    def forward(self, batch: Any, *, layers: Any = None, hidden: Any = ()) -> Any:
        """Compute and remember, or give what was remembered."""
        if self._mode == "in place":
            return self._model.forward(batch)
        if self._mode == "recording":
            rows = self._model.forward(batch)
            self._rows.append([self._copy(segment, one) for segment, one in zip(batch, rows, strict=True)])
            return rows
        started = perf_counter()
        rows = self._rows[self._position]
        self._position += 1
        played = [PlayedRows(one, self._output) for one in rows]
        self._library.add(self.context, perf_counter() - started)
        return played

    @staticmethod
    def _copy(segment: Any, rows: Any) -> dict[int, Any]:
        count = len(segment.tokens)
        outputs = count if segment.outputs is None else segment.outputs
        return {row: rows.logits(row).copy() for row in range(count - outputs, count)}


class PlayedRows:
    """Rows from a tape, written to the same output buffer each time, as a library does."""

    def __init__(self, rows: dict[int, Any], output: Any) -> None:
        self._rows = {row: output[index] for index, row in enumerate(rows)}
        for row, logits in rows.items():
            self._rows[row][:] = logits

    def logits(self, row: int) -> Any:
        """[vocab] float32."""
        return self._rows[row]


class PlayedSession:
    """Keeps count where a real session would keep keys and values."""

    def __init__(self) -> None:
        self.length = 0

    def commit(self, path: Any) -> None:
        """More tokens."""
        self.length += len(list(path))

    def truncate(self, length: int) -> None:
        """Fewer tokens."""
        self.length = length

    def reachable(self, length: int) -> int:
        """Every length."""
        return length

    def close(self) -> None:
        """Nothing to give back."""


def measure(engine: Engine, library: Library, settings: dict[str, float], wanted: int) -> dict[str, list[float]]:
    """Milliseconds of each round that drafted its full length, by part."""
    rounds: dict[str, list[float]] = {part: [] for part in PARTS}
    for seed in range(100):
        if len(rounds["Python"]) >= wanted:
            break
        prompt = PROMPTS[seed % len(PROMPTS)]
        options: dict[str, Any] = {"max_tokens": TOKENS, "seed": seed, "logprobs": False, **settings}
        with engine.stream(prompt, **options) as stream:
            _measure_stream(stream, engine, library, rounds)
    return rounds


def _measure_stream(stream: Stream, engine: Engine, library: Library, rounds: dict[str, list[float]]) -> None:
    statistics = stream.completion.statistics
    before: dict[str, float] = {}
    full: int = engine.policy.num_draft_tokens  # type: ignore[attr-defined]
    played, drafted = 0, 0
    for _ in stream:
        if statistics.rounds == played:
            continue  # another token of the same round
        now = statistics.seconds | {
            "target": library.seconds(engine.target),
            "draft model": library.seconds(engine.draft_models[0]),
        }
        # the first round also reads the prompt into the draft model, the last ones draft less
        if before and statistics.drafted - drafted == full:
            parts = {name: 1e3 * (now[name] - before[name]) for name in now}
            parts["Python"] = sum(parts[phase] for phase in PHASES) - parts["target"] - parts["draft model"]
            parts["drafting"] = parts["draft"] - parts["draft model"]
            parts["verifying"] = parts["verify"] - parts["target"]
            for part in PARTS:
                rounds[part].append(parts[part])
        before, played, drafted = now, statistics.rounds, statistics.drafted


def show(name: str, rounds: dict[str, list[float]]) -> None:
    """One line: medians."""
    parts = {part: median(values) for part, values in rounds.items()}
    print(
        f"  {name:9} Python {parts['Python']:.3f} (drafting {parts['drafting']:.3f}, "
        f"verifying {parts['verifying']:.3f}, sampling {parts['sample']:.3f}, other {parts['other']:.3f})   "
        f"target {parts['target']:.1f}, draft model {parts['draft model']:.1f}   {len(rounds['Python'])} rounds"
    )


def run(target: Any, draft_model: Any, num_draft_tokens: int, wanted: int, library: Library) -> None:
    """Each setting in place and warm."""
    for name, settings in SETTINGS.items():
        print(name)
        tapes = Tape(target, library), Tape(draft_model, library)
        for label in ("in place", "recording", "warm"):
            for tape in tapes:
                tape.turn_to(label)
            engine = Engine(tapes[0], ModelDrafter(tapes[1]), FixedLength(num_draft_tokens))
            rounds = measure(engine, library, settings, wanted)
            if label != "recording":
                show(label, rounds)
            engine._pool.close()
            engine.drafters[0]._pool.close()  # type: ignore[attr-defined]


def main() -> None:
    """Load two models and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--draft", default="Q4_0", help="type of the requantised copy that drafts")
    arguments = parser.parse_args()
    library = Library()
    path = resolve(arguments.model, fetch=True)
    with tempfile.TemporaryDirectory() as directory:
        copy = requantize(path, Path(directory) / "draft.gguf", arguments.draft)
        target, draft_model = (load_llamacpp(file, context_length=512) for file in (path, copy))
        print(f"{target.vocabulary.size} tokens, draft of {arguments.num_draft_tokens}; milliseconds, medians")
        run(target, draft_model, arguments.num_draft_tokens, arguments.rounds, library)


if __name__ == "__main__":
    main()
