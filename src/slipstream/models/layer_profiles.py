"""Which layers of a model draft best for it: what `slipstream layers` found, kept in Slipstream's cache.

One JSON file for each model, which is known by its bytes. What is damaged counts as absent: a search can be repeated.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import ModelFileError, StorageError
from slipstream.models.fingerprint import fingerprint
from slipstream.models.layer_sets import Layers
from slipstream.models.paths import cache_directory
from slipstream.models.storage import publish, staging, storage_errors

FORMAT = 1
MOST_SUBSETS = 3
"""That are kept of one model: the policy chooses among them while it drafts."""


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """What was found for one model.

    count:    its layers
    subsets:  nested sets of layers, the most promising first
    speedups: what was predicted for each of them
    date:     when, ISO 8601, UTC
    rates:    of each of them, P(a token that it drafts is right); none in profiles of earlier versions
    """

    target: str
    count: int
    subsets: tuple[Layers, ...]
    speedups: tuple[float, ...] = ()
    date: str = ""
    rates: tuple[float, ...] = ()

    def rate(self, layers: Layers) -> float | None:
        """How often a subset is right, None where that is not known."""
        return dict(zip(self.subsets, self.rates, strict=False)).get(layers)

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "count": self.count,
            "subsets": [list(layers) for layers in self.subsets],
            "speedups": list(self.speedups),
            "date": self.date,
            "rates": list(self.rates),
        }


def profile_path(model: Path) -> Path:
    """Where the profile of a model lies. May not exist yet. Raises ModelFileError if the model cannot be read."""
    return cache_directory() / "layers" / f"{fingerprint(model)}.json"


def find(model: Path, count: int) -> LayerProfile | None:
    """The profile of a model of so many layers, None if it has none that can be used."""
    try:
        given = json.loads(profile_path(model).read_text(encoding="utf-8"))
        return _read(given, count)
    except (OSError, ModelFileError, ValueError, KeyError, TypeError, RecursionError):
        return None


def save(model: Path, profile: LayerProfile) -> Path:
    """Keep a profile in place of an earlier one; returns its path. Raises StorageError."""
    path = profile_path(model)
    write_json(path, {"format": FORMAT, **profile.as_dict()})
    return path


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file of which readers see all or nothing, whatever happens meanwhile. Raises StorageError."""
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with staging(path.parent, path.stem) as place:
            (place / "whole").write_text(json.dumps(value), encoding="utf-8")
            publish(place / "whole", path)


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote; {} where there is nothing of that kind. Raises StorageError if it cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read(given: Any, count: int) -> LayerProfile:
    """Raises ValueError, KeyError or TypeError for what is no profile of such a model."""
    subsets = tuple(_layers(one, count) for one in given["subsets"][:MOST_SUBSETS])
    if given["format"] != FORMAT or given["count"] != count or not subsets:
        raise ValueError("another format or another model")
    speedups = tuple(float(one) for one in given["speedups"])
    rates = tuple(float(one) for one in given.get("rates", ()))
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError("no rate")
    return LayerProfile(str(given["target"]), count, subsets, speedups, str(given["date"]), rates)


def _layers(given: Sequence[int], count: int) -> Layers:
    layers = tuple(int(layer) for layer in given)
    if list(layers) != sorted(set(layers)) or not layers or len(layers) >= count or not 0 <= layers[0] < layers[-1] + 1:
        raise ValueError("no subset of the layers")
    if layers[-1] >= count:
        raise ValueError("a layer that the model lacks")
    return layers
