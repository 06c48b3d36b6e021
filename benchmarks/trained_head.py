#!/usr/bin/env python3
"""What a trained head is worth on prompts that it never saw: how often it is right, and how much faster texts come.

    scripts/bench trained_head HEAD [--parts acceptance speed] [--per-kind 6] [--temperatures 0 1] [--seconds 300]

The target is SmolLM2-135M, prompts are those that training holds out (chat, code, summary). `acceptance` drafts a fixed
length in every round, a chain and a tree, as verification decides it in the engine. `speed` lets plain decoding, the
policy that `run` uses with the head alone and beside suffix lookup, and llama.cpp's plain decoding of the same file
answer the same prompts in turn. Answers that repeat themselves are left out.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from benchmarks.records import Recorder, describe, machine, markdown
from benchmarks.rig import SMALL, rig_file
from slipstream import Engine, ModelOptions
from slipstream.core.stats import PHASES
from slipstream.measure.configurations import PLAIN
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.ratios import differing, is_looping, paired, speed_up, tokens_per_second
from slipstream.measure.records import Answer
from slipstream.measure.runner import run_bench
from slipstream.policy import FixedLength, Store
from slipstream.train.prompts import shipped_source

CHAIN, TREE = "chain", "tree"
LENGTH, SIBLINGS, TREE_LEVELS = 4, 3, 4
LLAMACPP = "llama.cpp"
LEAST = {(CHAIN, 0.0): 0.60, (CHAIN, 1.0): 0.50}
"""Of first tokens right."""
LEAST_ROUND, LEAST_AUTO, LEAST_LLAMACPP = 2.4, 1.35, 2.5
"""Tokens a round with trees at temperature 0; speed-ups over plain decoding, here and in llama.cpp."""


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("head", type=Path)
    parser.add_argument("--parts", nargs="+", choices=("acceptance", "speed"), default=["acceptance", "speed"])
    parser.add_argument("--per-kind", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--without-llamacpp", action="store_true")
    parser.add_argument("--seconds", type=float, default=540.0, help="about what each part may take")
    parser.add_argument("--out", type=Path, help="keep raw records in this file")
    arguments = parser.parse_args()
    recorder = Recorder(arguments.out)
    recorder.add("machine", **machine())
    print(describe(recorder.records[0]))
    for part in arguments.parts:
        measure(part, arguments, recorder)


def held_out(per_kind: int) -> list[BenchPrompt]:
    """The first prompts of each kind."""
    prompts = shipped_source(0).held_out
    kinds = sorted({prompt.kind for prompt in prompts})
    return [prompt for kind in kinds for prompt in [one for one in prompts if one.kind == kind][:per_kind]]


def measure(part: str, arguments: argparse.Namespace, recorder: Recorder) -> None:
    """One part: all answers and its tables."""
    end, options = monotonic() + arguments.seconds, ModelOptions(runtime="native", context_length=2048)
    with ExitStack() as stack:
        plain = stack.enter_context(Engine.load(rig_file(SMALL), speculation="off", options=options))
        assert plain._source is not None
        plain._source.costs.store = Store(None)  # what a disturbed run has learned must not count here
        engines = _drafting(plain, arguments, stack) if part == "acceptance" else _racing(plain, arguments, stack)
        for place, temperature in enumerate(arguments.temperatures):
            until = monotonic() + (end - monotonic()) / (len(arguments.temperatures) - place)
            results = run_bench(
                engines,
                held_out(arguments.per_kind),
                repeats=arguments.repeats,
                max_tokens=arguments.tokens,
                options={"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
                progress=lambda done, total, what: print(f"\r{done}/{total} {what:40}", end="", file=sys.stderr),
                should_stop=lambda: monotonic() > until,  # noqa: B023
            )
            print(file=sys.stderr)
            for failure in results.failures:
                print(f"trained_head.py: {failure.sentence}", file=sys.stderr)
            for answer in results.answers:
                recorder.add("answer", part=part, temperature=temperature, **answer.as_dict())
            rows = _accepted if part == "acceptance" else _speeds
            print("\n".join(["", f"Temperature {temperature:g}", "", *rows(results.answers, temperature)]), flush=True)
        for name, engine in engines.items():
            print(f"{name}: {engine.policy.describe()['explanation']}", flush=True)


def _drafting(plain: Engine, arguments: argparse.Namespace, stack: ExitStack) -> Mapping[str, Engine]:
    """Drafts of a fixed length in every round."""
    engines = {PLAIN: plain}
    for name, policy in ((CHAIN, FixedLength(LENGTH)), (TREE, FixedLength(TREE_LEVELS, SIBLINGS))):
        engines[name] = stack.enter_context(plain.sharing(draft=str(arguments.head), speculation="on"))
        engines[name].policy = policy
    return engines


def _racing(plain: Engine, arguments: argparse.Namespace, stack: ExitStack) -> Mapping[str, Engine]:
    engines = {PLAIN: plain}
    for name, draft in (
        ("head", str(arguments.head)),
        ("suffix", "suffix"),
        ("suffix+head", f"suffix+{arguments.head}"),
    ):
        engines[name] = stack.enter_context(plain.sharing(draft=draft))
    if not arguments.without_llamacpp:
        options = ModelOptions(runtime="llamacpp", context_length=2048)
        engines[LLAMACPP] = stack.enter_context(Engine.load(rig_file(SMALL), speculation="off", options=options))
    return engines


def _accepted(answers: Sequence[Answer], temperature: float) -> list[str]:
    """How many first tokens were right, and what a round came to, over all kinds and by kind."""
    rows = []
    for name in (CHAIN, TREE):
        mine = [one for one in answers if one.configuration == name and not is_looping(one)]
        for kind in ("all", *sorted({one.kind for one in mine})):
            rounds = [one for answer in mine if kind in ("all", answer.kind) for one in answer.rounds]
            full = [one for one in rounds if one.drafted >= LENGTH] or rounds
            least = LEAST.get((name, temperature), LEAST_ROUND if name == TREE and temperature == 0 else None)
            rows.append(
                (
                    name,
                    kind,
                    f"{sum(one.accepted > 0 for one in full) / max(len(full), 1):.3f}",
                    f"{sum(one.committed for one in full) / max(len(full), 1):.2f}",
                    f"{least or '-'}" if kind == "all" else "",
                    str(len(full)),
                )
            )
    parted = len(differing(answers))
    heads = ("drafts", "kind", "first token right", "tokens a round", "wanted", "rounds")
    return [*markdown(heads, rows), *([f"{parted} answers with other ids!"] if parted else [])]


def _speeds(answers: Sequence[Answer], temperature: float) -> list[str]:
    """Times over plain decoding of both runtimes."""
    heads = ("drafts", "over plain", "over llama.cpp's plain", "tok/s", "tokens a round", *(f"{p}, ms" for p in PHASES))
    return markdown(heads, list(_speed_rows(answers)))


def _speed_rows(answers: Sequence[Answer]) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys(one.configuration for one in answers):
        mine = [one for one in answers if one.configuration == name and not is_looping(one)]
        rounds = [one for answer in mine for one in answer.rounds]
        tokens = max(sum(one.committed for one in rounds), 1)
        speed = tokens_per_second(mine)
        yield (
            name,
            str(speed_up(paired(answers, name)) or "-"),
            str(speed_up(paired(answers, name, LLAMACPP)) or "-"),
            f"{speed:.0f}" if speed else "-",
            f"{tokens / max(len(rounds), 1):.2f}",
            *(f"{1e3 * sum(getattr(one, phase) for one in rounds) / tokens:.2f}" for phase in PHASES),
        )


if __name__ == "__main__":
    main()
