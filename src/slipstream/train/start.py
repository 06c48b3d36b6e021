"""Training that begins with the weights of a head: of an earlier training, or of the one that comes with Slipstream."""

import hashlib
from collections.abc import Callable, Mapping
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.engine.heads import find_head
from slipstream.errors import ModelFileError, SlipstreamError, UnsupportedModelError, UsageError
from slipstream.models import GgufHeader
from slipstream.models.heads import DIRECT, EMBEDDING, OUTPUT, ROTARY_FACTORS, HeadFile
from slipstream.models.shipped_heads import shipped_head
from slipstream.runtime.native.loading import plan_head
from slipstream.train.head import MATRICES, VECTORS, Parameters
from slipstream.train.target import Numbers, Sizes, Weights, read_tensor
from slipstream.train.teacher import Teacher

ANEW = "begin anew with --set start=random"
GOING_ON: dict[str, Any] = {"learning_rate": 1e-3, "table_rate": 2e-4, "single_share": 0.0}
"""Of a recipe, where training begins with a head: it should keep what it knows, and guesses its own guesses already."""
LEAST_NORM = 1e-3
"""Of an output norm's numbers, beside the largest one: what is smaller cannot be divided by."""


class Start(NamedTuple):
    """A head that training begins with. digest: SHA-256 of its file."""

    head: HeadFile
    digest: str

    @property
    def recipe(self) -> str:
        """How a recipe says it."""
        return f"head:{self.digest}"

    @property
    def shape(self) -> dict[str, Any]:
        """What of a recipe is as in the head."""
        return {"layers": self.head.target_layers, "direct": self.head.has(DIRECT)}


def chosen_start(
    given: str | None,
    changes: dict[str, Any],
    header: GgufHeader,
    weights: Weights,
    say: Callable[[str], None],
) -> Start | None:
    """The head that training begins with: the given one, else the one that comes with Slipstream for the target; None
    where there is none, or the recipe's `start` says otherwise.

    given:   what names a head, as for `--draft`
    changes: of the recipe
    say:     is told where a head is taken that nobody named, or cannot be

    Raises SlipstreamError for a given one that does not fit.
    """
    if given is not None:
        if "start" in changes:
            raise UsageError("--from and --set start both say what training begins with; give one of them.")
        head = find_head(given, header, lambda done: None)
        if head is None:
            raise UsageError(f"{given} is no head; give --from the file of a head for {header.path.name}.")
        return _checked(head, weights, changes)
    if "start" in changes:
        return None
    try:
        head = shipped_head(header)
        start = None if head is None else _checked(head, weights, changes)
    except SlipstreamError as error:
        say(f"Training does not begin with the head that comes with Slipstream: {error}")
        return None
    if start is not None:
        say("Training begins with the head that comes with Slipstream; --set start=random begins anew.")
    return start


def _checked(head: HeadFile, weights: Weights, changes: Mapping[str, Any]) -> Start:
    """Raises UsageError for another shape than is asked for, UnsupportedModelError for a head of another build."""
    path, sizes, start = head.header.path, weights.sizes, Start(head, _digest(head.header.path))
    for name, theirs in start.shape.items():
        if (ours := changes.get(name, theirs)) != theirs:
            raise UsageError(
                f"{path} has {name} {_told(theirs)} and {_told(ours)} was asked for; leave --set {name} out, or {ANEW}."
            )
    for what, found, needed in _differences(head, sizes):
        if not (isclose(found, needed, rel_tol=1e-4) if isinstance(found, float) else found == needed):
            raise UnsupportedModelError(
                f"Training cannot begin with {path}: its {what} is {found} and must be {needed}; {ANEW}."
            )
    for tensor in (EMBEDDING, ROTARY_FACTORS):
        if head.has(tensor):
            raise UnsupportedModelError(f"Training cannot begin with {path}: it has a {tensor} of its own; {ANEW}.")
    return start


def _told(value: Any) -> str:
    """As `--set` has it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _differences(head: HeadFile, sizes: Sizes) -> list[tuple[str, Any, Any]]:
    """(what, the head's, that of heads that are trained here)."""
    numbers = head.header.metadata
    return [
        ("width", head.width, sizes.width),
        ("number of attention heads", head.heads, sizes.heads),
        ("number of key-value heads", head.key_value_heads, sizes.key_value_heads),
        ("head size", head.head_size, sizes.head_size),
        ("feed-forward size", head.feed_forward, sizes.feed_forward),
        ("norm_before_fc", head.norm_before_fc, True),
        ("norm_before_residual", head.norm_before_residual, False),
        ("rope.freq_base", numbers.get("eagle3.rope.freq_base", 10000.0), sizes.rotary_base),
        ("layer_norm_rms_epsilon", numbers.get("eagle3.attention.layer_norm_rms_epsilon"), sizes.epsilon),
    ]


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.") from error


def begun_with(start: Start, target: GgufHeader, weights: Weights, teacher: Teacher) -> Parameters:
    """The head's weights, with an output row for each token that can be drafted now.

    Rows of tokens that the head cannot draft are the target's, brought to the size that the head's rows have beside
    those of the target. Raises ModelFileError where its weights are not all numbers.
    """
    planned, head = plan_head(start.head, target), start.head
    names = [name for name in (*VECTORS, *MATRICES) if head.has(_tensor_name(head, name)) and name != "output"]
    own = {name: read_tensor(planned, _tensor_name(head, name)) for name in names}
    norm = weights.read(weights.decoder.output_norm.weight)
    rows = teacher.output.detach().cpu().float().numpy()
    if head.has(OUTPUT):
        drafted = np.arange(head.drafted) if head.draft_tokens is None else head.draft_tokens
        output = read_tensor(planned, OUTPUT)
        own["output"] = output_rows(output, drafted, own["output_norm"], rows, teacher.ids, norm)
    else:  # the target's own serves it
        own["output"] = rows
    if not all(np.isfinite(numbers).all() for numbers in own.values()):
        raise ModelFileError(f"Training cannot begin with {head.header.path}: its weights are not all numbers; {ANEW}.")
    return {name: torch.from_numpy(np.ascontiguousarray(numbers)).float() for name, numbers in own.items()}


def output_rows(
    output: Numbers,
    drafted: NDArray[np.int64],
    head_norm: Numbers,
    target_rows: Numbers,
    wanted: NDArray[np.int64],
    target_norm: Numbers,
) -> Numbers:
    """[wanted tokens, width]: a head's rows, and those of the target where it has none.

    output:      [drafted tokens, width] the head's rows, of the tokens `drafted`
    target_rows: [wanted tokens, width] the target's
    head_norm, target_norm: [width] what states are multiplied with before they meet these rows

    What counts is a row times its norm. The target's are multiplied with the number that fits the head's best, by least
    squares over the tokens that both have: where a head has moved far from the target, what the target says of a
    token is less to be relied on, and the factor is smaller.
    """
    limit = LEAST_NORM * np.abs(head_norm).max()
    divisor = np.where(np.abs(head_norm) < limit, np.copysign(limit, head_norm), head_norm)
    made = target_rows * (target_norm / divisor)
    place = {int(token): row for row, token in enumerate(drafted)}
    shared = np.array([place.get(int(token), -1) for token in wanted])
    known = shared >= 0
    theirs, ours = output[shared[known]] * head_norm, target_rows[known] * target_norm
    factor = float((theirs * ours).sum() / max(float((ours * ours).sum()), 1e-20))
    made *= factor if factor > 0 else 0.0
    made[known] = output[shared[known]]
    return made.astype(np.float32)


def _tensor_name(head: HeadFile, name: str) -> str:
    """What a file calls one of a head's parameters."""
    block = f"blk.0.{name}.weight"
    return block if head.has(block) else f"{name}.weight"
