#!/usr/bin/env python3
"""Microseconds that the adaptive policy itself takes per round: choosing drafters, choosing nodes, learning.

    scripts/bench policy_overhead [--rounds 2000]

Recorded proposals, so that nothing but the policy runs; time in drafters and in the target is left out. Medians over
rounds; "cold" sweeps over 64 MB before every round, as a forward of a model does.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np

from slipstream.core.protocols import Growth, SequenceView
from slipstream.draft import BaseDrafter
from slipstream.policy import AdaptivePolicy, CostTable

ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 32)
"""Rows that `policy.profile` measures."""
FLAT = {rows: 0.027 + 0.0023 * rows + 0.0015 * max(rows - 8, 0) for rows in ROWS}
BROAD = {rows: 0.030 + 0.0003 * rows for rows in ROWS}
STEP = {rows: 0.003 + 0.0004 * rows for rows in ROWS}


class Proposer(BaseDrafter):
    """Proposes at once what it was told to: a chain, or levels of three."""

    def __init__(self, name: str, *, free: bool, levels: int, siblings: int = 1) -> None:
        self.name, self.free, self._levels, self._siblings = name, free, levels, siblings

    def extend(self, frontier: Any) -> None:
        for growth in frontier:
            for _ in range(self._levels):
                self._level(growth)

    def _level(self, growth: Growth) -> None:
        parent = growth.draft.tip
        growth.draft.append(1, source=self.name, estimate=0.7, bucket=len(growth.draft) % 8)
        for rank in range(1, min(self._siblings, growth.siblings)):
            growth.draft.add(1 + rank, parent, source=self.name, estimate=0.1, bucket=8 * rank)


class View:
    """As much of a sequence as a policy looks at."""

    def __init__(self, number: int) -> None:
        self.id, self.tokens, self.draft_limit, self.prediction = number, [0] * 200, 64, ()
        self.scope = ""


CASES: dict[str, tuple[Callable[[], list[BaseDrafter]], bool]] = {
    "suffix, nothing found": (lambda: [Proposer("suffix", free=True, levels=0)], False),
    "suffix, 8 tokens": (lambda: [Proposer("suffix", free=True, levels=8)], False),
    "model, chain": (lambda: [Proposer("model", free=False, levels=1)], False),
    "model, tree": (lambda: [Proposer("model", free=False, levels=1, siblings=3)], True),
    "suffix+model": (
        lambda: [Proposer("suffix", free=True, levels=4), Proposer("model", free=False, levels=1)],
        False,
    ),
}


def overhead(drafters: list[BaseDrafter], count: int, rounds: int, *, trees: bool, cold: bool) -> tuple[float, float]:
    """(median microseconds of the policy in a round, draft steps of a round)."""
    policy = AdaptivePolicy(
        CostTable(FLAT if count == 1 else BROAD),
        [None if one.free else CostTable(STEP) for one in drafters],
        trees=trees,
    )
    views = [View(number) for number in range(count)]
    memory, times = np.zeros(8_000_000), []
    steps = 0
    for number in range(rounds):
        if cold:
            memory += 1
        accepted = (number * 7) % 5
        taken, started = 0.0, perf_counter()
        for step in policy.draft(cast(list[SequenceView], views), drafters):
            paused = perf_counter()
            drafters[step.drafter].extend(step.growths)
            taken -= perf_counter() - paused
            steps += not drafters[step.drafter].free
        drafts = policy.choose()
        committed = [[1] * min(accepted, len(draft)) + [0] for draft in drafts]
        verify = policy.costs.seconds(count + sum(map(len, drafts)))
        policy.observe(committed, {"draft": 0.003, "verify": verify, "sample": 1e-4, "other": 5e-5})
        times.append(taken + perf_counter() - started)
    return median(times[100:]) * 1e6, steps / rounds


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    arguments = parser.parse_args()
    print(f"{'microseconds per round':24}{'sequences':>10}{'steps':>7}{'warm':>8}{'cold':>8}")
    for name, (make, trees) in CASES.items():
        for count in (1, 8):
            warm, steps = overhead(make(), count, arguments.rounds, trees=trees, cold=False)
            cold, _ = overhead(make(), count, min(arguments.rounds, 300), trees=trees, cold=True)
            print(f"{name:24}{count:10}{steps:7.1f}{warm:8.0f}{cold:8.0f}")


if __name__ == "__main__":
    main()
