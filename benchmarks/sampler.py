#!/usr/bin/env python3
"""Microseconds to choose one token from a row of logits, by vocabulary size and sampling settings.

    python benchmarks/sampler.py [MODEL]

Rows are the model's own, computed along a text it generates at temperature 1, so they are as flat and as peaked
as rows are. Wider vocabularies are made by setting rows side by side, each lower than the one before. Each row is
written to one buffer just before it is read, as a forward does; `benchmarks/round_overhead.py` has the cost in place.
"""

import sys
from collections.abc import Iterator
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from slipstream import Engine, ModelOptions, SamplingParams
from slipstream.core.protocols import Model, Segment
from slipstream.core.sampling import Sampler

SETTINGS = {
    "greedy": {"temperature": 0.0},
    "temperature 0.7": {"temperature": 0.7, "top_p": 1.0, "min_p": 0.0},
    "temperature 1.0": {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0},
    "temperature 1.5": {"temperature": 1.5, "top_p": 1.0, "min_p": 0.0},
    "top-k 40": {"top_k": 40, "top_p": 1.0, "min_p": 0.0},
    "top-p 0.9, temperature 1.0": {"temperature": 1.0, "top_p": 0.9, "min_p": 0.0},
    "min-p 0.05": {"top_p": 1.0},
    "defaults (0.7, top-p 0.95, min-p 0.05)": {},
    "defaults, repetition penalty 1.1": {"repetition_penalty": 1.1},
}
PASSES = 9


def collect_rows(model: str, count: int = 150) -> NDArray[np.float32]:
    """[count, vocab] logits along a generated text."""
    with Engine.load(model, draft=None, fetch=True, options=ModelOptions(max_sequences=2)) as engine:
        messages = [{"role": "user", "content": "Write a short story about a fox who learns to code in Python."}]
        completion = engine.generate(messages, temperature=1.0, seed=3, max_tokens=count)
        tokens = [*completion.prompt_tokens, *completion.tokens]
        return np.stack(list(_rows(engine.target, tokens))[-len(completion.tokens) :])


def _rows(model: Model, tokens: list[int]) -> Iterator[NDArray[np.float32]]:
    session = model.open_session()
    for start in range(0, len(tokens), model.max_rows):
        chunk = tokens[start : start + model.max_rows]
        [rows] = model.forward([Segment(session, chunk)])
        yield from (rows.logits(row).copy() for row in range(len(chunk)))
        session.commit(range(len(chunk)))


def widened(rows: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """[rows, size]: copies side by side, each 4 logits lower."""
    copies = -(-size // rows.shape[1])
    return np.concatenate([rows - 4 * copy for copy in range(copies)], axis=1)[:, :size].copy()


def microseconds(rows: NDArray[np.float32], settings: dict[str, float]) -> list[float]:
    """Best of the passes for each row: the machine's noise is not the sampler's."""
    params = SamplingParams(seed=1, **settings)  # type: ignore[arg-type]
    sampler = Sampler(params, rows.shape[1], range(300))
    best = np.full(len(rows), np.inf)
    output = np.empty_like(rows[0])
    for _ in range(PASSES):
        for index, row in enumerate(rows):
            output[:] = row
            started = perf_counter()
            sampler.choose(output, index)
            best[index] = min(best[index], perf_counter() - started)
    return sorted(best * 1e6)


def main() -> None:
    """Print the table."""
    rows = collect_rows(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
    for size in (rows.shape[1], 262_144):
        wide = rows if size == rows.shape[1] else widened(rows[:40], size)
        print(f"\n{size} tokens, microseconds a row over {len(wide)} rows: median, 90th percentile")
        for name, settings in SETTINGS.items():
            times = microseconds(wide, settings)
            print(f"  {name:40} {times[len(times) // 2]:6.0f} {times[len(times) * 9 // 10]:6.0f}")


if __name__ == "__main__":
    main()
