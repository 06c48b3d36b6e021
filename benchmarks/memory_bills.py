#!/usr/bin/env python3
"""Memory bills of drafters, as `slipstream advise` prints them, beside what a process that loads them grows by.

    scripts/bench memory_bills [--drafters lowbit ...] [--context 2048] [--runtime native] [--out FILE]
    scripts/bench memory_bills --target FILE --draft SPEC [SPEC ...]

Each drafter has a process of its own. In it plain decoding first fills the target's context; then the drafter is loaded
beside the same target, which is when the bill is made, and drafts behind as long a text, so that its caches are in use
to the end: where its tokens are others, behind a text that fills the smaller of both contexts. What is in memory more
than before is its growth (of mapped files what is used: see `drop_files`). Both should agree within 10 %, or within
4 MB where both are small: interpreter and allocator keep as much for themselves. Heads draft on the
native runtime only.
"""

import argparse
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.heads import random_head
from benchmarks.records import ROOT, Recorder, describe, machine, markdown
from benchmarks.rig import FETCHED, MAKERS, rig_file
from slipstream import Engine, GenerationOptions, ModelOptions
from slipstream.core.protocols import Vocabulary as Tokens
from slipstream.corpus import LOCAL, Record, Ring, scope_key, vocabulary_name
from slipstream.engine.loading import plan_draft
from slipstream.errors import ModelFileError, VocabularyMismatchError
from slipstream.measure.memory_bill import kv_bytes_of, memory_bill
from slipstream.models import GgufHeader, Vocabulary, compare, read_model_header
from slipstream.runtime.native.vocabulary import vocabulary_of

WITHIN, SMALL = 0.10, 4_000_000
LIBRARY = ctypes.CDLL(None)
DONT_NEED = 4
"""`MADV_DONTNEED`."""
ANSWER = 48
"""Tokens that are generated behind the prompt; with them the context is full."""
CORPUS_TOKENS = 1 << 21
HEAD_TOKENS = 8192
"""That a random head drafts."""


@dataclass(frozen=True)
class Case:
    """A drafter on a target.

    target:    a file, or a name of the rig
    draft:     as in `--draft`; {NAME} is a file of the rig, {head} a head of the target's sizes with random weights
    predicted: whether the text has a prediction
    corpus:    tokens of a corpus, of random texts
    """

    target: str
    draft: str
    predicted: bool = False
    corpus: int = 0


CASES = {
    "lowbit": Case("wide F16", "lowbit"),
    "draft model": Case("wide Q4_0", "{SmolLM2-135M Q4_0}"),
    "suffix": Case("wide Q4_0", "suffix"),
    "recycling": Case("wide Q4_0", "recycling"),
    "layers": Case("wide Q4_0", "layers"),
    "head": Case("wide Q4_0", "{head}"),
    "corpus": Case("wide Q4_0", "suffix", corpus=CORPUS_TOKENS),
    "another vocabulary": Case("wide Q4_0", "{Gemma 3 270M Q4_K_M}"),
    "prediction": Case("wide Q4_0", "none", predicted=True),
}
"""One line for each drafter that has a name, and for what drafts without one."""


@dataclass(frozen=True)
class Found:
    """Bytes, but for `drafted`, which is in tokens. bill: with its parts; growth: of what the process has in memory."""

    bill: dict[str, Any]
    growth: int
    drafted: int

    @property
    def stated(self) -> int:
        return int(self.bill["total_bytes"])

    @property
    def agrees(self) -> bool:
        return abs(self.growth - self.stated) <= max(WITHIN * self.growth, SMALL)


def measured(case: Case, context: int, runtime: str) -> Found:
    """A case in a process of its own. Raises CalledProcessError where that fails."""
    target = _file(case.target)
    header = read_model_header(target)
    here = [name for name in (*FETCHED, *MAKERS) if f"{{{name}}}" in case.draft]
    files = {name: rig_file(name) for name in here}
    with TemporaryDirectory() as folder:
        if "{head}" in case.draft:
            files["head"] = Path(folder) / "random.gguf"
            random_head(files["head"], header, min(HEAD_TOKENS, len(Vocabulary.from_header(header))))
        if case.corpus:
            write_corpus(Path(folder), header, case.corpus)
        draft = case.draft.format_map(files)
        plans = plan_draft(draft, header, ModelOptions())  # what is made once must not count as growth
        task = {
            "target": str(target), "draft": draft, "predicted": case.predicted, "context": context, "runtime": runtime,
            "corpus": folder if case.corpus else None,
            "length": prompt_length(header, [plan.model for plan in plans if plan.model is not None], context),
        }  # fmt: skip
        found = Found(**_in_a_process(task))
        has_model = any(plan.model is not None for plan in plans)
        assert found.drafted or not has_model, f"{draft} did not draft: its memory is not in use"
        return found


def _in_a_process(task: dict[str, Any]) -> dict[str, Any]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "benchmarks.memory_bills", "--worker", json.dumps(task)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_corpus(folder: Path, target: GgufHeader, tokens: int) -> None:
    """A corpus of random texts for this target."""
    vocabulary, chance = Vocabulary.from_header(target), np.random.default_rng(3)
    texts = chance.integers(0, len(vocabulary), (max(tokens >> 15, 1), 1 << 15)).astype(np.uint32)
    ring = Ring(folder / vocabulary_name(vocabulary))
    ring.append([Record(scope_key(LOCAL), text) for text in texts])


def prompt_length(target: GgufHeader, models: list[GgufHeader], context: int) -> int:
    """Tokens of the prompt, so that prompt and answer fill the context of the target, or of a draft model to whom the
    same text is more tokens: a text that is too long for it would leave its memory unused."""
    length = context - ANSWER
    for model in models:
        if _has_other_tokens(target, model):
            reader, (vocabulary, _) = vocabulary_of(target)[0], vocabulary_of(model)
            prompt = random_prompt(reader.size, context)
            most = context - 2 * ANSWER  # the answer, too, may be more tokens
            while len(vocabulary.tokenize(_text(reader, prompt[:length]), add_bos=True, parse_special=False)) > most:
                length -= 1
    return length


def _text(reader: Tokens, tokens: list[int]) -> str:
    return b"".join(map(reader.token_bytes, tokens)).decode(errors="replace")


def _has_other_tokens(target: GgufHeader, model: GgufHeader) -> bool:
    try:
        compare(Vocabulary.from_header(target), Vocabulary.from_header(model))
    except VocabularyMismatchError:
        return True
    except ModelFileError:  # a head has none of its own
        return False
    return False


def random_prompt(vocabulary_size: int, length: int) -> list[int]:
    """Always the same ids; a shorter one is the beginning of a longer one."""
    ids = random.Random(0)
    return [ids.randrange(vocabulary_size) for _ in range(length)]


def _file(name: str) -> Path:
    return rig_file(name) if name in (*FETCHED, *MAKERS) else Path(name)


def work(
    target: str, draft: str, predicted: bool, context: int, runtime: Any, length: int, corpus: str | None
) -> dict[str, Any]:
    """What the process of a case does."""
    options = ModelOptions(
        runtime=runtime, draft_runtime=runtime, context_length=context, corpus=Path(corpus) if corpus else None
    )
    with Engine.load(target, speculation="off", options=options) as plain:
        prompt = random_prompt(plain.target.vocabulary.size, length)
        banned = dict.fromkeys(plain.target.vocabulary.end_tokens, float("-inf"))
        sampling: GenerationOptions = {"seed": 1, "max_tokens": ANSWER, "logit_bias": banned, "logprobs": False}
        plain.generate(prompt, **sampling)
        drop_files()
        first = plain.generate(prompt, **sampling)
        before = taken()
        with plain.sharing(draft=draft, speculation="on", num_draft_tokens=8, options=options) as engine:
            kv_bytes = kv_bytes_of(plain.target, read_model_header(target))
            bill = memory_bill(engine.drafters, kv_bytes, engine.draft_files)
            drop_files()
            sampling["prediction"] = first.tokens if predicted else None
            again = engine.generate(prompt, **sampling)
            assert again.tokens == first.tokens or not plain.target.capabilities.bit_exact_rows
            growth = taken() - before
    return {"bill": bill.as_dict(), "growth": growth, "drafted": again.statistics.drafted}


def taken() -> int:
    """Bytes of this process that are in memory, without what its allocator could give back."""
    gc.collect()
    LIBRARY.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drop_files() -> None:
    """Unload the pages of mapped model files; those that are used come back by themselves.

    llama.cpp keeps the file mapped from which it has repacked matrices. Nobody reads it again, and the system takes
    such pages back when it needs memory.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(".gguf"):
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            LIBRARY.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), DONT_NEED)


def main() -> None:
    """Measure and compare; exit code 1 where a bill is off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafters", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--target", help="a file or a name of the rig, with --draft")
    parser.add_argument("--draft", nargs="+", default=[], help="specifications as for slipstream run")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--runtime", choices=("native", "llamacpp"), default="native")
    parser.add_argument("--out", type=Path, help="keep raw records in this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(work(**json.loads(arguments.worker))))
        return
    if bool(arguments.target) != bool(arguments.draft):
        parser.error("--target and --draft belong together")
    cases = {name: CASES[name] for name in arguments.drafters if arguments.runtime == "native" or name != "head"}
    if arguments.target:
        cases = {spec: Case(arguments.target, spec) for spec in arguments.draft}
    recorder = Recorder(arguments.out)
    recorder.add("machine", **machine())
    print(describe(recorder.records[0]))
    rows, off = [], []
    for name, case in cases.items():
        found = measured(case, arguments.context, arguments.runtime)
        recorder.add(
            "bill", drafter=name, target=case.target, growth=found.growth, bill=found.bill,
            drafted=found.drafted,
        )  # fmt: skip
        rows.append((name, case.target, *_cells(found)))
        if not found.agrees:
            off.append(name)
    heads = ("drafter", "target", "bill, MB", "growth, MB", "difference", "drafted", "parts of the bill")
    print("\n".join(markdown(heads, rows)))
    sys.exit(f"memory_bills.py: off by more than 10 %: {', '.join(off)}" if off else 0)


def _cells(found: Found) -> tuple[str, ...]:
    parts = {name: found.bill[f"{name}_bytes"] for name in ("weights", "kv_cache", "buffers", "own")}
    apart = (found.stated - found.growth) / max(found.growth, 1)
    return (
        f"{found.stated / 1e6:.1f}",
        f"{found.growth / 1e6:.1f}",
        f"{apart:+.1%}" if found.growth > SMALL else "both small" if found.agrees else "-",
        str(found.drafted),
        ", ".join(f"{name} {size / 1e6:.1f}" for name, size in parts.items() if size) or "-",
    )


if __name__ == "__main__":
    main()
