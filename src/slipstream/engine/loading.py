"""From names to loaded parts: the target, and the drafter that `--draft` asks for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Drafter, Model
from slipstream.corpus import Corpus, vocabulary_name
from slipstream.draft import ModelDrafter, OtherTokenizerDrafter, RecyclingDrafter, SuffixDrafter
from slipstream.engine.heads import find_head, load_head
from slipstream.engine.layers import drafting_layers, layers_drafter, pruned_copy
from slipstream.engine.low_bit import low_bit_copy
from slipstream.errors import SlipstreamError, UnsupportedModelError, UsageError, VocabularyMismatchError
from slipstream.models import GgufHeader, Vocabulary, compare, read_model_header, resolve
from slipstream.models.draft_spec import split_draft
from slipstream.models.heads import HeadFile
from slipstream.models.shipped_heads import shipped_head
from slipstream.runtime import Choice, LoadOptions, RuntimeName, choose, load, runtime_named
from slipstream.tokenizer import overlap

AUTO, SUFFIX, LOW_BIT, LAYERS, HEAD = "auto", "suffix", "lowbit", "layers", "head"
LITTLE_OVERLAP = 0.3
"""Of the smaller vocabulary. Where two have less in common, a draft model of the other is a doubtful one."""
DraftSpec = str | Path | Drafter | Sequence[Drafter] | None
GpuLayers = int | Literal["auto", "all"]
LoadProgress = Callable[[str, float], None]
"""Called while weights are made ready with the model's name and the fraction that is, 0 to 1."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How models are loaded.

    runtime:          "native", "llamacpp" or "auto": native where it can run the file, with these options and where
                      no GPU would be used. For target and draft model separately
    context_length:   tokens per sequence; None takes the model's own, up to a limit that fits most machines
    max_sequences:    sequences that can be decoded at once
    threads:          None takes the physical cores this process may use
    gpu_layers:       "auto" (all if there is a GPU), "all" or a number, for target and draft model separately
    flash_attention:  "auto", "on" or "off"
    corpus:           folder of texts that suffix lookup drafts from, and adds to; None for none (docs/corpus.md)
    kv_type:          "f16", "bf16", "f32", "q8_0" or "q4_0": type of the KV cache

    GPU layers, flash attention that is off, and KV caches other than f16 are llama.cpp's.
    """

    runtime: RuntimeName = "auto"
    draft_runtime: RuntimeName = "auto"
    context_length: int | None = None
    max_sequences: int = 1
    threads: int | None = None
    gpu_layers: GpuLayers = "auto"
    draft_gpu_layers: GpuLayers = "auto"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    kv_type: str = "f16"
    corpus: Path | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for runtimes that do not exist."""
        runtime_named("runtime", self.runtime)
        runtime_named("draft_runtime", self.draft_runtime)

    def for_target(self) -> LoadOptions:
        """What of this concerns the target."""
        return LoadOptions(
            runtime=self.runtime,
            context_length=self.context_length,
            max_sequences=self.max_sequences,
            threads=self.threads,
            gpu_layers=self.gpu_layers,
            flash_attention=self.flash_attention,
            kv_type=self.kv_type,
        )

    def for_draft(self, context_length: int | None = None) -> LoadOptions:
        """The same for a draft model, whose context has the length that the target's came to."""
        return replace(
            self.for_target(),
            runtime=self.draft_runtime,
            context_length=context_length,
            gpu_layers=self.draft_gpu_layers,
        )


def load_model(path: Path, choice: Choice, options: LoadOptions, progress: LoadProgress | None) -> Model:
    """Load one file with the runtime that was chosen for it."""
    return load(path, choice, options, progress=progress and partial(progress, path.name))


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """One drafter of those that `--draft` asks for, checked as far as headers tell.

    name:   what its tokens are marked with
    load:   makes the drafter for a loaded target
    model:  the draft model's header, None where no model drafts
    choice: the runtime that it gets, None where it drafts on the target's own
    more:   drafters that come with it
    notice: a sentence or two for people about how it drafts, None where that goes without saying
    optional: whether the others draft without it where it cannot be loaded
    """

    name: str
    load: Callable[[Model, LoadProgress | None], Drafter]
    model: GgufHeader | None = None
    choice: Choice | None = None
    more: Sequence["DraftPlan"] = ()
    notice: str | None = None
    optional: bool = False

    @property
    def notices(self) -> list[str]:
        """What people should hear before it drafts."""
        return [one for one in (self.choice and self.choice.notice, self.notice) if one]


class DraftRequest(NamedTuple):
    """What a named drafter is planned from. argument: what stands behind its name and a colon."""

    argument: str
    target: GgufHeader
    options: ModelOptions
    progress: LoadProgress | None


def _plan_suffix(request: DraftRequest) -> DraftPlan:
    if request.argument:
        raise UsageError(f"suffix takes nothing after a colon, and suffix:{request.argument} has something.")
    return DraftPlan(SUFFIX, partial(_load_suffix, _corpus_folder(request)))


def _load_suffix(corpus: Path | None, target: Model, progress: LoadProgress | None) -> Drafter:
    size = target.vocabulary.size
    return SuffixDrafter(None if corpus is None else Corpus(corpus, size), RecyclingDrafter(size))


def _corpus_folder(request: DraftRequest) -> Path | None:
    """Of the target's vocabulary, in the corpus that the options name."""
    corpus = request.options.corpus
    if corpus is None:
        return None
    if corpus.exists() and not corpus.is_dir():
        raise UsageError(f"The corpus {corpus} is a file; name a folder, or off.")
    return corpus / vocabulary_name(Vocabulary.from_header(request.target))


def _plan_recycling(request: DraftRequest) -> DraftPlan:
    if request.argument:
        raise UsageError(f"recycling takes nothing after a colon, and recycling:{request.argument} has something.")
    return DraftPlan("recycling", lambda target, progress: RecyclingDrafter(target.vocabulary.size))


def _plan_low_bit(request: DraftRequest) -> DraftPlan:
    target, report = request.target, request.progress
    what = f"{LOW_BIT} copy of {target.path.name}"
    path = low_bit_copy(target, request.argument, lambda done: report(what, done) if report else None)
    return _plan_copy(LOW_BIT, read_model_header(path), request.options)


def _plan_layers(request: DraftRequest) -> DraftPlan:
    target, report = request.target, request.progress
    on_target = choose(target, request.options.for_target()).runtime == "native"
    subsets = drafting_layers(target, request.argument, renumbered=not on_target)
    name = f"{LAYERS}:{request.argument}" if request.argument else LAYERS
    if not on_target:
        what = f"copy of {target.path.name} with {len(subsets[0])} layers"
        path = pruned_copy(target, subsets[0], lambda done: report(what, done) if report else None)
        return _plan_copy(name, read_model_header(path), request.options)
    names = [name, *(f"{name}{number}" for number in range(2, len(subsets) + 1))]
    first, *others = [
        DraftPlan(one, partial(_load_layers, one, layers, target), target)
        for one, layers in zip(names, subsets, strict=True)
    ]
    return replace(first, more=others)


def _load_layers(
    name: str, layers: Sequence[int], header: GgufHeader, target: Model, progress: LoadProgress | None
) -> Drafter:
    return layers_drafter(name, tuple(layers), target, header)


def _plan_copy(name: str, copy: GgufHeader, options: ModelOptions) -> DraftPlan:
    choice, shared = choose(copy, options.for_draft()), len(Vocabulary.from_header(copy))
    return DraftPlan(name, _loader(copy, choice, options, _same_vocabulary(name, shared)), copy, choice)


def _plan_shipped_head(request: DraftRequest) -> DraftPlan:
    if request.argument:
        raise UsageError(
            f"head takes nothing after a colon, and head:{request.argument} has something; name a head's file without "
            "head: before it."
        )
    target = request.target.path
    head = shipped_head(request.target)
    if head is None:
        raise UsageError(
            f"No head for {target.name} comes with Slipstream; train one with `slipstream train-drafter {target}`, or "
            "name a head's file."
        )
    return _planned_head(head, HEAD, request._replace(argument=HEAD))


NAMED: dict[str, Callable[[DraftRequest], DraftPlan]] = {
    SUFFIX: _plan_suffix,
    "recycling": _plan_recycling,
    LOW_BIT: _plan_low_bit,
    LAYERS: _plan_layers,
    HEAD: _plan_shipped_head,
}
"""How drafters that have a name are planned; whatever has none of these is a model."""


def plan_draft(
    spec: str, target: GgufHeader, options: ModelOptions, progress: LoadProgress | None = None
) -> list[DraftPlan]:
    """Read a draft specification, compare the vocabularies and choose runtimes, before any weights are loaded.

    progress: called while a copy is made that the drafter needs
    """
    if spec == "none":
        return []
    if spec == AUTO:
        return _plan_default(DraftRequest("", target, options, progress))
    parts = split_draft(spec)
    if "" in parts or {"none", AUTO} & set(parts) or len(set(parts)) < len(parts):
        raise UsageError(
            f"The draft {spec!r} must be {AUTO}, none, or different drafters joined by plus signs: "
            f"{', '.join(NAMED)}, or a model."
        )
    several = len([part for part in parts if planner_of(part) in (None, _plan_shipped_head)]) > 1
    plans = []
    for part in parts:
        named, (_, _, argument) = planner_of(part), part.partition(":")
        if named is not None:
            planned = named(DraftRequest(argument, target, options, progress))
            plans += [planned, *planned.more]
        else:
            request = DraftRequest(part, target, options, progress)
            plans.append(_plan_head(request, several) or _plan_model(part, target, options, several))
    return plans


def planner_of(part: str) -> Callable[[DraftRequest], DraftPlan] | None:
    """What plans a part of a specification that begins with a drafter's name; a file of that name is a model."""
    return None if Path(part).exists() else NAMED.get(part.partition(":")[0])


def default_draft(target: GgufHeader, options: ModelOptions) -> str:
    """What "auto" comes to for a target: suffix lookup, and the head that comes with Slipstream if it can be used."""
    try:
        return SUFFIX if usable_head(target, options) is None else f"{SUFFIX}+{HEAD}"
    except SlipstreamError:
        return SUFFIX


def usable_head(target: GgufHeader, options: ModelOptions) -> HeadFile | None:
    """The head that comes with Slipstream for a target, None where there is none, or the target gives no hidden states.

    Raises SlipstreamError where its file is missing or damaged.
    """
    return shipped_head(target) if choose(target, options.for_target()).runtime == "native" else None


def _plan_default(request: DraftRequest) -> list[DraftPlan]:
    """Whatever is wrong with a head that nobody asked for, the target runs without it."""
    suffix = _plan_suffix(request)
    try:
        head = usable_head(request.target, request.options)
        planned = None if head is None else _planned_head(head, HEAD, request)
    except SlipstreamError as error:
        return [replace(suffix, notice=_without_head(error))]
    return [suffix] if planned is None else [suffix, replace(planned, optional=True)]


def _without_head(reason: SlipstreamError) -> str:
    return f"Suffix lookup drafts alone, without the head that comes with Slipstream: {reason}"


def _plan_head(request: DraftRequest, several: bool) -> DraftPlan | None:
    """The plan of a head that the argument names; None for what is no head."""
    target, report = request.target, request.progress
    what = f"GGUF copy of {Path(request.argument).name}"
    head = find_head(request.argument, target, lambda done: report(what, done) if report else None)
    return None if head is None else _planned_head(head, head.header.path.stem if several else HEAD, request)


def _planned_head(head: HeadFile, source: str, request: DraftRequest) -> DraftPlan:
    """Raises UnsupportedModelError for a target without hidden states."""
    target, options = request.target, request.options
    if (choice := choose(target, options.for_target())).runtime != "native":
        raise UnsupportedModelError(
            f"{request.argument} is a head, which needs hidden states of its target, and {target.path.name} runs on "
            "llama.cpp, which gives none; use the native runtime, or another draft."
        )
    return DraftPlan(source, partial(_load_head, head, source, target, options), head.header, choice)


def _load_head(
    head: HeadFile,
    source: str,
    target_file: GgufHeader,
    options: ModelOptions,
    target: Model,
    progress: LoadProgress | None,
) -> Drafter:
    report = progress and partial(progress, head.header.path.name)
    return load_head(
        head,
        source,
        target_file,
        target,
        max_sequences=options.max_sequences,
        threads=options.threads,
        progress=report,
    )


def _plan_model(name: str, target: GgufHeader, options: ModelOptions, several: bool) -> DraftPlan:
    """A model drafts token by token where its ids mean what the target's mean, and through the text where not."""
    model = read_model_header(resolve(name))
    source = model.path.stem if several else "model"
    vocabularies = Vocabulary.from_header(target), Vocabulary.from_header(model)
    make, notice = _other_vocabulary(source), None
    try:
        make = _same_vocabulary(source, compare(*vocabularies))
    except VocabularyMismatchError:
        notice = _overlap_notice(target, model, *vocabularies)
    choice = choose(model, options.for_draft())
    return DraftPlan(source, _loader(model, choice, options, make), model, choice, notice=notice)


def _overlap_notice(target: GgufHeader, model: GgufHeader, theirs: Vocabulary, own: Vocabulary) -> str:
    common = overlap(theirs, own)
    notice = (
        f"{model.path.name} has another vocabulary than {target.path.name}, so it drafts through the text: "
        f"{common.shared / max(common.other, 1):.0%} of its tokens are tokens of the target, "
        f"and {common.shared / max(common.one, 1):.0%} the other way round."
    )
    if common.share < LITTLE_OVERLAP:
        notice += " That is little, so drafts will be right less often; `slipstream advise` tells whether they pay."
    return notice


MakeDrafter = Callable[[Model, Model], Drafter]
"""Makes a drafter of a loaded draft model, for a loaded target."""


def _same_vocabulary(source: str, shared: int) -> MakeDrafter:
    """shared: ids below it mean to the draft model what they mean to the target."""
    return lambda model, target: ModelDrafter(model, usable_size=shared, source=source)


def _other_vocabulary(source: str) -> MakeDrafter:
    return lambda model, target: OtherTokenizerDrafter(model, target.vocabulary, source=source)


def _loader(
    model: GgufHeader, choice: Choice, options: ModelOptions, make: MakeDrafter
) -> Callable[[Model, LoadProgress | None], Drafter]:
    """What loads a draft model for a loaded target and makes a drafter of it, or leaves nothing behind."""

    def load_drafter(target: Model, progress: LoadProgress | None) -> Drafter:
        # the draft should follow wherever the target goes, as far as it was trained to
        length = min(target.context_length, model.context_length or target.context_length)
        loaded = load_model(model.path, choice, options.for_draft(length), progress)
        try:
            return make(loaded, target)
        except BaseException:
            loaded.close()
            raise

    return load_drafter


class LoadedDrafters(NamedTuple):
    """Drafters beside the plans that they come from, and why others are not among them, for people."""

    drafters: list[Drafter]
    plans: list[DraftPlan]
    notices: list[str]


def load_drafters(plans: Sequence[DraftPlan], target: Model, progress: LoadProgress | None) -> LoadedDrafters:
    """Load what was planned: all of it but what is optional and cannot be, or nothing."""
    loaded = LoadedDrafters([], [], [])
    try:
        for plan in plans:
            try:
                loaded.drafters.append(plan.load(target, progress))
                loaded.plans.append(plan)
            except SlipstreamError as error:
                if not plan.optional:
                    raise
                loaded.notices.append(_without_head(error))
    except BaseException:
        for drafter in loaded.drafters:
            drafter.close()
        raise
    return loaded


def sampling_defaults(header: GgufHeader) -> SamplingParams:
    """The values the file recommends where it carries any, else ours."""
    recommended = header.sampling_defaults
    given: dict[str, Any] = {
        "temperature": recommended.temperature,
        "top_k": recommended.top_k,
        "top_p": recommended.top_p,
        "min_p": recommended.min_p,
        "repetition_penalty": recommended.repetition_penalty,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return SamplingParams()
    neutral = SamplingParams(top_k=0, top_p=1.0, min_p=0.0)
    return replace(neutral, **given)
