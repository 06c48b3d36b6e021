#!/usr/bin/env python3
"""Whether the native runtime computes what llama.cpp computes: logits of both on the same files and text.

    scripts/bench agreement [FILE ...] [--tokens 20000] [--out records.jsonl]
    scripts/bench agreement --report records.jsonl

The text is Python's own help on its statements and types (`pydoc_data.topics`), cut into windows that each begin with
an empty cache. For every position: what both expect next, how surprised they are by what comes, and the divergence of
Kullback and Leibler, KL(llama.cpp || native).

Two more comparisons say what to make of that. llama.cpp is held against itself, computing fewer rows at once: that is
how far its own results move. And both are held against llama.cpp with the values of the file's weights in F32, where
activations are not rounded to 8 bits: that is how far either is from what the file says.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.records import Record, Recorder, Target, describe, machine, markdown, read_records, target_table
from benchmarks.rig import EXACT, SMALL_FILES, rig_file
from benchmarks.worker import load_model
from slipstream.core.protocols import Model, Segment
from slipstream.errors import SlipstreamError

OURS, THEIRS, THEIRS_AGAIN, EXACTLY = "native", "llama.cpp", "llama.cpp, fewer rows at once", "weights in F32"
COMPARISONS = ((OURS, THEIRS), (THEIRS_AGAIN, THEIRS), (OURS, EXACTLY), (THEIRS, EXACTLY))
ROWS, FEWER_ROWS = 256, 8

Logits = npt.NDArray[np.float32]


class Comparison(NamedTuple):
    """Sums over some positions, and the largest difference of a logit.

    surprise, reference_surprise: of the `tokens` that come, in nats; nothing comes after a window's last position
    agreed: positions where both have the same most likely token
    """

    positions: int
    tokens: int
    surprise: float
    reference_surprise: float
    agreed: int
    divergence: float
    largest: float


def text_tokens(model: Model, count: int) -> list[int]:
    """The first `count` tokens of the help texts. Raises SlipstreamError if there are not as many."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    tokens = model.vocabulary.tokenize(text, add_bos=False, parse_special=False)
    if len(tokens) < count:
        raise SlipstreamError(f"the text has {len(tokens)} tokens and {count} were asked for; ask for fewer.")
    return tokens[:count]


def windows(tokens: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Consecutive pieces; a last piece of one token would have nothing to predict."""
    for start in range(0, len(tokens) - 1, length):
        yield tokens[start : start + length]


def all_logits(model: Model, window: Sequence[int], rows: int) -> Logits:
    """[len(window), vocabulary] logits after each token of the window, `rows` computed at once."""
    logits = np.empty((len(window), model.vocabulary.size), np.float32)
    session = model.open_session()
    for start in range(0, len(window), rows):
        chunk = window[start : start + rows]
        [computed] = model.forward([Segment(session, chunk)])
        for row in range(len(chunk)):
            logits[start + row] = computed.logits(row)
        session.commit(range(len(chunk)))
    session.close()
    return logits


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Rows of log-probabilities."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def compare(reference: Logits, other: Logits, following: Sequence[int]) -> Comparison:
    """Two runs over the same rows; `following` are the tokens that come after them, the last row's may be missing."""
    one, two = log_softmax(reference), log_softmax(other)
    known = np.arange(len(following)), np.asarray(following, np.int64)
    return Comparison(
        positions=len(reference),
        tokens=len(following),
        surprise=-float(two[known].sum()),
        reference_surprise=-float(one[known].sum()),
        agreed=int((reference.argmax(axis=-1) == other.argmax(axis=-1)).sum()),
        divergence=float((np.exp(one) * (one - two)).sum()),
        largest=float(np.abs(reference - other).max()),
    )


def measure(recorder: Recorder, files: Iterable[str], count: int, length: int, threads: int | None) -> None:
    """Every window of the text on every file."""
    recorder.add("machine", **machine(threads))
    for file in files:
        print(f"{file}: {count} tokens", flush=True)
        options: dict[str, Any] = {"context_length": length + ROWS, "max_sequences": 1, "threads": threads}
        theirs, ours = (load_model(runtime, rig_file(file), **options) for runtime in ("llamacpp", "native"))
        exact = load_model("llamacpp", rig_file(file + EXACT), **options)
        for window in windows(text_tokens(theirs, count), length):
            expected, computed = all_logits(theirs, window, ROWS), all_logits(ours, window, ROWS)
            again, exactly = all_logits(theirs, window, FEWER_ROWS), all_logits(exact, window, ROWS)
            runs = {OURS: computed, THEIRS: expected, THEIRS_AGAIN: again, EXACTLY: exactly}
            for name, reference in COMPARISONS:
                label = {"file": file, "name": name, "reference": reference}
                add_comparison(recorder, label, runs[reference], runs[name], window)
        for model in (theirs, ours, exact):
            model.close()


def add_comparison(recorder: Recorder, label: Record, reference: Logits, other: Logits, window: Sequence[int]) -> None:
    """Records of one window, in parts: float64 copies of all of it would take a gigabyte."""
    for at in range(0, len(window), ROWS):
        compared = compare(reference[at : at + ROWS], other[at : at + ROWS], window[at + 1 : at + ROWS + 1])
        recorder.add("part", **label, **compared._asdict())


# --- reading the records -------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """One run against its reference over the whole text."""

    perplexity: float
    reference_perplexity: float
    agreement: float
    divergence: float
    largest: float

    @property
    def perplexity_difference(self) -> float:
        """Relative, without sign."""
        return abs(self.perplexity / self.reference_perplexity - 1)


class Results:
    """Figures out of the records."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records

    def figures(self, file: str, name: str = OURS, reference: str = THEIRS) -> Figures | None:
        """None for what was not measured."""
        wanted = {"kind": "part", "file": file, "name": name, "reference": reference}.items()
        found = [record for record in self.records if wanted <= record.items()]
        if not found:
            return None
        positions, tokens = (sum(record[key] for record in found) for key in ("positions", "tokens"))
        return Figures(
            perplexity=float(np.exp(sum(record["surprise"] for record in found) / tokens)),
            reference_perplexity=float(np.exp(sum(record["reference_surprise"] for record in found) / tokens)),
            agreement=sum(record["agreed"] for record in found) / positions,
            divergence=sum(record["divergence"] for record in found) / positions,
            largest=max(record["largest"] for record in found),
        )


def target(file: str, text: str, sense: Any, limit: float, figure: str) -> Target[Results]:
    """A limit for one figure of ours."""
    return Target(f"{file}: {text}", sense, limit, lambda results: getattr(results.figures(file), figure, None))


def targets(file: str) -> list[Target[Results]]:
    """What the issue asks of a file of this type."""
    four_bits = file.endswith(("Q4_0", "Q4_1"))
    always = [
        target(file, "perplexity, relative difference", "<=", 0.003, "perplexity_difference"),
        target(file, "same most likely token", ">=", 0.98 if four_bits else 0.995, "agreement"),
    ]
    return [*always, target(file, "mean KL", "<=", 1e-3, "divergence")] if four_bits else always


def report(records: Sequence[Record]) -> list[str]:
    """All tables, Markdown lines."""
    results = Results(records)
    lines = [describe(record) for record in records if record["kind"] == "machine"]
    files = list(dict.fromkeys(record["file"] for record in records if record["kind"] == "part"))
    lines += ["", *figures_table(results, files), "", "## Targets", ""]
    return lines + target_table([target for file in files for target in targets(file)], results)


def figures_table(results: Results, files: Iterable[str]) -> list[str]:
    """Ours against llama.cpp and what helps to judge it."""
    figures = (
        "perplexity",
        "of the other",
        "difference",
        "same most likely token",
        "mean KL, nats",
        "largest logit gap",
    )
    rows = []
    for file in files:
        for name, reference in COMPARISONS:
            if (found := results.figures(file, name, reference)) is not None:
                perplexities = f"{found.perplexity:.4f}", f"{found.reference_perplexity:.4f}"
                rest = f"{found.agreement:.2%}", f"{found.divergence:.2e}", f"{found.largest:.2f}"
                rows.append((file, name, reference, *perplexities, f"{found.perplexity_difference:.3%}", *rest))
    return markdown(("file", "", "against", *figures), rows)


def main() -> None:
    """Measure and report, or report what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"{', '.join(SMALL_FILES)}; all without any")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=1000, help="tokens before the cache is emptied")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="write the raw records here")
    parser.add_argument("--report", type=Path, metavar="RECORDS", help="print the tables of an earlier run instead")
    options = parser.parse_args()
    if unknown := set(options.files) - set(SMALL_FILES):
        parser.error(f"unknown file {', '.join(unknown)}; there are {', '.join(SMALL_FILES)}")
    if options.report:
        print("\n".join(report(read_records(options.report))))
        return
    recorder = Recorder(options.out)
    try:
        measure(recorder, options.files or SMALL_FILES, options.tokens, options.window, options.threads)
    except SlipstreamError as error:
        sys.exit(f"agreement.py: {error}")
    print("\n".join(report(recorder.records)))


if __name__ == "__main__":
    main()
