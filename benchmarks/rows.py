#!/usr/bin/env python3
"""What several rows in one forward cost and change with llama.cpp, and what its threads do on a busy machine.

python benchmarks/rows.py [MODEL]          milliseconds by number of rows; logits of 5 rows together and one by one
python benchmarks/rows.py [MODEL] --busy   a forward with another process at work, by GOMP_SPINCOUNT
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from slipstream.core.feed import feed
from slipstream.core.protocols import Model, Segment, Session
from slipstream.models import resolve
from slipstream.runtime import load_llamacpp

SPIN_COUNTS = ("300000", "1000", "100")
"""The first is what libgomp does unasked."""


def session_after(model: Model, tokens: list[int]) -> Session:
    """A session that holds these tokens."""
    session = model.open_session()
    for _ in feed(model, session, tokens):
        pass
    return session


def milliseconds(model: Model, session: Session, rows: int, repeats: int = 15) -> float:
    """Median of one forward of `rows` rows that are not committed."""
    times = []
    for _ in range(repeats):
        started = perf_counter()
        [computed] = model.forward([Segment(session, range(500, 500 + rows))])
        computed.logits(rows - 1)
        times.append(1e3 * (perf_counter() - started))
    return median(times)


def difference(model: Model, tokens: list[int], context: int, rows: int = 5) -> float:
    """Largest difference of a logit between rows computed together and one by one, after `context` tokens."""
    session = session_after(model, tokens[:context])
    following = tokens[context : context + rows]
    [computed] = model.forward([Segment(session, following)])
    together = [computed.logits(row).copy() for row in range(rows)]
    largest = 0.0
    for token, expected in zip(following, together, strict=True):
        [alone] = model.forward([Segment(session, [token])])
        largest = max(largest, float(np.abs(alone.logits(0) - expected).max()))
        session.commit([0])
    session.close()
    return largest


def show_rows(path: Path) -> None:
    """Costs and differences."""
    model = load_llamacpp(path, context_length=1024)
    tokens = np.random.default_rng(0).integers(1000, min(model.vocabulary.size, 40_000), 900).tolist()
    session = session_after(model, tokens[:128])
    costs = {rows: milliseconds(model, session, rows) for rows in (1, 2, 3, 4, 5, 8, 16)}
    session.close()
    cells = [f"{rows}: {time:.1f} ({time / costs[1]:.2f})" for rows, time in costs.items()]
    print("rows: milliseconds (times one row):", ", ".join(cells))
    for context in (20, 100, 200, 300, 500, 800):
        largest = difference(model, tokens, context)
        print(f"after {context} random tokens, 5 rows together or one by one: {largest:.3f} logits")


def show_busy(path: Path) -> None:
    """A forward of 1 and of 5 rows, quiet and beside a busy process."""
    for busy in (False, True):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
        try:
            for count in SPIN_COUNTS:
                environment = os.environ | {"GOMP_SPINCOUNT": count}
                subprocess.run([sys.executable, __file__, path, "--one"], env=environment, check=True)
                print(f"    {'busy' if busy else 'quiet'}, GOMP_SPINCOUNT {count}", flush=True)
        finally:
            if other is not None:
                other.kill()
                other.wait()


def main() -> None:
    """Print what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    path = resolve(arguments.model, fetch=True)
    if arguments.busy:
        show_busy(path)
    elif arguments.one:
        model = load_llamacpp(path, context_length=512)
        session = session_after(model, list(range(300, 364)))
        print(", ".join(f"{rows} rows {milliseconds(model, session, rows, 25):.1f} ms" for rows in (1, 5)), flush=True)
    else:
        show_rows(path)


if __name__ == "__main__":
    main()
