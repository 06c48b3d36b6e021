#!/usr/bin/env python3
"""`--speculation auto` against fixed draft lengths on a real target, all in turn on the same prompts.

    scripts/bench near_best [--target wide] [--runtime native] [--draft-type Q2_K] [--out FILE] [--report FILE]

The best fixed configuration is chosen on one half of the repeats and scored on the other, where `auto` should come
within 5 % of it; without that, the luck of a dozen configurations is what is measured. Also shows what trees bring over
chains, at temperature 0 and 1. The draft model is SmolLM2-135M, or with --draft-type a coarser copy of it, which is a
worse drafter (K-quants run on llama.cpp).
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.never_slower import DRAFT, TARGETS
from benchmarks.records import Recorder, describe, machine, read_records
from benchmarks.rig import loaded, rig_file
from slipstream import Engine, ModelOptions
from slipstream.core.protocols import Drafter
from slipstream.draft import BaseDrafter, ModelDrafter, SuffixDrafter
from slipstream.measure.looping import LOOPING
from slipstream.measure.prompts import KINDS, shipped_prompts
from slipstream.measure.runner import run_bench
from slipstream.policy import FixedLength
from slipstream.runtime import requantize

PLAIN, AUTO = "off", "auto"
CHAINS = tuple(f"chain {length}" for length in (1, 2, 3, 4, 5, 6, 8))
TREES = ("tree 2x2", "tree 3x2", "tree 4x2")
OTHERS = ("suffix 4", "suffix+chain 4", "suffix+chain 6")
TEMPERATURES = (0.0, 1.0)


class Borrowed(BaseDrafter):
    """A draft model that several engines share; closing one of them leaves it."""

    name = "model"

    def __init__(self, inner: ModelDrafter) -> None:
        self.model = inner.model
        self.begin, self.extend, self.lag, self.end = inner.begin, inner.extend, inner.lag, inner.end  # type: ignore[method-assign]


def engines(plain: Engine, inner: ModelDrafter) -> dict[str, Engine]:
    """All configurations on one target and one draft model."""
    made = {PLAIN: plain}
    for name in (*CHAINS, *(TREES if plain.target.capabilities.trees else ()), *OTHERS):
        who, _, shape = name.partition(" ")
        length, _, siblings = shape.partition("x")
        made[name] = plain.sharing(draft=_drafters(who, inner), speculation="on")
        made[name].policy = FixedLength(int(length), int(siblings or 1))
    made[AUTO] = plain.sharing(draft=_drafters("suffix+chain", inner))
    return made


def _drafters(who: str, inner: ModelDrafter) -> list[Drafter]:
    parts = who.split("+")
    return [SuffixDrafter() if part == "suffix" else Borrowed(inner) for part in parts]


def measure(arguments: argparse.Namespace, draft: Path, recorder: Recorder) -> None:
    """All answers, at both temperatures; the policy keeps what it learns."""
    options = ModelOptions(runtime=arguments.runtime, context_length=2048)
    with Engine.load(rig_file(TARGETS[arguments.target]), speculation="off", options=options) as plain:
        inner = ModelDrafter(loaded(draft, "auto" if arguments.draft_type else arguments.runtime))
        contestants = engines(plain, inner)
        for temperature in TEMPERATURES:
            results = run_bench(
                contestants,
                shipped_prompts(KINDS, arguments.per_kind),
                repeats=arguments.repeats,
                max_tokens=arguments.tokens,
                options={"temperature": temperature},
                progress=lambda done, total, what: print(f"\r{done}/{total} {what:40}", end="", flush=True),
            )
            for one in results.answers:
                recorder.add(
                    "answer", temperature=temperature, configuration=one.configuration, of=one.kind, prompt=one.prompt,
                    repeat=one.repeat, tokens=one.tokens, seconds=one.seconds, looping=one.looping, ids=one.ids_hash,
                    drafted=one.drafted, accepted=one.accepted,
                )  # fmt: skip
        print("\n" + contestants[AUTO].policy.describe()["explanation"])
        for name, engine in contestants.items():
            if name != PLAIN:
                engine.close()
        inner.close()


def report(records: Sequence[dict[str, Any]]) -> None:
    """Speed-ups over plain decoding: of everything on all repeats, and the test on two halves."""
    print(describe(records[0]))
    answers = [record for record in records if record["kind"] == "answer"]
    plain = {_pair(one): one for one in answers if one["configuration"] == PLAIN}
    parted = sum(one["ids"] != plain[_pair(one)]["ids"] for one in answers if _pair(one) in plain)
    print(f"{parted} of {len(answers)} answers have other ids than plain decoding's")
    answers = [one for one in answers if one["looping"] <= LOOPING]
    for temperature in TEMPERATURES:
        some = [one for one in answers if one["temperature"] == temperature]
        names = list(dict.fromkeys(one["configuration"] for one in some))
        gains = {name: _gain(some, name, lambda repeat: True) for name in names if name != PLAIN}
        print(f"\ntemperature {temperature}: " + ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items()))
        shapes = {
            group[0].partition(" ")[0]: max((gains[name], name) for name in group if name in gains)
            for group in (CHAINS, TREES)
            if any(name in gains for name in group)
        }
        print("  best " + ", best ".join(f"{name} {gain:.2f}x" for gain, name in shapes.values()))
        for half in (0, 1):
            chosen = max(
                (name for name in gains if name != AUTO),
                key=lambda name: _gain(some, name, lambda repeat: repeat % 2 == half),  # noqa: B023
            )
            scores = [_gain(some, name, lambda repeat: repeat % 2 != half) for name in (chosen, AUTO)]  # noqa: B023
            print(
                f"  chosen on one half: {chosen} {scores[0]:.3f}x, auto {scores[1]:.3f}x on the other: "
                f"{scores[1] / scores[0]:.1%} of it"
            )


def _pair(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[key] for key in ("temperature", "prompt", "repeat"))


def _gain(answers: Sequence[dict[str, Any]], name: str, wanted: Callable[[int], bool]) -> float:
    """Geometric mean over answers of plain's seconds over a configuration's, pairs of the same prompt and repeat."""
    seconds = {(one["configuration"], one["prompt"], one["repeat"]): one["seconds"] for one in answers}
    ratios = [
        seconds[PLAIN, prompt, repeat] / taken
        for (configuration, prompt, repeat), taken in seconds.items()
        if configuration == name and wanted(repeat) and (PLAIN, prompt, repeat) in seconds
    ]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else float("nan")


def main() -> None:
    """Measure and report, or report on an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=tuple(TARGETS), default="wide")
    parser.add_argument("--runtime", choices=("native", "llamacpp"), default="native")
    parser.add_argument("--draft-type", help="a copy of SmolLM2-135M of this type drafts, e.g. Q2_K")
    parser.add_argument("--per-kind", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, help="keep raw records in this file")
    parser.add_argument("--report", type=Path, help="print the table of an earlier run")
    arguments = parser.parse_args()
    if arguments.report:
        report(read_records(arguments.report))
        return
    recorder = Recorder(arguments.out)
    recorder.add("machine", **machine())
    with tempfile.TemporaryDirectory() as folder:
        draft = rig_file(DRAFT)
        if arguments.draft_type:
            draft = requantize(rig_file("SmolLM2-135M F16"), Path(folder) / "draft.gguf", arguments.draft_type)
        measure(arguments, draft, recorder)
    report(recorder.records)


if __name__ == "__main__":
    main()
