"""The ways of decoding that a certificate holds against plain decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slipstream.engine import DEFAULT_NUM_DRAFT_TOKENS, Engine, ModelOptions
from slipstream.engine.loading import LoadProgress
from slipstream.measure.cases import with_drafter
from slipstream.measure.rehearsal import Rehearsal
from slipstream.policy import FixedLength

Texts = Sequence[Sequence[int]]
"""Prompt and plain answer of each case."""

SIBLINGS = 3
"""Nodes below one parent where trees are asked for."""
CONTROL, PREDICTION, REHEARSAL = "plain, again", "prediction", "rehearsal"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to decode.

    name:   for people
    open:   its engine, on the given one's target; the caller closes it
    drafts: whether it is to draft at all
    predicted: whether each case gets its plain answer, with changes, as a prediction
    """

    name: str
    open: Callable[[Engine, Texts], Engine]
    drafts: bool = True
    predicted: bool = False


@dataclass(frozen=True, slots=True)
class Drafting:
    """How the drafters of all ways are loaded, and how much they draft.

    length: at a fixed length, and the most under the measuring policy; None leaves it to the engine
    """

    length: int | None = None
    options: ModelOptions | None = None
    progress: LoadProgress | None = None

    @property
    def fixed_length(self) -> int:
        return self.length or DEFAULT_NUM_DRAFT_TOKENS


def ways(drafters: Sequence[str], drafting: Drafting, *, trees: bool) -> list[Way]:
    """Each drafter alone and all of them together: fixed chains, fixed trees where the target takes them, and what the
    measuring policy makes of them. Then drafts from a prediction.

    Before them plain decoding once more, which shows whether the runtime repeats itself. After them rehearsals, whose
    drafts are accepted and refused whatever the text is.

    drafters: as `Engine.load` takes them
    """
    together = ["+".join(drafters)] if len(drafters) > 1 else []
    shapes = [False, True] if trees else [False]
    found = [Way(CONTROL, lambda engine, _: engine.sharing(draft="none", speculation="off"), drafts=False)]
    for spec in [*drafters, *together]:
        found += [
            Way(_name(short(spec), drafting.fixed_length, tree), partial(_fixed, spec, drafting, tree))
            for tree in shapes
        ]
        found.append(Way(f"{short(spec)}, auto", partial(_auto, spec, drafting)))
    found.append(
        Way(
            _name(PREDICTION, drafting.fixed_length, tree=False),
            partial(_fixed, "none", drafting, False),
            predicted=True,
        )
    )
    return found + [rehearsal_way(drafting.fixed_length, tree) for tree in shapes]


def rehearsal_way(length: int, tree: bool) -> Way:
    """Drafts of the plain answer itself, with mistakes."""
    return Way(_name(REHEARSAL, length, tree), partial(_rehearsing, length, tree))


def short(spec: str) -> str:
    """A drafter's name without folders."""
    return "+".join(Path(part).name if part else part for part in spec.split("+"))


def _name(drafter: str, length: int, tree: bool) -> str:
    return f"{drafter}, {'trees' if tree else 'chains'} of {length}"


def _fixed(spec: str, drafting: Drafting, tree: bool, engine: Engine, _: Texts) -> Engine:
    sharing = engine.sharing(draft=spec, speculation="on", options=drafting.options, progress=drafting.progress)
    sharing.policy = FixedLength(drafting.fixed_length, SIBLINGS if tree else 1)
    return sharing


def _auto(spec: str, drafting: Drafting, engine: Engine, _: Texts) -> Engine:
    return engine.sharing(
        draft=spec,
        speculation="auto",
        num_draft_tokens=drafting.length,
        options=drafting.options,
        progress=drafting.progress,
    )


def _rehearsing(length: int, tree: bool, engine: Engine, texts: Texts) -> Engine:
    nodes = 2 * length if tree else length
    return with_drafter(engine, Rehearsal(texts, length, trees=tree), nodes)
