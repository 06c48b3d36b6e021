#!/usr/bin/env python3
"""Python's share of a round: everything but the library's own forwards of the target and the draft model.

    python benchmarks/round_overhead.py [MODEL] [--num-draft-tokens 4] [--tokens 256] [--draft Q4_0]

The draft model is a requantised copy of the target, so that rounds draft their full length. Each `llama_decode` is
timed; what is left of a round's time is Python: batches, sampling, drafting, walking, counting.
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

from slipstream import Engine, ModelOptions
from slipstream.core.stats import PHASES
from slipstream.models import pull, resolve
from slipstream.runtime.llamacpp.quantize import requantize

SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "defaults (0.7, top-p 0.95, min-p 0.05)": {},
    "temperature 1.0, no filters": {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0},
}
PROMPT = "Once upon a time there was a fox who wanted to learn to code in Python."
"""Continued as plain text: a story goes on for as long as it is asked to."""


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
        key = address(context)
        self._seconds[key] = self._seconds.get(key, 0.0) + perf_counter() - started
        return result

    def seconds(self, model: Any) -> float:
        """Seconds in the library for this model so far."""
        return self._seconds.get(address(model._handles.context), 0.0)


def address(context: Any) -> int:
    """Where a context lives, whatever kind of pointer points to it."""
    return ctypes.cast(context, ctypes.c_void_p).value or 0


def split(
    engine: Engine, library: Library, num_draft_tokens: int, tokens: int, settings: dict[str, float]
) -> dict[str, float]:
    """Median milliseconds of a full round, by part."""
    rounds: dict[str, list[float]] = {}
    options: dict[str, Any] = {"max_tokens": tokens, "seed": 1, "logprobs": False, **settings}
    with engine.stream(PROMPT, **options) as stream:
        statistics = stream.completion.statistics
        before: dict[str, float] = {}
        played, drafted = 0, 0
        for _ in stream:
            if statistics.rounds == played:
                continue  # another token of the same round
            now = statistics.seconds | {
                "target": library.seconds(engine.target),
                "draft model": library.seconds(engine.draft_model),
            }
            # the first round also reads the prompt into the draft model, the last ones draft less
            if before and statistics.drafted - drafted == num_draft_tokens:
                parts = {name: 1e3 * (now[name] - before[name]) for name in now}
                parts["Python"] = sum(parts[phase] for phase in PHASES) - parts["target"] - parts["draft model"]
                parts["drafting"] = parts["draft"] - parts["draft model"]
                parts["verifying"] = parts["verify"] - parts["target"]
                for name, milliseconds in parts.items():
                    rounds.setdefault(name, []).append(milliseconds)
            before, played, drafted = now, statistics.rounds, statistics.drafted
    return {name: median(values) for name, values in rounds.items()} | {"rounds": len(rounds["Python"])}


def main() -> None:
    """Print one line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--draft", default="Q4_0", help="type of the requantised copy that drafts")
    arguments = parser.parse_args()
    library = Library()
    path = pull(arguments.model) if arguments.model == "smollm2-135m" else resolve(arguments.model)
    with tempfile.TemporaryDirectory() as directory:
        copy = requantize(path, Path(directory) / "draft.gguf", arguments.draft)
        with Engine.load(
            path, draft=copy, num_draft_tokens=arguments.num_draft_tokens, options=ModelOptions(context_length=1024)
        ) as engine:
            print(f"vocabulary {engine.target.vocabulary.size}, draft of {arguments.num_draft_tokens}; milliseconds")
            for name, settings in SETTINGS.items():
                parts = split(engine, library, arguments.num_draft_tokens, arguments.tokens, settings)
                print(
                    f"  {name:40} Python {parts['Python']:.3f} (drafting {parts['drafting']:.3f}, verifying "
                    f"{parts['verifying']:.3f}, sampling {parts['sample']:.3f}, other {parts['other']:.3f})   "
                    f"target {parts['target']:.1f}, draft model {parts['draft model']:.1f}   "
                    f"medians of {parts['rounds']:.0f} rounds"
                )


if __name__ == "__main__":
    main()
