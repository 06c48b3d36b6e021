#!/usr/bin/env python3
"""What drafting with a part of the target's own layers brings, and that `--speculation auto` loses nothing by it.

    scripts/bench layers [--targets wide 135M] [--search SECONDS] [--draft layers suffix+layers] [--length 3]
                         [--per-kind 2] [--repeats 2] [--tokens N] [--temperature T] [--out FILE] [--report FILE]

Plain decoding, plain decoding once more (how far chance alone goes), each of `--draft` under `--speculation auto`, and
the first of them with drafts of a fixed length, which shows what it is that the policy decides about, answer the same
prompts in turn; all must give the same ids. Quoted for each kind of prompts: the median of paired speed-ups, which must
be at least 0.97 under auto. With `--search` the layers are searched first, as `slipstream layers` does; without, they
are those of an earlier search, or all but the middle.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.records import Recorder, describe
from benchmarks.rig import rig_file
from benchmarks.turns import add_records, add_sizes, answers_in_turn, parser_of, reported
from slipstream import Engine, ModelOptions
from slipstream.measure.layer_passages import CONTEXT, sessions_needed
from slipstream.measure.layers import LayerRequest, find_layers
from slipstream.measure.layers_text import lines
from slipstream.measure.prompts import shipped_prompts
from slipstream.measure.runner import in_turn
from slipstream.models import read_model_header

KINDS = ("chat", "code", "code-editing", "prose")
LEAST = 0.97
TARGETS = {"wide": "wide Q4_0", "135M": "SmolLM2-135M Q4_1"}
CONTROL = "plain again"


def search(path: Path, seconds: float) -> None:
    """Find the layers of a target and keep them."""
    options = ModelOptions(runtime="native", context_length=CONTEXT, max_sequences=sessions_needed())
    with Engine.load(path, speculation="off", options=options) as engine:
        prompts = in_turn(shipped_prompts())
        print("\n".join(lines(find_layers(engine, read_model_header(path), prompts, LayerRequest(seconds, 64)))))


def measure(target: str, arguments: argparse.Namespace, recorder: Recorder) -> None:
    """All pairs of one target."""
    path = rig_file(TARGETS[target])
    if arguments.search:
        search(path, arguments.search)
    options = ModelOptions(runtime=arguments.runtime, draft_runtime=arguments.runtime, context_length=2048)
    with Engine.load(path, speculation="off", options=options) as plain:
        engines = {"off": plain, CONTROL: plain.sharing(speculation="off")}
        for draft in arguments.draft:
            engines[draft] = plain.sharing(draft=draft)
        fixed = f"{arguments.draft[0]}, always {arguments.length}"
        engines[fixed] = plain.sharing(
            draft=arguments.draft[0], speculation="on", num_draft_tokens=arguments.length, options=options
        )
        prompts = shipped_prompts(arguments.kinds, arguments.per_kind)
        results = answers_in_turn(engines, prompts, arguments, {"temperature": arguments.temperature})
        for answer in results.answers:
            recorder.add(
                "answer", target=target, drafter=answer.configuration, of=answer.kind, prompt=answer.prompt,
                repeat=answer.repeat, tokens=answer.tokens, seconds=answer.seconds, drafted=answer.drafted,
                accepted=answer.accepted, ids=answer.ids_hash, held=answer.configuration in arguments.draft,
            )  # fmt: skip
        for failure in results.failures:
            print(f"failed: {failure}")
        for name, engine in engines.items():
            if name in arguments.draft:
                print(f"  {name}: {engine.policy.describe()['explanation']}", flush=True)
            if engine is not plain:
                engine.close()


def report(records: Sequence[dict[str, Any]]) -> bool:
    """Print the speed-ups; whether none that must hold is below `LEAST`, and all texts are plain decoding's."""
    print(describe(records[0]))
    answers = [record for record in records if record["kind"] == "answer"]
    plain = {_pair(one): one for one in answers if one["drafter"] == "off"}
    kinds = list(dict.fromkeys(one["of"] for one in answers))
    print(f"\n{'speed-up over plain decoding':36}" + "".join(f"{kind:>14}" for kind in (*kinds, "accepted")))
    holds = bool(plain)
    for target, drafter in dict.fromkeys((one["target"], one["drafter"]) for one in answers):
        if drafter == "off":
            continue
        own = [one for one in answers if (one["target"], one["drafter"]) == (target, drafter) and _pair(one) in plain]
        same = all(one["ids"] == plain[_pair(one)]["ids"] for one in own)
        ratios = {kind: _speedup([one for one in own if one["of"] == kind], plain) for kind in kinds}
        drafted, accepted = (sum(one[what] for one in own) for what in ("drafted", "accepted"))
        cells = ["-" if ratio is None else f"{ratio:.3f}" for ratio in ratios.values()]
        cells.append(f"{accepted}/{drafted}")
        print(
            f"{target + ', ' + drafter:36}" + "".join(f"{cell:>14}" for cell in cells) + ("" if same else "  OTHER IDS")
        )
        held = [ratio for ratio in ratios.values() if own[0]["held"]]
        holds = holds and same and all(ratio is not None and ratio >= LEAST for ratio in held)
    print(f"never below {LEAST} under auto, and the same ids: {'holds' if holds else 'DOES NOT HOLD'}")
    return holds


def _speedup(own: Sequence[dict[str, Any]], plain: dict[tuple[Any, ...], dict[str, Any]]) -> float | None:
    ratios = [plain[_pair(one)]["seconds"] / one["seconds"] for one in own]
    return median(ratios) if ratios else None


def _pair(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[key] for key in ("target", "prompt", "repeat"))


def main() -> None:
    """Measure and report, or report on an earlier run."""
    parser = parser_of(__doc__)
    parser.add_argument("--targets", nargs="+", choices=tuple(TARGETS), default=list(TARGETS))
    parser.add_argument("--runtime", choices=("native", "llamacpp"), default="native")
    parser.add_argument("--search", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--draft", nargs="+", default=["layers", "suffix+layers"])
    parser.add_argument("--length", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    add_sizes(parser, per_kind=2, repeats=2, tokens=96)
    parser.add_argument("--temperature", type=float, default=0.7)
    add_records(parser)
    arguments = parser.parse_args()
    sys.exit(not reported(arguments, lambda recorder: measure_all(arguments, recorder), report))


def measure_all(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """All targets."""
    for target in arguments.targets:
        print(target, flush=True)
        measure(target, arguments, recorder)


if __name__ == "__main__":
    main()
