#!/usr/bin/env python3
"""What suffix lookup brings with a corpus, what token recycling brings alone, and what a look-up takes.

    scripts/bench suffix_corpus [--parts suffix recycling lookup] [--targets 135M wide] [--runtime native]
                                [--per-kind 6] [--repeats 3] [--tokens 160] [--temperatures 0 file] [--out FILE]

suffix: `--speculation auto` with the default drafter on prompts that quote (code editing, summary, retrieval), against
plain decoding in turn, with the same ids:

    nothing  no corpus: only the text itself, and recycling where that has nothing
    others   a corpus of answers to the other prompts of these kinds, as a chat of the same day would have left it
    again    the same and an answer to the same prompt with another seed: asked again, or regenerated

The corpora learn nothing during the measurement. recycling: `--draft recycling` alone, on chat. lookup: microseconds of
a look-up at 10 million tokens, of texts that are there and of others, and what building the index takes.
Quoted: geometric means of paired ratios with their 95 % intervals, without answers that loop.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from time import perf_counter

import numpy as np

from benchmarks.records import Recorder, describe, machine
from benchmarks.rig import rig_file
from benchmarks.turns import add_sizes, parser_of
from slipstream import Engine, ModelOptions
from slipstream.core.protocols import Drafter
from slipstream.corpus import LOCAL, Corpus, CorpusIndex
from slipstream.draft import RecyclingDrafter, SuffixDrafter
from slipstream.engine import GenerationOptions
from slipstream.measure.configurations import PLAIN
from slipstream.measure.prompts import BenchPrompt, shipped_prompts
from slipstream.measure.ratios import differing, ratio
from slipstream.measure.records import Answer
from slipstream.measure.runner import run_bench

TARGETS = {"135M": "SmolLM2-135M Q4_1", "wide": "wide Q4_0"}
QUOTING = ("code-editing", "summary", "retrieval")
OTHER_SEED = 1000
FIRST = BenchPrompt("first", "warm-up", text="Once upon a time")
"""Answered first and not counted: the warm-up would tell a drafter how the first answer begins."""
LOOKED_UP = 10_000_000


class Given(Corpus):
    """A corpus that learns nothing more."""

    def add(self, scope: str, tokens: Sequence[int]) -> None:
        """Nothing is added."""


def given(folder: Path, size: int, texts: Sequence[Sequence[int]]) -> Given:
    """A corpus of these texts, on disk and in memory."""
    writer = Corpus(folder, size)
    for text in texts:
        writer.add(LOCAL, text)
    writer.close()
    corpus = Given(folder, size)
    corpus.index(LOCAL)
    corpus.flush()
    return corpus


def texts_of(plain: Engine, prompts: Sequence[BenchPrompt], options: GenerationOptions) -> dict[str, list[int]]:
    """Prompt and an answer to it with another seed, by the prompt's name."""
    texts = {}
    for prompt in prompts:
        done = plain.generate(prompt.for_model(has_template=plain.template is not None), **options)
        texts[prompt.id] = [*done.prompt_tokens, *done.tokens]
    return texts


def compare(
    plain: Engine,
    make: Callable[[int], dict[str, Drafter]],
    prompts: Sequence[BenchPrompt],
    options: GenerationOptions,
    repeats: int,
) -> list[Answer]:
    """Plain decoding and each drafter with the policy of `auto`, in turn.

    make: new drafters for a repeat, or greedy answers would be remembered from the one before
    """
    answers = []
    for repeat in range(repeats):
        drafters = make(repeat)
        engines = {PLAIN: plain, **{name: plain.sharing(draft=drafter) for name, drafter in drafters.items()}}
        try:
            results = run_bench(engines, [FIRST, *prompts], options={**options, "seed": repeat})
        finally:
            for name in drafters:
                engines[name].close()
        for failure in results.failures:
            print(f"  failed: {failure}", flush=True)
        if others := differing(results.answers):
            print(f"  other ids (a near-tie on llama.cpp, a mistake on the native runtime): {len(others)} answers")
        answers += [replace(one, repeat=repeat) for one in results.answers if one.kind != FIRST.kind]
    return answers


def report(where: str, name: str, answers: Sequence[Answer], recorder: Recorder) -> None:
    """One line for each kind."""
    for kind in dict.fromkeys(answer.kind for answer in answers):
        found = ratio(answers, name, kind)
        if found is not None:
            recorder.add(
                "ratio", where=where, drafter=name, prompts=kind, ratio=found.value, low=found.low, high=found.high
            )
            print(f"{where}: {name:9} {kind:12} {found}, {found.prompts} prompts", flush=True)


def suffix(plain: Engine, where: str, arguments: argparse.Namespace, options: GenerationOptions, out: Recorder) -> None:
    """Three corpora; what a prompt's own corpus holds depends on the prompt, so each prompt is measured alone."""
    prompts = shipped_prompts(QUOTING, arguments.per_kind)
    texts = texts_of(plain, prompts, {**options, "seed": OTHER_SEED})
    size, found = plain.target.vocabulary.size, list[Answer]()
    for prompt in prompts:
        others = [text for name, text in texts.items() if name != prompt.id]
        held = {"nothing": [], "others": others, "again": [*others, texts[prompt.id]]}
        with tempfile.TemporaryDirectory() as folder:

            def make(repeat: int, held: dict[str, list[list[int]]] = held, folder: str = folder) -> dict[str, Drafter]:
                return {
                    name: SuffixDrafter(
                        given(Path(folder) / f"{name}-{repeat}", size, some) if some else None, RecyclingDrafter(size)
                    )
                    for name, some in held.items()
                }

            found += compare(plain, make, [prompt], options, arguments.repeats)
    for name in ("nothing", "others", "again"):
        report(where, name, found, out)


def recycling(
    plain: Engine, where: str, arguments: argparse.Namespace, options: GenerationOptions, out: Recorder
) -> None:
    """Alone on chat; its memory grows with the prompts, as in a program that is used, and is new in each repeat."""
    size, prompts = plain.target.vocabulary.size, shipped_prompts(("chat",), arguments.per_kind)
    answers = compare(plain, lambda _: {"recycling": RecyclingDrafter(size)}, prompts, options, arguments.repeats)
    report(where, "recycling", answers, out)


def lookup(tokens: int, recorder: Recorder) -> None:
    """Texts of 2000 tokens, as frequent as words are."""
    chance = np.random.default_rng(1)
    texts = (chance.zipf(1.3, tokens) % 49000).astype(np.uint32).reshape(-1, 2000)
    index = CorpusIndex(49152, 1 << 24)
    started = perf_counter()
    index.reserve(tokens)
    for first in range(0, len(texts), 64):
        index.add(list(texts[first : first + 64]))
    building = perf_counter() - started
    places = zip(chance.integers(0, len(texts), 20_000), chance.integers(0, 1900, 20_000), strict=True)
    known = [texts[text, place : place + 20].tolist() for text, place in places]
    unknown = (chance.zipf(1.3, (20_000, 20)) % 49000).tolist()
    for what, tails in (("of texts that are there", known), ("of others", unknown)):
        seconds = []
        for tail in tails:
            started = perf_counter()
            index.matches(tail, 16)
            seconds.append(perf_counter() - started)
        mean, middle, late = (1e6 * one for one in (fmean(seconds), median(seconds), np.quantile(seconds, 0.99)))
        recorder.add("lookup", what=what, tokens=tokens, mean=mean, median=middle, p99=float(late))
        print(f"look-ups {what} at {tokens} tokens: mean {mean:.1f} us, median {middle:.1f}, 99 % below {late:.1f}")
    print(f"index: built in {building:.2f} s, {index.memory() / tokens:.1f} bytes a token", flush=True)


def measure(target: str, arguments: argparse.Namespace, recorder: Recorder) -> None:
    """One target at all temperatures."""
    options = ModelOptions(runtime=arguments.runtime, context_length=2048)
    with Engine.load(rig_file(TARGETS[target]), speculation="off", options=options) as plain:
        for temperature in arguments.temperatures:
            given_options: GenerationOptions = {"max_tokens": arguments.tokens, "logprobs": False}
            if temperature != "file":
                given_options["temperature"] = float(temperature)
            where = f"{target}, temperature {temperature}"
            for name, part in (("suffix", suffix), ("recycling", recycling)):
                if name in arguments.parts:
                    part(plain, where, arguments, given_options, recorder)


def main() -> None:
    """Run the parts."""
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", default=["lookup", "suffix", "recycling"])
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--runtime", default="native")
    add_sizes(parser, per_kind=6, repeats=3, tokens=160)
    parser.add_argument("--temperatures", nargs="+", default=["0", "file"], help='numbers, or "file" for its own')
    parser.add_argument("--corpus-tokens", type=int, default=LOOKED_UP, help="of the look-ups' index")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    recorder = Recorder(arguments.out)
    recorder.add("machine", **machine())
    print(describe(recorder.records[0]))
    if "lookup" in arguments.parts:
        lookup(arguments.corpus_tokens, recorder)
    for target in arguments.targets if {"suffix", "recycling"} & set(arguments.parts) else ():
        measure(target, arguments, recorder)


if __name__ == "__main__":
    main()
