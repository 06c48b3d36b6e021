"""What `--draft` says: drafters joined by plus signs."""

from pathlib import Path


def split_draft(spec: str) -> list[str]:
    """The parts of `a+b+c`; a file's or folder's path, or the beginning of a hub's name, may have plus signs in it."""
    pieces, parts = spec.split("+"), []
    while pieces:
        size = next((n for n in range(len(pieces), 1, -1) if Path("+".join(pieces[:n])).exists()), 1)
        if pieces[0].startswith("hf:"):
            size = next((n for n in range(1, len(pieces) + 1) if pieces[n - 1].endswith(".gguf")), size)
        parts.append("+".join(pieces[:size]).removeprefix("model:"))
        del pieces[:size]
    return parts
