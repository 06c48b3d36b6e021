"""`slipstream corpus`: the texts that suffix lookup drafts from, besides the conversation itself."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.settings import CORPUS_VARIABLE, DEFAULT_MODEL, corpus_folder, usual_corpus
from slipstream.cli.terminal import Output, complain
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.corpus import Ring
    from slipstream.models import GgufHeader

corpus = typer.Typer(
    name="corpus",
    help="Show, fill or clear the texts that suffix lookup drafts from.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Place = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        help=f"The folder. Default: {CORPUS_VARIABLE}, else the one in Slipstream's cache.",
        metavar="PATH",
        show_default=False,
    ),
]
MODEL_HELP = "A model, as for `slipstream run`: a corpus belongs to a vocabulary."


@corpus.command()
def add(
    files: Annotated[list[Path], typer.Argument(help="Text files, or folders, of which all text files are read.")],
    model: Annotated[
        str, typer.Option("-m", "--model", help=f"{MODEL_HELP} Default: {DEFAULT_MODEL}.", show_default=False)
    ] = DEFAULT_MODEL,
    corpus: Place = None,
) -> None:
    """Add documents or code, so that answers that quote them are drafted from them.

    What is there already is not added again. When the corpus is full, the oldest texts go.
    """
    import numpy as np

    from slipstream.corpus import LOCAL, Record, scope_key
    from slipstream.models import read_model_header, resolve
    from slipstream.runtime.native.vocabulary import vocabulary_of

    header = read_model_header(resolve(model))
    vocabulary, _ = vocabulary_of(header)
    ring, key, output = _ring(corpus, header), scope_key(LOCAL), Output()
    known = {_content(one.tokens) for one in ring.texts(key)}
    added = 0
    for path, text in _texts(files):
        tokens = np.array(vocabulary.tokenize(text, add_bos=False, parse_special=False), np.uint32)
        parts = [part for part in ring.parts(tokens) if _content(part) not in known]
        known.update(map(_content, parts))
        ring.append([Record(key, part) for part in parts])
        count = sum(map(len, parts))
        added += count
        output.write(f"{path}: {count} tokens\n" if count else f"{path}: is there already\n")
    output.write(f"{added} tokens added to {ring.folder}\n")


@corpus.command()
def show(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help=f"{MODEL_HELP} Default: all.", show_default=False)
    ] = None,
    corpus: Place = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Say how much is kept, and where."""
    import json as json_format

    rings = _rings(corpus, model)
    found = [_described(ring) for ring in rings]
    output = Output()
    if json:
        output.write(json_format.dumps(found, indent=2) + "\n")
        return
    if not found:
        output.write(f"There is no corpus in {_place(corpus)} yet.\n")
    for one in found:
        output.write(
            f"{one['folder']}: {one['tokens']} tokens in {one['texts']} texts of {one['scopes']} "
            f"user{'s' if one['scopes'] != 1 else ''}, {one['bytes'] / 1e6:.1f} MB\n"
        )


@corpus.command()
def clear(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help=f"{MODEL_HELP} Default: all.", show_default=False)
    ] = None,
    corpus: Place = None,
) -> None:
    """Delete all texts that were kept. Programs that are running forget them with their next text."""
    output = Output()
    freed = 0
    for ring in _rings(corpus, model):
        freed += ring.clear()
    output.write(f"{freed / 1e6:.1f} MB deleted from {_place(corpus)}\n")


def _place(given: str | None) -> Path:
    """The folder. Raises UsageError for off."""
    folder = corpus_folder(given or usual_corpus())
    if folder is None:
        raise UsageError(f"The corpus is off ({CORPUS_VARIABLE} or --corpus says so); name a folder with --corpus.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"The corpus {folder} is a file; name a folder.")
    return folder


def _ring(given: str | None, header: "GgufHeader") -> "Ring":
    from slipstream.corpus import Ring, vocabulary_name
    from slipstream.models import Vocabulary

    return Ring(_place(given) / vocabulary_name(Vocabulary.from_header(header)))


def _rings(given: str | None, model: str | None) -> "list[Ring]":
    """Of one model's vocabulary, or of all that there are."""
    from slipstream.corpus import Ring
    from slipstream.models import read_model_header, resolve

    if model is not None:
        rings = [_ring(given, read_model_header(resolve(model)))]
    else:
        folder = _place(given)
        rings = [Ring(one) for one in sorted(folder.iterdir())] if folder.is_dir() else []
    return [ring for ring in rings if ring.is_there()]


def _described(ring: "Ring") -> dict[str, Any]:
    texts = ring.texts()
    for warning in ring.warnings:
        complain(warning)
    return {
        "folder": str(ring.folder),
        "texts": len(texts),
        "tokens": sum(len(one.tokens) for one in texts),
        "scopes": len({one.scope for one in texts}),
        "bytes": ring.size(),
    }


def _content(tokens: Any) -> tuple[int, int]:
    """Tells texts apart, as good as surely."""
    import zlib

    return len(tokens), zlib.crc32(tokens.astype("<u4").tobytes())


def _texts(paths: list[Path]) -> Iterator[tuple[Path, str]]:
    """Each file and what it says. Raises UsageError for one that was named and is no text."""
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist; name text files or folders.")
    for path in paths:
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for one in sorted(Path(folder) / name for name in names if not name.startswith(".")):
                    text = _read(one)
                    if text:
                        yield one, text
        else:
            text = _read(path)
            if text is None:
                raise UsageError(f"{path} is no UTF-8 text, or cannot be read; leave it out.")
            yield path, text


def _read(path: Path) -> str | None:
    """None for what is no text."""
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text
