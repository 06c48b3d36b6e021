"""What a drafter takes of memory, and what the target could have done with it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slipstream.core.protocols import Drafter, Model
from slipstream.models import GgufHeader
from slipstream.models.tensor_types import bytes_by_type, fallen_back

F16_BYTES = 2


@dataclass(frozen=True, slots=True)
class MemoryBill:
    """Bytes of a drafter. What it takes beside its model, as a tokenizer of its own, is among the buffers.

    own:            of drafters without a model: tables, an index
    formats:        of the weights, by tensor type as the files have them, most first; empty where no file is read
    fallen_back:    of these, those of matrices that could not have the type that their file is named after
    context:        tokens of the drafter's KV cache
    target_context: tokens of context that the target could hold in the same memory; None where it has no KV cache
    """

    weights: int = 0
    kv_cache: int = 0
    buffers: int = 0
    context: int = 0
    target_context: int | None = None
    own: int = 0
    formats: Mapping[str, int] = field(default_factory=dict)
    fallen_back: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.buffers + self.own

    def as_dict(self) -> dict[str, Any]:
        return {
            "weights_bytes": self.weights,
            "kv_cache_bytes": self.kv_cache,
            "buffers_bytes": self.buffers,
            "own_bytes": self.own,
            "format_bytes": dict(self.formats),
            "fallen_back_bytes": dict(self.fallen_back),
            "total_bytes": self.total,
            "context": self.context,
            "target_context_tokens": self.target_context,
        }


def kv_bytes_per_token(header: GgufHeader, number_bytes: float = F16_BYTES) -> int | None:
    """Bytes of keys and values that one token takes in all layers; None if the header does not say.

    Key-value heads may differ between layers. Layers with a sliding window count in full, as on llama.cpp, where they
    are kept in full so that tokens can be taken back.
    """
    name = header.architecture
    layers, width = header.integer(f"{name}.block_count"), header.integer(f"{name}.embedding_length")
    heads = _by_layer(header, f"{name}.attention.head_count", layers)
    kv_heads = _by_layer(header, f"{name}.attention.head_count_kv", layers) or heads
    if layers is None or width is None or not heads or not kv_heads:
        return None
    share = width // max(max(heads), 1)
    key = header.integer(f"{name}.attention.key_length") or share
    value = header.integer(f"{name}.attention.value_length") or share
    return round(sum(kv_heads) * (key + value) * number_bytes)


def kv_bytes_of(model: Model, header: GgufHeader) -> float | None:
    """Bytes of KV cache that one more token of context takes in a loaded model.

    What the model says, else its cache divided by its context, else what its header comes to.
    """
    if (stated := getattr(model, "kv_bytes_per_token", None)) is not None:
        return float(stated)
    parts = _parts(model)
    taken, length = parts.get("kv_cache", 0), model.context_length
    return taken / length if taken and length else kv_bytes_per_token(header)


def memory_bill(
    drafters: Sequence[Drafter], target_token_bytes: float | None, files: Sequence[GgufHeader] = ()
) -> MemoryBill:
    """The bill of loaded drafters; those that have no model tell what they take themselves.

    target_token_bytes: what one token of context takes in the target, for one sequence
    files:              headers of the models, for the types of their tensors
    """
    models = [drafter.model for drafter in drafters if drafter.model is not None]
    parts = [_parts(model) or {"weights": model.memory()} for model in models]
    weights, cache, buffers = (sum(one.get(name, 0) for one in parts) for name in ("weights", "kv_cache", "buffers"))
    # where layers of the target draft, all is the target's
    owned = [model for model, one in zip(models, parts, strict=True) if any(one.values())]
    own = sum(drafter.memory() for drafter in drafters if drafter.model is None)
    buffers += sum(drafter.memory() for drafter in drafters) - own - sum(model.memory() for model in models)
    held = round((weights + cache + own) / target_token_bytes) if target_token_bytes else None
    fallen: Counter[str] = Counter()
    for file in files:
        fallen.update(fallen_back(file))
    return MemoryBill(
        weights,
        cache,
        buffers,
        max((model.context_length for model in owned), default=0),
        held if models or own else 0,
        own,
        bytes_by_type(tensor for file in files for tensor in file.tensors),
        fallen,
    )


def _parts(model: Model) -> dict[str, int]:
    """Both runtimes tell the parts; a model of somebody else's tells the sum only."""
    model.memory()  # buffers may have grown
    return dict(getattr(model, "memory_parts", {}))


def _by_layer(header: GgufHeader, key: str, layers: int | None) -> list[int]:
    """One number for each layer, of a list or of one number for all; empty if there is none."""
    value = header.metadata.get(key)
    if isinstance(value, bool) or value is None or layers is None:
        return []
    if isinstance(value, int):
        return [value] * layers
    return [int(one) for one in value] if isinstance(value, np.ndarray) and len(value) == layers else []
