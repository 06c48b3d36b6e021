#!/usr/bin/env python3
"""What a predicted text brings: the target's own earlier answer, handed back with one line in twenty changed.

    scripts/bench predicted_text [--targets wide 135M] [--runtime native] [--lines 200] [--repeats 3] [--out FILE]

The target first writes an answer of about `--lines` lines; end tokens are forbidden until then, and of several seeds
the first is taken whose answer does not loop. Then plain decoding and `--speculation auto` with the prediction write it
again in turn, and both must give the same ids. Quoted: medians, and the ratio of tokens a second.
"""

import argparse
import sys
from pathlib import Path
from statistics import median

from benchmarks.records import Recorder, describe, machine
from benchmarks.rig import rig_file
from slipstream import Completion, Engine, ModelOptions
from slipstream.engine import GenerationOptions
from slipstream.measure.looping import LOOPING, repeated_share

TARGETS = {"wide": "wide Q4_0", "135M": "SmolLM2-135M Q4_1"}
PROMPT = "Write a long Python program that manages a small library: books, members, loans, reminders and a menu."
SEEDS = range(1, 5)
CHANGED = 20


def answer_of(engine: Engine, lines: int) -> tuple[Completion, GenerationOptions]:
    """An answer that does not loop, and the options that made it."""
    banned = dict.fromkeys(engine.target.vocabulary.end_tokens, float("-inf"))
    best: tuple[float, Completion, GenerationOptions] | None = None
    for seed in SEEDS:
        options: GenerationOptions = {
            "seed": seed,
            "temperature": 1.0,
            "top_p": 1.0,
            "min_p": 0.02,
            "frequency_penalty": 0.1,  # a small model would go round in circles
            "logit_bias": banned,
            "max_tokens": 8 * lines,
            "logprobs": False,
        }
        completion = engine.generate([{"role": "user", "content": PROMPT}], **options)
        kept = "".join(completion.text.splitlines(keepends=True)[:lines])
        share = repeated_share(completion.tokens)
        if best is None or share < best[0]:
            best = share, completion, options
        if share <= LOOPING and kept.count("\n") >= lines // 2:
            break
    assert best is not None
    return best[1], best[2]


def changed(text: str) -> str:
    """The text with one line in twenty exchanged for another."""
    lines = text.splitlines(keepends=True)
    return "".join(
        "    # this line was rewritten by hand since\n" if number % CHANGED == CHANGED // 2 else line
        for number, line in enumerate(lines)
    )


def main() -> None:
    """Answer, change, answer again in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--runtime", default="native")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    recorder = Recorder(arguments.out)
    recorder.add("machine", **machine())
    print(describe(recorder.records[0]))
    for target in arguments.targets:
        compare(target, arguments, recorder)


def compare(target: str, arguments: argparse.Namespace, recorder: Recorder) -> None:
    """One target: plain and predicted answers in turn."""
    options = ModelOptions(runtime=arguments.runtime, context_length=4096)
    with Engine.load(rig_file(TARGETS[target]), draft=None, options=options) as engine:
        completion, sampling = answer_of(engine, arguments.lines)
        prediction = changed(completion.text)
        speeds: dict[str, list[float]] = {"plain": [], "predicted": []}
        for _ in range(arguments.repeats):
            for name, given in (("plain", None), ("predicted", prediction)):
                sampling["prediction"], sampling["num_draft_tokens"] = given, 0 if given is None else None
                again = engine.generate([{"role": "user", "content": PROMPT}], **sampling)
                if again.tokens != completion.tokens:
                    sys.exit(f"predicted_text.py: {name} decoding gave other ids.")
                speeds[name].append(again.timings.as_dict()["predicted_per_second"])
        accepted, refused = again.drafted_by("prediction")
        per_round = again.statistics.mean_accepted_length
        recorder.add("answers", target=target, speeds=speeds, accepted=accepted, refused=refused, per_round=per_round)
        ratio = median([fast / plain for plain, fast in zip(speeds["plain"], speeds["predicted"], strict=True)])
        print(
            f"{target}: {len(completion.tokens)} tokens, {completion.text.count(chr(10))} lines, "
            f"{repeated_share(completion.tokens):.0%} of 4-grams repeated; plain {median(speeds['plain']):.1f} tok/s, "
            f"predicted {median(speeds['predicted']):.1f} tok/s, {ratio:.2f}x; {per_round:.1f} tokens a round, "
            f"{accepted} predicted tokens accepted, {refused} refused",
            flush=True,
        )


if __name__ == "__main__":
    main()
