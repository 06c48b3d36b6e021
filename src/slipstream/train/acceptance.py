"""How often a drafter would be right on texts that it never saw, as verification decides it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.noise import Noise
from slipstream.train.texts import Text


class Matches(NamedTuple):
    """What became of drafts at every place of one text's answer.

    chain: [places, steps] bool whether the k-th drafted token is the text's, drafted after those before it
    among: [places] bool whether the first token is among the three that the drafter likes best
    """

    kind: str
    temperature: float
    chain: NDArray[np.bool_]
    among: NDArray[np.bool_]


def noise_of(text: Text, places: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """[places, ids] Gumbel noise that chose the token at each place; zeros where the text was decoded greedily."""
    if text.temperature == 0:
        return np.zeros((len(places), len(ids)), np.float32)
    noise = Noise(text.seed)
    return np.array([noise.at(int(place)).gumbel(ids) for place in places], np.float32)


def figures(matches: Sequence[Matches]) -> dict[str, Any]:
    """Acceptance per position and the mean accepted length, for each temperature, over all kinds and by kind."""
    result: dict[str, Any] = {}
    for temperature in sorted({one.temperature for one in matches}):
        of_it = [one for one in matches if one.temperature == temperature]
        kinds = {kind: _pooled([one for one in of_it if one.kind == kind]) for kind in sorted({m.kind for m in of_it})}
        result[f"{temperature:g}"] = _pooled(of_it) | {"kinds": kinds}
    return result


def _pooled(matches: Sequence[Matches]) -> dict[str, Any]:
    chain = np.concatenate([one.chain for one in matches])
    accepted = np.logical_and.accumulate(chain, axis=1)
    reached = np.concatenate([np.ones((len(chain), 1), np.bool_), accepted[:, :-1]], axis=1)
    positions = [
        round(float(accepted[:, k].sum() / reached[:, k].sum()), 4) if reached[:, k].any() else None
        for k in range(chain.shape[1])
    ]
    return {
        "positions": positions,
        "among_three": round(float(np.concatenate([one.among for one in matches]).mean()), 4),
        "mean_accepted_length": round(1 + float(accepted.sum(axis=1).mean()), 4),
        "places": len(chain),
    }


def sentence(found: dict[str, Any]) -> str:
    """The figures on one line, for people."""
    parts = []
    for temperature, one in found.items():
        positions = " ".join("-" if rate is None else f"{rate:.2f}" for rate in one["positions"])
        parts.append(f"temperature {temperature}: {positions}, {one['mean_accepted_length']:.2f} tokens a round")
    return "held-out acceptance by position at " + "; at ".join(parts)
