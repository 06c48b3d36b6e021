#!/usr/bin/env python3
"""Whole answers: Slipstream with the native runtime against llama-server of the same llama.cpp.

    scripts/bench end_to_end [--cycles 2] [--out records.jsonl]
    scripts/bench end_to_end --report records.jsonl

Target: SmolLM2-135M widened to 1.45B parameters, Q4_0. Draft model: SmolLM2-135M Q4_1. Two prompts of each kind in
`prompts.jsonl`, at temperature 0 and 1.0, filters as the options say, the same on both sides; both get the same token
ids and nothing of an earlier prompt is reused. Both are run plain and with the draft model at several draft lengths,
one after the other; each cycle runs all of them.

Decoding is measured from the first tokens on: (tokens - those of the first round) / (time since then), so that reading
the prompt, with either model, is no part of it. The whole request is tokens / wall time as the caller sees it.

A prompt is left out, at a temperature, if any answer to it loops: more than a third of its 4-grams occurred before.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.kinds import LOOPING, PROMPTS, repeated_share
from benchmarks.llama_server import LlamaServer
from benchmarks.peer import PeerError, ensure_server
from benchmarks.records import (
    Record,
    Recorder,
    Target,
    describe,
    end_on_request,
    machine,
    markdown,
    read_records,
    target_table,
)
from benchmarks.rig import SMALL, rig_file
from slipstream import Engine, ModelOptions
from slipstream.errors import SlipstreamError
from slipstream.policy import FixedLength
from slipstream.runtime.threads import default_threads

TARGET_FILE = "wide Q4_0"
CONTEXT = 1024
OF_EACH_KIND = 2
SEED = 7
TEMPERATURES = (0.0, 1.0)


class Setting(NamedTuple):
    """One way to decode; `draft_tokens` 0 is without the draft model."""

    side: str
    draft_tokens: int

    def __str__(self) -> str:
        return f"{self.side}, {f'drafts of {self.draft_tokens}' if self.draft_tokens else 'plain'}"


OURS = [Setting("slipstream", count) for count in (0, 2, 3, 4, 5)]
THEIRS = [Setting("llama-server", count) for count in (0, 3, 7)]
IN_TURN = [setting for pair in zip_longest(OURS, THEIRS) for setting in pair if setting is not None]


class Question(NamedTuple):
    """A prompt as both sides get it."""

    tokens: list[int]
    temperature: float
    max_tokens: int
    filters: dict[str, Any]


# --- measuring -----------------------------------------------------------------------------------------------------


def mixed_prompts(count: int = OF_EACH_KIND) -> list[str]:
    """The first `count` prompts of each kind."""
    of_kind: dict[str, list[str]] = {}
    for line in PROMPTS.read_text(encoding="utf-8").splitlines():
        prompt = json.loads(line)
        of_kind.setdefault(prompt["kind"], []).append(prompt["prompt"])
    return [prompt for prompts in of_kind.values() for prompt in prompts[:count]]


class Ours:
    """Slipstream with its draft model loaded."""

    def __init__(self, options: ModelOptions) -> None:
        self.engine = Engine.load(rig_file(TARGET_FILE), draft=rig_file(SMALL), options=options)
        self._drafters = self.engine.drafters

    def choose(self, setting: Setting) -> None:
        self.engine.drafters = self._drafters if setting.draft_tokens else []
        self.engine.policy = FixedLength(setting.draft_tokens)

    def answer(self, question: Question) -> Record:
        """One answer, by both models' fresh caches."""
        self.engine.generate([0], max_tokens=1)  # another beginning, so that no cache has any of the prompt's
        options: dict[str, Any] = {"temperature": question.temperature, "max_tokens": question.max_tokens, "seed": SEED}
        started = perf_counter()
        with self.engine.stream(question.tokens, logprobs=False, **options, **question.filters) as stream:
            next(stream)
            first, early = perf_counter(), len(stream.completion.tokens)
            for _ in stream:
                pass
        ended = perf_counter()
        counts = stream.completion.statistics
        return {
            "tokens": stream.completion.tokens,
            "early": early,
            "decode_seconds": ended - first,
            "seconds": ended - started,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
        }

    def close(self) -> None:
        self.engine.drafters = self._drafters
        self.engine.close()


def ask_server(server: LlamaServer, question: Question) -> Record:
    """One answer of llama-server. Its own clock for decoding starts at the first token."""
    order = ["top_k", "top_p", "min_p", "temperature"]
    sampling = {"temperature": question.temperature, "seed": SEED, "samplers": order, **question.filters}
    started = perf_counter()
    answer = server.complete(question.tokens, max_tokens=question.max_tokens, sampling=sampling)
    seconds, timings = perf_counter() - started, answer["timings"]
    return {
        "tokens": answer["tokens"],
        "early": 1,
        "decode_seconds": timings["predicted_ms"] / 1e3,
        "seconds": seconds,
        "drafted": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0),
    }


class Run:
    """Both sides and what they are asked."""

    def __init__(self, options: argparse.Namespace, recorder: Recorder) -> None:
        self._recorder = recorder
        self._threads: int = options.threads
        self._program = ensure_server()
        runtimes = {"runtime": options.runtime, "draft_runtime": options.runtime}
        self._ours = Ours(ModelOptions(**runtimes, context_length=CONTEXT, threads=options.threads))
        filters = {"top_k": options.top_k, "top_p": options.top_p, "min_p": options.min_p}
        recorder.add("filters", **filters)
        prompts = [self._ours.engine.tokenize([{"role": "user", "content": prompt}]) for prompt in mixed_prompts()]
        self._questions = [
            Question(tokens, temperature, options.tokens, filters) for temperature in TEMPERATURES for tokens in prompts
        ]

    def setting(self, setting: Setting) -> None:
        """All questions under one setting; the first is asked once more before, to warm up."""
        print(setting, flush=True)
        for number, answer in enumerate(self._answers(setting), start=-1):
            if number >= 0:
                question = self._questions[number]
                label = {"prompt": number % (len(self._questions) // len(TEMPERATURES)), **setting._asdict()}
                self._recorder.add("answer", **label, temperature=question.temperature, **answer)

    def _answers(self, setting: Setting) -> Iterator[Record]:
        questions = [self._questions[0], *self._questions]
        if setting in OURS:
            self._ours.choose(setting)
            yield from map(self._ours.answer, questions)
            return
        draft = rig_file(SMALL) if setting.draft_tokens else None
        options = {"threads": self._threads, "context": CONTEXT, "draft_tokens": setting.draft_tokens}
        with LlamaServer(self._program, rig_file(TARGET_FILE), draft=draft, **options) as server:
            yield from (ask_server(server, question) for question in questions)

    def close(self) -> None:
        self._ours.close()


def measure(options: argparse.Namespace, recorder: Recorder) -> None:
    """All settings in turn, as many times as there are cycles."""
    recorder.add("machine", **machine(options.threads))
    run = Run(options, recorder)
    try:
        for _ in range(options.cycles):
            for setting in IN_TURN:
                run.setting(setting)
    finally:
        run.close()


# --- reading the records -------------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """One setting at one temperature. Rates are tokens per second; medians are over prompts."""

    decode: float
    decode_total: float
    whole: float
    accepted: float | None


class Results:
    """Figures out of the records, without the prompts whose answers loop."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.answers = [record for record in records if record["kind"] == "answer"]
        self.looping = {place(answer) for answer in self.answers if repeated_share(answer["tokens"]) > LOOPING}

    def of(self, setting: Setting, temperature: float) -> list[Record]:
        """The answers that count."""
        wanted = {**setting._asdict(), "temperature": temperature}.items()
        return [answer for answer in self.answers if wanted <= answer.items() and place(answer) not in self.looping]

    def summary(self, setting: Setting, temperature: float) -> Summary | None:
        """None if no answer counts."""
        answers = [answer for answer in self.of(setting, temperature) if decode_tokens(answer)]
        if not answers:
            return None
        seconds, drafted, accepted = (total(answers, key) for key in ("decode_seconds", "drafted", "accepted"))
        return Summary(
            decode=median(decode_tokens(answer) / answer["decode_seconds"] for answer in answers),
            decode_total=sum(map(decode_tokens, answers)) / seconds,
            whole=median(len(answer["tokens"]) / answer["seconds"] for answer in answers),
            accepted=accepted / drafted if drafted else None,
        )

    def best(self, settings: Iterable[Setting], temperature: float, figure: str = "decode") -> float | None:
        """The highest rate among settings."""
        summaries = [self.summary(setting, temperature) for setting in settings]
        return max((getattr(summary, figure) for summary in summaries if summary is not None), default=None)

    def speed_up(self, temperature: float, figure: str = "decode") -> float | None:
        """Our best over their best."""
        ours, theirs = (self.best(settings, temperature, figure) for settings in (OURS, THEIRS))
        return ours / theirs if ours and theirs else None

    def different(self) -> int:
        """Answers of ours that are other tokens than plain decoding gave for the same prompt and temperature."""
        ours = [answer for answer in self.answers if answer["side"] == OURS[0].side]
        plain = {place(answer): answer["tokens"] for answer in ours if not answer["draft_tokens"]}
        return sum(answer["tokens"] != plain.get(place(answer)) for answer in ours)


def place(answer: Record) -> tuple[int, float]:
    """Which question an answer is to."""
    return answer["prompt"], answer["temperature"]


def decode_tokens(answer: Record) -> int:
    """Tokens after those of the first round."""
    return len(answer["tokens"]) - int(answer["early"])


def total(answers: Iterable[Record], key: str) -> float:
    """Sum of one figure."""
    return float(sum(answer[key] for answer in answers))


TARGETS: list[Target[Results]] = [
    Target("temperature 0: our best / the best of llama-server", ">=", 2.5, lambda results: results.speed_up(0.0)),
    Target("temperature 1.0: our best / the best of llama-server", ">=", 1.7, lambda results: results.speed_up(1.0)),
]


def report(records: Sequence[Record]) -> list[str]:
    """All tables, Markdown lines."""
    results = Results(records)
    lines = [describe(record) for record in records if record["kind"] == "machine"]
    lines += [f"Filters on both sides: {record}" for record in records if record["kind"] == "filters"]
    for temperature in TEMPERATURES:
        asked = {answer["prompt"] for answer in results.answers}
        looping = sorted(prompt for prompt, at in results.looping if at == temperature)
        lines += ["", f"## Temperature {temperature:g}", ""]
        lines += [f"{len(asked)} prompts; left out because an answer loops: {looping or 'none'}.", ""]
        lines += setting_table(results, temperature)
        lines += ["", f"Whole request: our best / theirs {results.speed_up(temperature, 'whole') or 0:.2f}"]
    lines += ["", f"Answers of ours that differ from plain decoding: {results.different()}", "", "## Targets", ""]
    return lines + target_table(TARGETS, results)


def setting_table(results: Results, temperature: float) -> list[str]:
    """One row for each setting."""
    rates_heads = ("decode, tok/s", "/ best of llama-server", "all tokens / all time", "whole request, tok/s")
    best = results.best(THEIRS, temperature) or float("nan")
    rows = []
    for setting in [*THEIRS, *OURS]:
        if summary := results.summary(setting, temperature):
            accepted = "" if summary.accepted is None else f"{summary.accepted:.2f}"
            rates = f"{summary.decode:.1f}", f"{summary.decode / best:.2f}", f"{summary.decode_total:.1f}"
            rows.append((str(setting), *rates, f"{summary.whole:.1f}", accepted))
    return markdown(("setting", *rates_heads, "accepted"), rows)


def main() -> None:
    """Measure and report, or report what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", default="native", choices=("native", "llamacpp"), help="ours")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--top-k", type=int, default=0, help="0 is off")
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--min-p", type=float, default=0.05)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--out", type=Path, help="write the raw records here")
    parser.add_argument("--report", type=Path, metavar="RECORDS", help="print the tables of an earlier run instead")
    options = parser.parse_args()
    if options.report:
        print("\n".join(report(read_records(options.report))))
        return
    end_on_request()
    recorder = Recorder(options.out)
    try:
        measure(options, recorder)
    except (SlipstreamError, PeerError) as error:
        sys.exit(f"end_to_end.py: {error}")
    print("\n".join(report(recorder.records)))


if __name__ == "__main__":
    main()
