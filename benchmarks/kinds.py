#!/usr/bin/env python3
"""Tokens per second and mean accepted length by kind of prompt: speculation off, suffix lookup, a draft model.

    python benchmarks/kinds.py [MODEL] [--runtime auto] [--draft-type Q4_0] [--num-draft-tokens 4] [--tokens 96]

The draft model is a copy of the target, requantised with llama.cpp; its real tensor types are printed, because
K-quants fall back where rows are no multiple of 256. The three are run in turn on each prompt, so that a change of the
machine's speed hits all of them; ratios are per prompt, and medians are quoted. All three must give the same ids.
Answers in which more than a third of the 4-grams are repetitions of earlier ones loop, and are left out.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from slipstream import Completion, Engine, ModelOptions
from slipstream.core.protocols import Drafter
from slipstream.draft import ModelDrafter, SuffixDrafter
from slipstream.models import read_header, resolve
from slipstream.runtime import LoadOptions, choose, load, requantize

PROMPTS = Path(__file__).with_name("prompts.jsonl")
LOOPING = 1 / 3


class Run(NamedTuple):
    """One answer: what was measured and whether it was the plain one."""

    per_second: float
    ratio: float
    accepted_length: float


def repeated_share(tokens: list[int]) -> float:
    """Share of 4-grams that occurred before in the same answer."""
    grams = [tuple(tokens[start : start + 4]) for start in range(len(tokens) - 3)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def tensor_types(path: Path) -> str:
    """Types of the matrices of a file, most frequent first."""
    counts = Counter(tensor.type.name for tensor in read_header(path).tensors if len(tensor.shape) > 1)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def answer(engine: Engine, drafters: list[Drafter], prompt: str, tokens: int) -> Completion:
    """One answer with the file's own sampling and a fixed seed."""
    engine.drafters = drafters
    return engine.generate([{"role": "user", "content": prompt}], seed=7, max_tokens=tokens, logprobs=False)


def run_prompt(
    engine: Engine, drafters: dict[str, list[Drafter]], prompt: str, tokens: int, repeats: int
) -> dict[str, Run]:
    """All drafters in turn on one prompt; empty if the answer loops."""
    answers: dict[str, list[Completion]] = {name: [] for name in drafters}
    for _ in range(repeats):
        for name, drafter in drafters.items():
            answers[name].append(answer(engine, drafter, prompt, tokens))
    plain = answers["off"][0].tokens
    differing = [name for name, completions in answers.items() if completions[0].tokens != plain]
    if differing:
        print(f"  other ids with {', '.join(differing)} (a near-tie, see docs/llamacpp.md): {prompt[:50]!r}")
    if repeated_share(plain) > LOOPING:
        print(f"  left out, the answer loops: {prompt[:50]!r}")
        return {}
    return {name: _summarised(answers[name], answers["off"]) for name in drafters}


def _summarised(completions: list[Completion], plain: list[Completion]) -> Run:
    speeds = [completion.timings.as_dict()["predicted_per_second"] for completion in completions]
    plain_speeds = [completion.timings.as_dict()["predicted_per_second"] for completion in plain]
    ratios = [speed / other for speed, other in zip(speeds, plain_speeds, strict=True)]
    return Run(median(speeds), median(ratios), completions[0].statistics.mean_accepted_length or 0.0)


def table(results: dict[str, list[dict[str, Run]]], names: Iterable[str]) -> list[str]:
    """Markdown lines: one row for each kind, medians over its prompts."""
    names = list(names)
    heads = [f"{name}: tok/s (ratio), tokens a round" for name in names]
    lines = [f"| kind | prompts | {' | '.join(heads)} |", "|---" * (len(names) + 2) + "|"]
    for kind, runs in results.items():
        cells = []
        for name in names:
            here = [run[name] for run in runs]
            speed, ratio, length = (median(column) for column in zip(*here, strict=True))
            cells.append(f"{speed:.0f} ({ratio:.2f}x), {length:.2f}")
        lines.append(f"| {kind} | {len(runs)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--runtime", choices=("auto", "native", "llamacpp"), default="auto", help="of both models")
    parser.add_argument("--draft-type", default="Q4_0", help="asked of llama.cpp's quantiser")
    parser.add_argument("--draft-model", help="a draft model's file instead of a requantised copy")
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    path = resolve(arguments.model, fetch=True)
    prompts = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as directory:
        if arguments.draft_model:
            copy = resolve(arguments.draft_model)
        else:
            copy = requantize(path, Path(directory) / "draft.gguf", arguments.draft_type)
        options = ModelOptions(context_length=1024, runtime=arguments.runtime)
        with Engine.load(
            path, draft=None, speculation="on", num_draft_tokens=arguments.num_draft_tokens, options=options
        ) as engine:
            draft_options = LoadOptions(arguments.runtime, context_length=1024)
            loaded = load(copy, choose(read_header(copy), draft_options), draft_options)
            print(f"target: {path.name}, {tensor_types(path)}, {engine.target.runtime}")
            print(f"draft model: {tensor_types(copy)}, {loaded.runtime}")
            draft_model = ModelDrafter(loaded)
            drafters: dict[str, list[Drafter]] = {"off": [], "suffix": [SuffixDrafter()], "draft model": [draft_model]}
            results: dict[str, list[dict[str, Run]]] = {}
            for prompt in prompts:
                runs = run_prompt(engine, drafters, prompt["prompt"], arguments.tokens, arguments.repeats)
                results.setdefault(prompt["kind"], []).extend([runs] if runs else [])
            print("\n".join(table({kind: runs for kind, runs in results.items() if runs}, drafters)))
            draft_model.close()


if __name__ == "__main__":
    main()
