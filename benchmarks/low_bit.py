#!/usr/bin/env python3
"""What a low-bit copy of the target brings as its draft model (`--draft lowbit`), at temperature 0 and 1.

    scripts/bench low_bit [--targets F16 Q8_0] [--types q4_0] [--seconds 300] [--out FILE] [--report FILE]

SmolLM2-135M widened to 1.45 billion parameters in F16 and in Q8_0 is the target. Plain decoding and one engine for each
type of copy (our own Q4_0; others are llama.cpp's), with the policy that `run` uses, answer the same prompts in turn;
they must give the same ids, and answers that repeat themselves are left out. What copies were made of, what a token's
time went into and what forwards cost is printed beside the speed-ups. Targets and temperatures share `--seconds`, and
kinds of prompts take turns, so that no kind is left out for want of time; what is made first does not count.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Any

from benchmarks.records import Record, Recorder, describe, markdown
from benchmarks.rig import rig_file
from benchmarks.turns import add_records, add_sizes, answers_in_turn, parser_of, reported
from slipstream import Engine, ModelOptions
from slipstream.core.stats import PHASES
from slipstream.engine.low_bit import DEFAULT_KIND, low_bit_copy
from slipstream.measure.configurations import PLAIN
from slipstream.measure.prompts import KINDS, shipped_prompts
from slipstream.measure.ratios import differing, is_looping, ratio, tokens_per_second
from slipstream.measure.records import Answer, Round
from slipstream.models import read_model_header
from slipstream.models.tensor_types import bytes_by_type, fallen_back
from slipstream.policy import AdaptivePolicy, Store

TARGETS = {"F16": "wide F16", "Q8_0": "wide Q8_0", "135M F16": "SmolLM2-135M F16"}
TEMPERATURES = (0.0, 1.0)
LEAST = {("F16", 0.0): 1.5, ("F16", 1.0): 1.3, ("Q8_0", 0.0): 1.3, ("Q8_0", 1.0): 1.15}
"""Speed-ups that a copy of the default type should reach."""
HEADS = ("target", "temperature", "copy", "speed-up", "least", "pairs", "tok/s, plain", "accepted", "tokens a round")
PROFILE_HEADS = ("target", "temperature", "copy", *(f"{phase}, ms a token" for phase in PHASES), "drafted a round")
ROWS = (1, 2, 3, 4, 5, 6, 8)
"""Of forwards whose costs are printed."""


def main() -> None:
    """Measure and report, or report on an earlier run."""
    parser = parser_of(__doc__)
    parser.add_argument("--targets", nargs="+", choices=tuple(TARGETS), default=["F16", "Q8_0"])
    parser.add_argument("--types", nargs="+", default=[DEFAULT_KIND], help="of copies, e.g. q4_0 q3_k_m q8_0")
    parser.add_argument("--runtime", choices=("native", "llamacpp"), default="native")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    add_sizes(parser, per_kind=2, repeats=1, tokens=64)
    parser.add_argument("--seconds", type=float, default=300.0, help="about what measuring may take, loading included")
    add_records(parser)
    arguments = parser.parse_args()
    reported(arguments, lambda recorder: measure_all(arguments, recorder), report)


def measure_all(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Copies first, then all answers in the time that there is."""
    for target in arguments.targets:
        for kind in arguments.types:
            make(target, kind, recorder)
    end = monotonic() + arguments.seconds
    for place, target in enumerate(arguments.targets):
        measure(target, arguments, recorder, (end - monotonic()) / (len(arguments.targets) - place))


def make(target: str, kind: str, recorder: Recorder) -> None:
    """The copy, unless it is there; says what it is made of."""
    header, started = read_model_header(rig_file(TARGETS[target])), monotonic()
    copy = read_model_header(low_bit_copy(header, kind, lambda done: None))
    recorder.add(
        "copy", target=target, type=kind, file=copy.path.name, seconds=monotonic() - started,
        formats=bytes_by_type(copy.tensors), fallen_back=fallen_back(copy), source=header.tensor_bytes,
    )  # fmt: skip


def measure(target: str, arguments: argparse.Namespace, recorder: Recorder, seconds: float) -> None:
    """All answers of one target."""
    end, options = monotonic() + seconds, ModelOptions(runtime=arguments.runtime, context_length=2048)
    with ExitStack() as stack:
        plain = stack.enter_context(Engine.load(rig_file(TARGETS[target]), speculation="off", options=options))
        assert plain._source is not None
        plain._source.costs.store = Store(None)  # what a disturbed run has learned must not count here
        engines = {PLAIN: plain}
        for kind in arguments.types:
            engines[kind] = stack.enter_context(plain.sharing(draft=f"lowbit:{kind}"))
            recorder.add("costs", target=target, type=kind, **costs(engines[kind]))
        for place, temperature in enumerate(TEMPERATURES):
            until = monotonic() + (end - monotonic()) / (len(TEMPERATURES) - place)
            results = answers_in_turn(
                engines,
                shipped_prompts(arguments.kinds, arguments.per_kind),
                arguments,
                {"temperature": temperature},
                should_stop=lambda: monotonic() > until,  # noqa: B023
            )
            for failure in results.failures:
                sys.exit(f"low_bit.py: {failure.sentence}")
            for answer in results.answers:
                recorder.add("answer", target=target, temperature=temperature, **answer.as_dict())
        for kind in arguments.types:
            recorder.add("costs after", target=target, type=kind, **costs(engines[kind]))
            print(f"{target}, lowbit:{kind}: {engines[kind].policy.describe()['explanation']}", flush=True)


def costs(engine: Engine) -> dict[str, Any]:
    """Seconds of forwards by rows, of the target and of the copy."""
    policy = engine.policy
    assert isinstance(policy, AdaptivePolicy)
    assert policy.steps[0] is not None
    return {
        "verify": {str(rows): policy.costs.seconds(rows) for rows in ROWS},
        "step": {str(rows): policy.steps[0].seconds(rows) for rows in ROWS},
    }


def report(records: Sequence[Record]) -> None:
    """Copies, costs and speed-ups."""
    print(describe(records[0]))
    for one in records:
        if one["kind"] == "copy":
            print(_copy(one))
    for one in records:
        if one["kind"] == "costs":
            print(_costs(one))
    print("\n".join(["", *markdown(HEADS, _rows(records)), "", *markdown(PROFILE_HEADS, _profiles(records))]))


def _copy(record: Record) -> str:
    sizes = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in record["formats"].items())
    fallen = ", ".join(f"{size / 1e6:.1f} MB as {name}" for name, size in record["fallen_back"].items())
    text = f"{record['target']}, lowbit:{record['type']}: {sizes}, of {record['source'] / 1e6:.0f} MB"
    text += f"; fell back: {fallen}" if fallen else ""
    return text + f"; made in {record['seconds']:.0f} s or found ({record['file']})"


def _costs(record: Record) -> str:
    base = record["verify"]["1"]
    verify = ", ".join(f"{rows}: {seconds / base:.2f}" for rows, seconds in record["verify"].items())
    return (
        f"{record['target']}, lowbit:{record['type']}: a step of the target takes {base * 1e3:.1f} ms and one of the "
        f"copy {record['step']['1'] / base:.2f} of it; checking by rows: {verify}"
    )


def _answers(records: Iterable[Record], target: str, temperature: float) -> list[Answer]:
    return [
        Answer(**(one["answer"] | {"rounds": [Round.from_list(values) for values in one["answer"]["rounds"]]}))
        for one in records
        if one["kind"] == "answer" and (one["target"], one["temperature"]) == (target, temperature)
    ]


def _measured(records: Sequence[Record]) -> Iterator[tuple[str, float, str, list[Answer]]]:
    """(target, temperature, type, all answers there)."""
    for made in records:
        if made["kind"] == "copy":
            for temperature in TEMPERATURES:
                answers = _answers(records, made["target"], temperature)
                if answers:
                    yield made["target"], temperature, made["type"], answers


def _rows(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    for target, temperature, kind, answers in _measured(records):
        found = ratio(answers, kind)
        mine = [one for one in answers if one.configuration == kind and not is_looping(one)]
        rounds = [one for answer in mine for one in answer.rounds]
        speed = tokens_per_second([one for one in answers if one.configuration == PLAIN])
        least = LEAST.get((target, temperature)) if kind == DEFAULT_KIND else None
        parted = len([one for one in differing(answers) if one.configuration == kind])
        yield (
            target,
            f"{temperature:g}",
            kind + (f", {parted} answers with other ids" if parted else ""),
            str(found or "-"),
            f"{least or '-'}",
            f"{found.pairs} of {sum(one.configuration == kind for one in answers)}" if found else "0",
            f"{speed:.1f}" if speed else "-",
            f"{sum(one.accepted for one in rounds) / max(sum(one.tested for one in rounds), 1):.0%}",
            f"{sum(one.committed for one in rounds) / max(len(rounds), 1):.2f}",
        )


def _profiles(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    """Where the time went."""
    told = set()
    for target, temperature, kind, answers in _measured(records):
        names = [kind] if (target, temperature) in told else [PLAIN, kind]
        told.add((target, temperature))
        for name in names:
            rounds = [one for answer in answers if answer.configuration == name for one in answer.rounds]
            tokens = max(sum(one.committed for one in rounds), 1)
            times = [1e3 * sum(getattr(one, phase) for one in rounds) / tokens for phase in PHASES]
            drafted = sum(one.drafted for one in rounds) / max(len(rounds), 1)
            yield target, f"{temperature:g}", name, *(f"{one:.2f}" for one in times), f"{drafted:.1f}"


if __name__ == "__main__":
    main()
