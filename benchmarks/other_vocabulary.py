#!/usr/bin/env python3
"""What a draft model of another vocabulary brings: SmolLM2 and Gemma 3 270M draft for each other, through the text.

    scripts/bench other_vocabulary [--pairs wide 135M gemma] [--runtime native] [--per-kind 2] [--repeats 2]
        [--tokens 96] [--temperatures 0 0.8] [--out FILE] [--report FILE]

Plain decoding, plain decoding again, `--speculation auto` and drafts of four tokens whether that pays or not answer the
same prompts in turn, with the draft model of the other vocabulary; on a bit-exact runtime all must give the same ids.
Quoted for each kind of prompt: medians of the paired ratios of time (below 1 is faster), tokens per round and how many
draft tokens were right. `auto` may take 1.03 of plain decoding's time; "plain again" says how far from 1 chance goes.
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.records import Recorder, describe
from benchmarks.rig import GEMMA, SMALL, rig_file
from benchmarks.turns import add_records, add_sizes, answers_in_turn, parser_of, reported
from slipstream import Engine, ModelOptions
from slipstream.measure.prompts import shipped_prompts

PAIRS = {"wide": ("wide Q4_0", GEMMA), "135M": (SMALL, GEMMA), "gemma": (GEMMA, SMALL)}
"""Target and draft model."""
KINDS = ("chat", "code", "summary", "translation", "prose")
PLAIN, AGAIN, AUTO, FIXED = "off", "plain again", "auto", "drafts of 4"
LIMIT = 1.03


def measure(pair: str, arguments: argparse.Namespace, recorder: Recorder) -> None:
    """All ways to decode, in turn, for one target."""
    target, draft = (rig_file(name) for name in PAIRS[pair])
    options = ModelOptions(arguments.runtime, arguments.runtime, context_length=2048)
    prompts = shipped_prompts(arguments.kinds, arguments.per_kind)
    with Engine.load(target, speculation="off", options=options) as plain:
        engines = {
            PLAIN: plain,
            AGAIN: plain.sharing(speculation="off"),
            AUTO: plain.sharing(draft=str(draft)),
            FIXED: plain.sharing(draft=str(draft), speculation="on", num_draft_tokens=4),
        }
        for notice in engines[AUTO].notices:
            print(notice)
        for temperature in arguments.temperatures:
            results = answers_in_turn(
                engines, prompts, arguments, {"temperature": temperature, "repetition_penalty": 1.1}
            )
            for answer in results.answers:
                recorder.add(
                    "answer", pair=pair, runtime=arguments.runtime, temperature=temperature, way=answer.configuration,
                    of=answer.kind, prompt=answer.prompt, repeat=answer.repeat, tokens=answer.tokens,
                    seconds=answer.seconds, rounds=len(answer.rounds), drafted=answer.drafted, accepted=answer.accepted,
                    ids=answer.ids_hash,
                )  # fmt: skip
            for failure in results.failures:
                sys.exit(f"other_vocabulary.py: {failure}")
        print(f"{pair}: {engines[AUTO].policy.describe()['explanation']}", flush=True)
        for name in (FIXED, AUTO, AGAIN):
            engines[name].close()


def report(records: Sequence[dict[str, Any]]) -> bool:
    """A table for each pair and temperature; whether `auto` was within its limit on every kind."""
    print(describe(records[0]))
    answers = [record for record in records if record["kind"] == "answer"]
    plain = {_text(one): one for one in answers if one["way"] == PLAIN}
    if any(one["ids"] != plain[_text(one)]["ids"] for one in answers if one["runtime"] == "native"):
        sys.exit("other_vocabulary.py: drafts changed the text.")
    worst = 0.0
    for pair, temperature in dict.fromkeys((one["pair"], one["temperature"]) for one in answers):
        mine = [one for one in answers if (one["pair"], one["temperature"]) == (pair, temperature)]
        kinds = list(dict.fromkeys(one["of"] for one in mine))
        speed = median([one["tokens"] / one["seconds"] for one in mine if one["way"] == PLAIN])
        print(f"\n{pair} at temperature {temperature:g}, plain {speed:.1f} tok/s; time / plain decoding's time")
        print(f"{'':12}" + "".join(f"{kind:>14}" for kind in kinds) + f"{'tokens/round':>14}{'right':>8}")
        for way in (AGAIN, AUTO, FIXED):
            chosen = [one for one in mine if one["way"] == way]
            medians = [_ratio([one for one in chosen if one["of"] == kind], plain) for kind in kinds]
            worst = max([worst, *medians]) if way == AUTO else worst
            tokens, rounds, drafted, accepted = (
                sum(one[name] for one in chosen) for name in ("tokens", "rounds", "drafted", "accepted")
            )
            right = f"{accepted / drafted:.0%}" if drafted else "-"
            cells = "".join(f"{one:>14.3f}" for one in medians)
            print(f"{way:12}{cells}{tokens / max(rounds, 1):>14.2f}{right:>8}")
    print(f"\nworst median of {AUTO}: {worst:.3f}, allowed {LIMIT}: {'holds' if worst <= LIMIT else 'DOES NOT HOLD'}")
    return worst <= LIMIT


def _ratio(answers: Sequence[dict[str, Any]], plain: dict[tuple[Any, ...], dict[str, Any]]) -> float:
    return float(median([one["seconds"] / plain[_text(one)]["seconds"] for one in answers]))


def _text(record: dict[str, Any]) -> tuple[Any, ...]:
    """What has the same answer, however it is decoded."""
    return tuple(record[key] for key in ("pair", "runtime", "temperature", "prompt", "repeat"))


def main() -> None:
    """Measure and report, or report on an earlier run."""
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=PAIRS)
    parser.add_argument("--runtime", default="native", choices=("native", "llamacpp"))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    add_sizes(parser, per_kind=2, repeats=2, tokens=96)
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.8])
    add_records(parser)
    arguments = parser.parse_args()
    sys.exit(not reported(arguments, lambda recorder: measure_all(arguments, recorder), report))


def measure_all(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """All targets."""
    for pair in arguments.pairs:
        measure(pair, arguments, recorder)


if __name__ == "__main__":
    main()
