"""`slipstream models --explain MODEL`: what runs a model here and why, what it takes, and how fast it can be."""

import sys
import textwrap
from typing import TYPE_CHECKING, Any

from slipstream.cli import terminal
from slipstream.cli.terminal import BOLD, Output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.measure.explanation import Explanation, LowBitCopy

LABEL = 14
"""Columns of the names of facts."""
NARROW = 60
"""Below so many columns texts stand under their names."""


def explain_model(model: str, ctx: int | None, runtime: Any, *, json: bool) -> None:
    """Print what a model on this machine comes to. Raises what finding and reading it raises."""
    from slipstream.measure.explanation import explain
    from slipstream.models import read_model_header, resolve
    from slipstream.runtime import LoadOptions

    found = explain(read_model_header(resolve(model)), LoadOptions(runtime=runtime, context_length=ctx))
    output = Output()
    if json:
        from slipstream.cli.figures import to_json

        output.write(to_json(found.as_dict()))
    elif not sys.stdout.isatty():
        output.write("".join(f"{name}\t{text}\n" for name, text in _facts(found)))
    else:
        columns = terminal.width(sys.stdout)
        for name, text in _facts(found):
            output.write(f"{name:{LABEL}}" if columns >= NARROW else f"{name}\n", BOLD)
            output.write(_wrapped(text, columns) + "\n")


def _facts(found: "Explanation") -> list[tuple[str, str]]:
    """(name, text) on one line each."""
    sizes = ", ".join(
        f"{name} {size}" if name in ("width", "vocabulary") else f"{size} {name}" for name, size in found.sizes.items()
    )
    facts = [
        ("model", found.name),
        ("architecture", f"{found.architecture or 'not stated'}: {sizes}"),
        ("formats", _formats(found.formats, found.fallen_back)),
        ("runtime", f"{found.runtime}. {found.reason}"),
        ("computes on", found.computes_on),
        ("memory", _memory(found)),
        ("speed", _speed(found)),
    ]
    if found.head:
        facts.append(("head", f"the one that comes with Slipstream drafts for it and takes {_bytes(found.head)} more"))
    if found.copies:
        facts.append(("low-bit copy", _copies(found.copies)))
    return [(name, " ".join(terminal.printable(text).split())) for name, text in facts]


def _formats(formats: "Mapping[str, int]", fallen_back: "Mapping[str, int]") -> str:
    """Bytes by type, and which of them are not what was wanted."""
    text = ", ".join(f"{name} {_bytes(count)}" for name, count in formats.items())
    if fallen_back:
        fallen = " and ".join(f"{_bytes(count)} of {name}" for name, count in fallen_back.items())
        text += f"; {fallen} because rows of these matrices are no whole blocks of the file's type"
    return text


def _copies(copies: "Sequence[LowBitCopy]") -> str:
    """What `--draft lowbit` drafts with."""
    texts = []
    for one in copies:
        verb = "has" if one.made else "would have"
        whole = _bytes(sum(one.formats.values()))
        texts.append(f"--draft lowbit:{one.type} {verb} {whole} ({_formats(one.formats, one.fallen_back)})")
    return "; ".join(texts) + ". Types of copies that llama.cpp makes are known when they are made"


def _memory(found: "Explanation") -> str:
    parts = {"weights": found.weights, "KV cache": found.kv_cache, "buffers": found.buffers}
    known = {name: size for name, size in parts.items() if size is not None}
    text = f"{_bytes(sum(known.values()))} with a context of {found.context} tokens ("
    text += ", ".join(f"{name} {_bytes(size)}" for name, size in known.items()) + ")"
    if unknown := [name for name, size in parts.items() if size is None]:
        text += f", and {' and '.join(unknown)}"
    return text + (f"; {_bytes(found.free)} are free" if found.free is not None else "")


def _speed(found: "Explanation") -> str:
    first, last = found.first_rate, found.last_rate
    if found.read_rate is None or first is None or last is None:
        return "not to be told beforehand; `slipstream bench` measures it"
    return (
        f"at most {first:.3g} tok/s of plain decoding, {last:.3g} behind {found.context} tokens: a token reads "
        f"{_bytes(found.read)} of weights, and this machine reads {_bytes(found.read_rate)} a second. Drafts share "
        "a reading among several tokens; `slipstream advise` measures what they bring"
    )


def _bytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def _wrapped(text: str, columns: int) -> str:
    indent = LABEL if columns >= NARROW else 2
    lines = textwrap.wrap(text, max(columns - indent, 20), break_long_words=True, break_on_hyphens=False)
    return ("" if indent == LABEL else "  ") + f"\n{' ' * indent}".join(lines)
