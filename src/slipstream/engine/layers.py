"""`--draft layers`: which layers of a target draft for it, and its copy with those alone for llama.cpp."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from slipstream.core.protocols import Model
from slipstream.draft import LayersDrafter
from slipstream.engine.copies import kept_copy
from slipstream.errors import UnsupportedModelError
from slipstream.models import GgufHeader, layer_profiles
from slipstream.models.layer_sets import Layers, parse_layers, spelled, without_the_middle
from slipstream.models.pruned import can_be_renumbered, check_layers, layer_count, period_of, pruned_bytes, write_pruned

KEPT = 0.5
"""Share of the layers that draft where nobody has looked for better ones."""


def drafting_layers(header: GgufHeader, argument: str, *, renumbered: bool) -> list[Layers]:
    """The subsets that draft for a target: those named, those that `slipstream layers` found, or all but the middle.

    What was found and is no copy's layers, because they would lose their places in a pattern, is passed over.

    argument:   what `spelled` gives; empty for none
    renumbered: the layers will be those of a copy, and there is but one subset

    Raises UsageError for an argument that names no subset, UnsupportedModelError for a model with too few layers or one
    of which no such copy can be made.
    """
    count = layer_count(header)
    period = period_of(header) if renumbered else 1
    if argument:
        found = [parse_layers(argument, count, header.path.name)]
    else:
        profile = layer_profiles.find(header.path, count)
        kept = () if profile is None else profile.subsets
        found = [layers for layers in kept if can_be_renumbered(layers, period)]
        found = found or [without_the_middle(count, KEPT, period)]
    if not found[0]:
        raise UnsupportedModelError(
            f"{header.path.name} has {count} layer{'' if count == 1 else 's'}, of which none can be left out; "
            "use another draft."
        )
    if not renumbered:
        return found
    check_layers(header, found[0])
    return found[:1]


def pruned_copy(header: GgufHeader, layers: Layers, report: Callable[[float], None]) -> Path:
    """The path of a copy of the target with these layers alone; makes it unless it is there. Raises StorageError."""
    kind = "layers-" + hashlib.sha256(spelled(layers).encode()).hexdigest()[:12]
    what = f"a copy of {header.path.name} with {len(layers)} of its layers"

    def write(finished: Path) -> None:
        write_pruned(header, layers, finished, report)

    return kept_copy(header, kind, what, pruned_bytes(header, layers), write, report)


def layers_drafter(source: str, layers: Layers, target: Model, header: GgufHeader) -> LayersDrafter:
    """The drafter on a loaded target. Raises UnsupportedModelError where that has no layer subsets."""
    if not target.capabilities.layer_subsets:
        raise UnsupportedModelError(
            f"{target.name} runs on {target.runtime}, which cannot leave layers out of it; choose the native runtime "
            "or another draft."
        )
    profile = layer_profiles.find(header.path, layer_count(header))
    rate = None if profile is None else profile.rate(layers)
    return LayersDrafter(target, layers, source=source, expected_rate=rate)
