"""Heads for targets: found by what `--draft` names, converted once where they are published for PyTorch, loaded."""

from collections.abc import Callable
from pathlib import Path

from slipstream.core.protocols import Drafter, Model
from slipstream.draft import HeadDrafter
from slipstream.engine.copies import made_once
from slipstream.models import GgufHeader, resolve
from slipstream.models.head_checkpoints import checkpoint_at, convert, converted_name, weight_files
from slipstream.models.heads import HeadFile, is_head, read_head

Report = Callable[[float], None]


def find_head(name: str, target: GgufHeader, report: Report) -> HeadFile | None:
    """The head that a name stands for: a GGUF file, a published checkpoint, or a file of one; None for no head.

    report: called with the fraction that is done while a checkpoint is converted
    Raises what `resolve`, reading and converting raise, and what `HeadFile.require_target` does.
    """
    path = Path(name).expanduser()
    path = path if path.exists() else resolve(name)
    folder = checkpoint_at(path)
    if folder is None and not (path.is_file() and is_head(path)):
        return None
    head = read_head(path if folder is None else converted(folder, target, report))
    head.require_target(target)
    return head


def converted(folder: Path, target: GgufHeader, report: Report) -> Path:
    """The GGUF file of a checkpoint, in Slipstream's cache; made unless it is there. Nothing half-made stays."""
    size = sum([file.stat().st_size for file in weight_files(folder)])
    return made_once(
        "heads",
        converted_name(folder, target),
        f"a converted copy of {folder.name}",
        size,
        lambda finished: convert(folder, target, finished),
        report,
    )


def load_head(
    head: HeadFile,
    source: str,
    target_file: GgufHeader,
    target: Model,
    *,
    max_sequences: int,
    threads: int | None,
    progress: Report | None,
) -> Drafter:
    """A drafter of a head, for a loaded target. Raises what `load_native_head` raises."""
    from slipstream.runtime.native.head import load_native_head

    model = load_native_head(head, target, target_file, max_sequences=max_sequences, threads=threads, progress=progress)
    return HeadDrafter(model, source=source)
