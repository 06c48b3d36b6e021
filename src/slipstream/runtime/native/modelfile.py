"""What an architecture reads from a GGUF header: sizes, and the rotary embedding with its scalings."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream.models.gguf import GgufHeader, TensorInfo
from slipstream.runtime.native.program import Rotary

MOST = 1 << 24
"""Larger than any size in a header, and small enough that products of three fit 64 bits."""

MOST_HEAD = 1024
"""Numbers in a head; models have 64 to 256."""

FASTEST = 1e30
"""Radians per position of a rotary pair: `MOST` positions of it are still a float32."""

ROTARY_FACTORS = "rope_freqs.weight"


class NotSupported(Exception):
    """The native runtime cannot run the file; the message is a clause that says why."""


@dataclass(frozen=True)
class ModelFile:
    """A header seen through its architecture's keys. All questions raise NotSupported where the answer is no use."""

    header: GgufHeader
    tensors: dict[str, TensorInfo] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", {tensor.name: tensor for tensor in self.header.tensors})

    def has(self, tensor: str) -> bool:
        return tensor in self.tensors

    def refuse(self, key: str, reason: str) -> None:
        """Where `key` is set to anything but 0, the file is of a kind that the architecture does not describe."""
        value = self._value(key)
        if value is not None and not (isinstance(value, int | float) and value == 0):
            raise NotSupported(reason)

    def integer(self, key: str, default: int | None = None, most: int = MOST) -> int:
        """A size: a whole number from 1 to `most`."""
        value = self._value(key)
        if value is None:
            value = default  # worked out from other keys, so no better than they are
        if value is None:
            raise NotSupported(f"it does not say its {key}")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise NotSupported(f"its {key} is not one whole number in a sensible range")
        return value

    def optional_integer(self, key: str) -> int | None:
        """A size, or None where the file does not state it or states 0."""
        value = self._value(key)
        return None if value is None or (isinstance(value, int) and value == 0) else self.integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise NotSupported(f"its {key} is not a sensible number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Yes or no."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise NotSupported(f"its {key} is neither true nor false")
        return value

    def rotary(self, head_size: int, *, halves: bool = False) -> Rotary:
        """base^(-2i / size) for pair i, each divided by the factor of the file's scaling, if it has one."""
        frequencies = self._frequencies("rope.freq_base", head_size)
        with np.errstate(all="ignore"):
            frequencies /= self._linear_scaling()
            if self.has(ROTARY_FACTORS):  # Llama 3: computed by the converter, one for each pair
                frequencies /= self._vector(ROTARY_FACTORS, len(frequencies))
        return _rotary(frequencies, halves)

    def local_rotary(self, head_size: int, *, halves: bool = False) -> Rotary:
        """That of layers with a window: a base of their own, and no scaling."""
        return _rotary(self._frequencies("rope.freq_base_swa", head_size), halves)

    def _frequencies(self, base: str, head_size: int) -> NDArray[np.float64]:
        size = self.integer("rope.dimension_count", head_size)
        if size % 2:
            raise NotSupported("its rotary embedding has an odd size")
        if size > head_size:
            raise NotSupported(f"its rotary embedding of {size} numbers is larger than a head of {head_size}")
        with np.errstate(all="ignore"):
            exponents = np.arange(0, size, 2, dtype=np.float64) / size
            return np.asarray(self.number(base, 10000.0) ** -exponents)

    def _linear_scaling(self) -> float:
        """What positions are divided by, as llama.cpp reads it; not 0."""
        kind = self._value("rope.scaling.type")
        if kind is not None and not isinstance(kind, str):
            raise NotSupported("its rope.scaling.type is not a name")
        if kind not in (None, "linear", "none"):
            raise NotSupported(f"its rotary embedding is scaled by {kind!r}")
        if self._factor("rope.scaling.attn_factor", 1.0) != 1:
            raise NotSupported("it sets rope.scaling.attn_factor")
        stated = "rope.scaling.factor" if self._value("rope.scaling.factor") is not None else "rope.scale_linear"
        factor = self._factor(stated, 0.0)
        return 1.0 if factor == 0 or kind == "none" else factor

    def _factor(self, key: str, default: float) -> float:
        """A number that is stored as one with a fraction."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, float):
            raise NotSupported(f"its {key} is not a sensible number")
        return value

    def _vector(self, name: str, size: int) -> NDArray[np.float32]:
        """A small F32 tensor of `size` finite numbers above 0."""
        tensor = self.tensors[name]
        if tensor.type.name != "F32" or tensor.shape != (size,):
            raise NotSupported(f"{name} is not a vector of {size} float32 numbers")
        numbers = np.fromfile(self.header.parts[tensor.part], np.float32, size, offset=tensor.offset)
        if len(numbers) < size or not (np.isfinite(numbers) & (numbers > 0)).all():
            raise NotSupported(f"{name} holds impossible numbers")
        return numbers

    def _value(self, key: str) -> object:
        return self.header.metadata.get(f"{self.header.architecture}.{key}")


def _rotary(frequencies: NDArray[np.float64], halves: bool) -> Rotary:
    if not ((frequencies >= np.finfo(np.float32).tiny) & (frequencies <= FASTEST)).all():
        raise NotSupported("its rotary embedding has impossible frequencies")
    return Rotary(tuple(frequencies.tolist()), halves)
