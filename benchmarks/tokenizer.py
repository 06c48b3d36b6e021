#!/usr/bin/env python3
"""How long a file's tokenizer takes to be there, and how fast it reads, beside llama.cpp's.

    scripts/bench tokenizer [MODEL ...]        names or files; SmolLM2 and Gemma 3 unless given

"Worked out" is the first time a vocabulary is met, "kept" every later time. Both include reading the file's header.
The text is this repository's documentation, in one piece, and in lines as a chat has them.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

from slipstream.core.protocols import Vocabulary
from slipstream.models import pull, read_header, resolve
from slipstream.runtime.native.vocabulary import BorrowedVocabulary
from slipstream.tokenizer import load_tokenizer

PAGES = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
PASSES = 5


def seconds(work: Callable[[], object], passes: int = PASSES) -> float:
    """The fastest of some passes."""
    best = float("inf")
    for _ in range(passes):
        start = perf_counter()
        work()
        best = min(best, perf_counter() - start)
    return best


def rates(vocabulary: Vocabulary, texts: list[str]) -> str:
    """Thousands of tokens a second in one piece and line by line."""

    def read(pieces: list[str]) -> int:
        return sum(len(vocabulary.tokenize(piece, add_bos=False, parse_special=True)) for piece in pieces)

    whole = ["\n".join(texts)]
    lines = whole[0].split("\n")
    return " / ".join(f"{read(pieces) / seconds(partial(read, pieces)) / 1e3:.0f}" for pieces in (whole, lines))


def report(path: Path) -> None:
    """Measure one file and print what came out."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, {"SLIPSTREAM_CACHE_DIR": cache}):
        first = seconds(lambda: load_tokenizer(read_header(path)), passes=1)
        later = seconds(lambda: load_tokenizer(read_header(path)))
    theirs = seconds(lambda: BorrowedVocabulary(read_header(path)))
    ours = load_tokenizer(read_header(path))
    print(f"{path.name}, {ours.size} tokens")
    print(f"  seconds until it is there   worked out {first:.2f}, kept {later:.2f}; llama.cpp {theirs:.2f}")
    print(f"  thousands of tokens a second, in one piece / in lines   {rates(ours, texts)}; ", end="")
    print(f"llama.cpp {rates(BorrowedVocabulary(read_header(path)), texts)}")


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    named = [resolve(name) for name in parser.parse_args().models]
    for path in named or [pull("smollm2-135m"), pull("gemma3-270m")]:
        report(path)


if __name__ == "__main__":
    main()
