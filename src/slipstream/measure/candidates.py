"""Who might draft for a target: what the user names, or suffix lookup and the models of this machine that fit.

Only headers are read here; whether a candidate loads, fits memory and can take tokens back is seen when it is loaded.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from slipstream.engine import ModelOptions
from slipstream.engine.heads import find_head
from slipstream.engine.loading import AUTO, HEAD, NAMED, default_draft, planner_of, usable_head
from slipstream.errors import ModelFileError, SlipstreamError, UsageError, VocabularyMismatchError
from slipstream.models import FoundModel, GgufHeader, Vocabulary, compare, list_models, read_model_header, resolve
from slipstream.models.families import Suggestion, family_of, parameters, small_siblings
from slipstream.models.vocabulary import ADVICE

LARGEST_SHARE = 0.6
"""Found models with more than this share of the target's bytes are left out: they cost too much to draft with."""
GOOD_SHARE = 0.1
"""Share of the target's bytes at which draft models usually do best; what is closest to it is measured first."""
MOST_FOUND = 4
"""Found models that are measured; more would take the user's time for little."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter to be measured.

    name:   for people
    draft:  what `Engine.load` and `--draft` take; files by their full path
    header: of the (first) draft model, None without one
    """

    name: str
    draft: str
    header: GgufHeader | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A candidate that is not measured, and why: the end of "NAME: ..."."""

    name: str
    reason: str


@dataclass(slots=True)
class Candidates:
    """What is measured, what is not, and what might be worth fetching."""

    chosen: list[Candidate] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    suggestions: list[Suggestion] = field(default_factory=list)


def named_candidates(specs: Iterable[str], target: GgufHeader, options: ModelOptions | None = None) -> Candidates:
    """What the user asked for: named drafters, files, models, or several joined by plus signs. UsageError: "none".

    One that does not exist or does not fit is left out with its reason; the others are measured.
    options: how the target is loaded
    """
    candidates = Candidates()
    default = partial(default_draft, target, options or ModelOptions())
    for spec in dict.fromkeys(default() if spec.strip() == AUTO else spec.strip() for spec in specs):
        if spec in ("", "none", "off"):
            raise UsageError(
                f"--candidates must be {', '.join(NAMED)}, a model, a head's file or suffix+MODEL; "
                "plain decoding is always measured beside them."
            )
        try:
            candidates.chosen.append(_named(spec, target))
        except SlipstreamError as error:
            candidates.left_out.append(LeftOut(spec, _reason(error)))
    return candidates


def found_candidates(
    target: GgufHeader, models: Sequence[FoundModel] | None = None, options: ModelOptions | None = None
) -> Candidates:
    """Suffix lookup, with the head that comes with Slipstream for the target, too, and models in the caches of this
    machine that can draft for it, the best guess first.

    models:  None looks for them
    options: how the target is loaded
    """
    candidates = Candidates([Candidate("suffix", "suffix")])
    _add_shipped_head(candidates, target, options or ModelOptions())
    fitting: list[Candidate] = []
    for model in _distinct(list_models() if models is None else models, target):
        candidate = _found(model, target)
        if isinstance(candidate, Candidate):
            fitting.append(candidate)
        else:
            candidates.left_out.append(candidate)
    fitting.sort(key=lambda candidate: _guess(candidate, target))
    kept = _fastest_of_each(fitting, candidates.left_out)
    candidates.chosen += kept[:MOST_FOUND]
    candidates.left_out += [
        LeftOut(candidate.name, "others look better; name it with --candidates to have it measured")
        for candidate in kept[MOST_FOUND:]
    ]
    candidates.suggestions = _lacking(small_siblings(target), fitting)
    return candidates


def _add_shipped_head(candidates: Candidates, target: GgufHeader, options: ModelOptions) -> None:
    try:
        head = usable_head(target, options)
    except SlipstreamError as error:
        candidates.left_out.append(LeftOut(HEAD, _reason(error)))
        return
    if head is not None:
        both = f"suffix+{HEAD}"
        candidates.chosen.append(Candidate(both, both, head.header))


def _named(spec: str, target: GgufHeader) -> Candidate:
    """A file is a file, whatever its name; else plus signs join several drafters."""
    parts = [spec] if Path(spec).exists() else spec.split("+")
    headers = {part: _header_of(part, target) for part in parts if planner_of(part) is None}
    paths = {part: str(header.path.absolute()) for part, header in headers.items()}
    return Candidate(spec, "+".join(paths.get(part, part) for part in parts), next(iter(headers.values()), None))


def _header_of(name: str, target: GgufHeader) -> GgufHeader:
    """The header of a head for the target, or of a draft model, whatever its vocabulary."""
    if (head := find_head(name, target, lambda done: None)) is not None:
        return head.header
    header = read_model_header(resolve(name))
    Vocabulary.from_header(header)
    return header


def _found(model: FoundModel, target: GgufHeader) -> Candidate | LeftOut:
    if model.problem is not None:
        return LeftOut(model.name, model.problem)
    try:
        header = read_model_header(model.path)
        compare(Vocabulary.from_header(target), Vocabulary.from_header(header))
    except VocabularyMismatchError as error:
        return LeftOut(model.name, f"{_reason(error)[:-1]}; name it with --candidates to have it measured.")
    except ModelFileError as error:
        return LeftOut(model.name, str(error))
    share = header.tensor_bytes / max(target.tensor_bytes, 1)
    if share > LARGEST_SHARE:
        return LeftOut(model.name, f"too large to draft: its weights are {share:.0%} of the target's")
    return Candidate(model.name, str(model.path.absolute()), header)


def _distinct(models: Iterable[FoundModel], target: GgufHeader) -> list[FoundModel]:
    """One for each file, however many names and links lead to it; the target itself is none."""
    seen = {target.path.resolve()}
    distinct = []
    for model in models:
        place = model.path.resolve()
        if place not in seen:
            seen.add(place)
            distinct.append(model)
    return distinct


def _fastest_of_each(candidates: Iterable[Candidate], left_out: list[LeftOut]) -> list[Candidate]:
    """One file for each model: of several quantisations the smallest, which costs least to draft with."""
    best: dict[tuple[str, int], Candidate] = {}
    for candidate in candidates:
        assert candidate.header is not None
        key = candidate.header.architecture, parameters(candidate.header)
        other = best.setdefault(key, candidate)
        if candidate is other:
            continue
        assert other.header is not None
        if candidate.header.tensor_bytes < other.header.tensor_bytes:
            best[key], candidate, other = candidate, other, candidate
        left_out.append(LeftOut(candidate.name, f"a larger file of the same size of model as {other.name}"))
    return list(best.values())


def _guess(candidate: Candidate, target: GgufHeader) -> tuple[bool, float]:
    """Sorts the best guess first: the target's own family, then sizes that usually do well."""
    assert candidate.header is not None
    family = family_of(target)
    share = max(candidate.header.tensor_bytes, 1) / max(target.tensor_bytes, 1)
    stranger = family is None or family_of(candidate.header) != family
    return stranger, abs(math.log(share / GOOD_SHARE))


def _lacking(suggestions: Iterable[Suggestion], here: Iterable[Candidate]) -> list[Suggestion]:
    """The suggestions that are not on this machine yet: nothing here has about as many parameters."""
    sizes = [parameters(candidate.header) / 1e9 for candidate in here if candidate.header is not None]
    return [one for one in suggestions if not any(0.8 < size / one.parameters < 1.25 for size in sizes)]


def _reason(error: SlipstreamError) -> str:
    """The sentence without its details, and without the advice that is for somebody who named one draft model."""
    return str(error).removesuffix(ADVICE).partition("; the first is ")[0].rstrip(" .") + "."
