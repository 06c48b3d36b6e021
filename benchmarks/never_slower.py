#!/usr/bin/env python3
"""Whether `--speculation auto` is ever slower than plain decoding, with drafters that give it reason to be.

    scripts/bench never_slower [--targets wide 135M] [--runtimes native llamacpp] [--out FILE] [--report FILE]

Four drafters: a good one (SmolLM2-135M drafts for what is the same function, widened or not), the same with random
tokens, the same with every step three plain steps longer, and one whose second half of an answer is random. The policy
is told the price of the draft model alone; that a drafter is slow it has to find out. All of them and plain decoding
answer in turn; ratios are paired, and the median of each kind is quoted: at most 1.05. "plain again" is plain decoding
a second time: how far its medians are from 1 is how far the others' may be by chance, so give it enough pairs.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.records import Recorder, describe, machine, read_records
from benchmarks.rig import loaded, rig_file
from slipstream import Engine, ModelOptions
from slipstream.core.protocols import Growth, SequenceView
from slipstream.draft import BaseDrafter, ModelDrafter
from slipstream.measure.prompts import shipped_prompts
from slipstream.measure.runner import run_bench

KINDS = ("chat", "code-editing", "prose")
LIMIT = 1.05
TARGETS = {"wide": "wide Q4_0", "135M": "SmolLM2-135M Q4_1"}
DRAFT = "SmolLM2-135M Q4_0"
TOKENS = {("wide", "native"): 96, ("wide", "llamacpp"): 64, ("135M", "native"): 192, ("135M", "llamacpp"): 96}
DRAFTERS = ("good", "random", "slow", "collapsing")
CONTROL = "plain again"


class Disturbed(BaseDrafter):
    """A draft model with something wrong.

    kind:  one of `DRAFTERS`
    pause: seconds that a step of the slow one takes longer
    half:  tokens after which the collapsing one is wrong
    """

    name = "model"

    def __init__(self, inner: ModelDrafter, kind: str, pause: float, half: int) -> None:
        self._inner, self._kind, self._pause, self._half = inner, kind, pause, half
        self.model = inner.model
        self.lag, self.end = inner.lag, inner.end  # type: ignore[method-assign]
        self._chance = random.Random(1)
        self._begun: dict[int, int] = {}

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        self._begun[sequence.id] = len(sequence.tokens)
        self._inner.begin(sequence, reused_length)

    def extend(self, frontier: Sequence[Growth]) -> None:
        sizes = [len(growth.draft) for growth in frontier]
        self._inner.extend(frontier)
        if self._kind == "slow":
            end = time.perf_counter() + self._pause
            while time.perf_counter() < end:
                pass
        for growth, size in zip(frontier, sizes, strict=True):
            if self._spoils(growth.sequence):
                for node in range(size, len(growth.draft)):
                    growth.draft.tokens[node] = self._chance.randrange(1000, 40_000)

    def _spoils(self, sequence: SequenceView) -> bool:
        late = len(sequence.tokens) - self._begun[sequence.id] >= self._half
        return self._kind == "random" or (self._kind == "collapsing" and late)

    def close(self) -> None:
        """The draft model is shared."""


def measure(name: str, runtime: str, per_kind: int, repeats: int, recorder: Recorder) -> None:
    """All pairs of one target on one runtime."""
    tokens = TOKENS[name, runtime]
    options = ModelOptions(runtime=runtime, draft_runtime=runtime, context_length=2048)  # type: ignore[arg-type]
    with Engine.load(rig_file(TARGETS[name]), speculation="off", options=options) as plain:
        inner = ModelDrafter(loaded(rig_file(DRAFT), runtime))
        started = time.perf_counter()
        plain.generate([1, 2, 3], max_tokens=8, seed=1)
        pause = 3 * (time.perf_counter() - started) / 8
        engines = {"off": plain, CONTROL: plain.sharing(speculation="off")}
        for kind in DRAFTERS:
            engines[kind] = plain.sharing(draft=Disturbed(inner, kind, pause, tokens // 2))
        results = run_bench(
            engines, shipped_prompts(KINDS, per_kind), repeats=repeats, max_tokens=tokens, options={"temperature": 0.7}
        )
        for answer in results.answers:
            recorder.add(
                "answer", target=name, runtime=runtime, drafter=answer.configuration, of=answer.kind,
                prompt=answer.prompt, repeat=answer.repeat, tokens=answer.tokens, seconds=answer.seconds,
                drafted=answer.drafted, accepted=answer.accepted, ids=answer.ids_hash,
            )  # fmt: skip
        for failure in results.failures:
            print(f"failed: {failure}")
        for kind in DRAFTERS:
            print(f"  {kind:11} {engines[kind].policy.describe()['explanation']}", flush=True)
            engines[kind].close()
        engines[CONTROL].close()
        inner.close()


def report(records: Sequence[dict[str, Any]]) -> bool:
    """Median ratios of time, auto over plain, and whether all were measured and are within the limit."""
    print(describe(records[0]))
    records = [record for record in records if record["kind"] == "answer"]
    plain = {_pair(one): one["seconds"] for one in records if one["drafter"] == "off"}
    ids = {_pair(one): one["ids"] for one in records if one["drafter"] == "off"}
    cells: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for one in records:
        if one["drafter"] != "off" and _pair(one) in plain:
            cell = cells.setdefault((one["target"], one["runtime"], one["drafter"]), {})
            cell.setdefault(one["of"], []).append(one["seconds"] / plain[_pair(one)])
            if one["runtime"] == "native":
                assert one["ids"] == ids[_pair(one)], "the text is plain decoding's"
    print(f"\n{'auto / plain, time':32}" + "".join(f"{kind:>14}" for kind in KINDS))
    worst, complete = 0.0, bool(cells)
    for target, runtime in dict.fromkeys((one["target"], one["runtime"]) for one in records):
        for drafter in (CONTROL, *DRAFTERS):
            kinds = cells.get((target, runtime, drafter), {})
            medians = [median(kinds[kind]) if kind in kinds else None for kind in KINDS]
            texts = ["-" if value is None else f"{value:.3f}" for value in medians]
            print(f"{target + ', ' + runtime + ', ' + drafter:32}" + "".join(f"{text:>14}" for text in texts))
            if drafter != CONTROL:
                complete = complete and None not in medians
                worst = max([worst, *(value for value in medians if value is not None)])
    holds = complete and worst <= LIMIT
    verdict = "INCOMPLETE" if not complete else "holds" if holds else "DOES NOT HOLD"
    print(f"worst {worst:.3f}, allowed {LIMIT}: {verdict}")
    return holds


def _pair(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[key] for key in ("target", "runtime", "prompt", "repeat"))


def main() -> None:
    """Measure and report, or report on an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=tuple(TARGETS), default=list(TARGETS))
    parser.add_argument("--runtimes", nargs="+", choices=("native", "llamacpp"), default=["native", "llamacpp"])
    parser.add_argument("--per-kind", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="append raw records to this file")
    parser.add_argument("--report", type=Path, help="print the table of an earlier run")
    arguments = parser.parse_args()
    if arguments.report:
        sys.exit(not report(list(read_records(arguments.report))))
    recorder = Recorder(arguments.out)
    recorder.add("machine", **machine())
    for name in arguments.targets:
        for runtime in arguments.runtimes:
            print(f"{name}, {runtime}", flush=True)
            measure(name, runtime, arguments.per_kind, arguments.repeats, recorder)
    sys.exit(not report(recorder.records))


if __name__ == "__main__":
    main()
