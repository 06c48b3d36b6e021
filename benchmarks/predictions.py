#!/usr/bin/env python3
"""Hold what `slipstream advise` predicts against what is measured, for fixed draft lengths and for auto.

    scripts/bench predictions [--target "wide Q4_0"] [--draft "SmolLM2-135M Q4_1"] [--runtimes native llamacpp]
                              [--kinds chat code summary] [--per-kind 2] [--repeats 3] [--tokens 96] [--out FILE.json]

For each runtime the target answers prompts plainly, with drafts of 1, 2, 4 and 8 tokens, and with --speculation auto:
ten configurations with both runtimes. Predictions come from plain answers alone; measurements are medians of paired
ratios. Prints one line for each configuration and how many predictions are within 10 %.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.rig import rig_file
from slipstream import Engine, ModelOptions
from slipstream.engine import GenerationOptions
from slipstream.measure.configurations import PLAIN
from slipstream.measure.evidence import predicted_from
from slipstream.measure.prediction import LENGTHS, Prediction
from slipstream.measure.prompts import BenchPrompt, shipped_prompts
from slipstream.measure.ratios import ratio
from slipstream.measure.runner import run_bench
from slipstream.policy.profile import profile

NEAR = 0.1


def configurations(plain: Engine, draft: Path) -> dict[str, Engine]:
    """Plain decoding and everything that is predicted; a draft model for each, which reads its prompts itself."""
    engines = {PLAIN: plain, "auto": plain.sharing(draft=draft)}
    for length in LENGTHS:
        engines[f"n={length}"] = plain.sharing(draft=draft, speculation="on", num_draft_tokens=length)
    return engines


def predicted(prediction: Prediction, name: str, prompts: list[str]) -> float | None:
    """For one configuration."""
    return prediction.for_prompts(prompts, None if name == "auto" else int(name.removeprefix("n=")))


def compare(
    target: Path, draft: Path, runtime: str, prompts: list[BenchPrompt], options: GenerationOptions, repeats: int
) -> list[dict[str, Any]]:
    """One row for each configuration on one runtime."""
    both = ModelOptions(runtime=runtime, draft_runtime=runtime, context_length=2048)  # type: ignore[arg-type]
    with Engine.load(target, speculation="off", options=both) as plain:
        curve = profile(plain.target)
        engines = configurations(plain, draft)
        prediction = predicted_from(plain, engines["auto"], curve, prompts, options)
        results = run_bench(engines, prompts, repeats=repeats, options=options)
        rows = []
        for name in ("auto", *(f"n={length}" for length in LENGTHS)):
            measured = ratio(results.answers, name)
            compared = sorted({one.prompt for one in results.answers if one.configuration == name})
            names = [one for one in compared if one in prediction.auto]
            guess = predicted(prediction, name, names)
            if measured is None or guess is None:
                continue
            row = {"runtime": runtime, "configuration": name, "measured": measured.value, "predicted": guess}
            row |= {"low": measured.low, "high": measured.high, "near": abs(guess / measured.value - 1) <= NEAR}
            rows.append(row)
            mark = "" if row["near"] else "  differs"
            print(f"{runtime:9} {name:5} measured {measured}, predicted {guess:.2f}x{mark}", flush=True)
        for name in reversed(list(engines)):
            engines[name].close()
    return rows


def main() -> None:
    """Compare on every runtime and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="wide Q4_0", help="a file of the rig")
    parser.add_argument("--draft", default="SmolLM2-135M Q4_1", help="a file of the rig")
    parser.add_argument("--runtimes", nargs="+", default=["native", "llamacpp"])
    parser.add_argument("--kinds", nargs="+", default=["chat", "code", "summary"])
    parser.add_argument("--per-kind", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, help="default: what the file recommends")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    prompts = shipped_prompts(arguments.kinds, arguments.per_kind)
    options: GenerationOptions = {"seed": 0, "max_tokens": arguments.tokens, "logprobs": False}
    if arguments.temperature is not None:
        options["temperature"] = arguments.temperature
    rows = []
    for runtime in arguments.runtimes:
        files = rig_file(arguments.target), rig_file(arguments.draft)
        rows += compare(*files, runtime, prompts, options, arguments.repeats)
    print(f"{sum(row['near'] for row in rows)} of {len(rows)} predictions are within {NEAR:.0%}.")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"command": sys.argv, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
