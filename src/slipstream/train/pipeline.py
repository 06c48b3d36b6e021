"""From a target to a drafter's file: answers, states, vocabulary, training, file. Every stage can be resumed."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from slipstream.engine import Engine, ModelOptions
from slipstream.errors import StorageError, UnsupportedModelError, UsageError
from slipstream.models import GgufHeader, cache_directory, read_model_header, storage
from slipstream.models.fingerprint import fingerprint
from slipstream.models.gguf_writer import metadata_bytes, stored_bytes
from slipstream.runtime.threads import default_threads
from slipstream.train.acceptance import sentence
from slipstream.train.answers import WIDTH, Limits, answer_held_out, make_answers
from slipstream.train.files import write_json
from slipstream.train.head import head_shapes
from slipstream.train.head_task import HeadTask
from slipstream.train.loop import Held, Report, Training
from slipstream.train.model_task import ModelTask, model_shapes
from slipstream.train.prompts import Source
from slipstream.train.recipe import Kind, Recipe
from slipstream.train.start import GOING_ON, Start, begun_with, chosen_start
from slipstream.train.states import StateStore
from slipstream.train.target import States, Weights, think
from slipstream.train.task import Task
from slipstream.train.teacher import Teacher, frequent_tokens
from slipstream.train.texts import Shard, Text

ANSWER_SHARE = 0.3
"""Of the time that there is, for answers; what they leave is training's."""
LAST_MEASURED = 5
"""Tokens of a draft that the finished drafter is measured with."""
MODEL_WIDTHS = ((192, 3), (128, 2), (96, 3), (64, 2), (32, 1))
"""Widths of draft models and their heads, best first."""
MODEL_DEPTH = 3
LEAST_VOCABULARY = 32
ELSEWHERE = "choose another place with --out"
SAMPLE = 16
"""Texts whose states say how large their numbers are."""


class Asked(NamedTuple):
    """What a user asks for.

    size:     bytes of the drafter's file, at most; None for no limit
    disk:     bytes of states on disk, at most
    seconds:  for everything, over all runs of the program; None for no limit
    tokenizer: whether the target's vocabulary is part of a head's file, which llama.cpp needs
    start:    names the head that training begins with; None: the one that comes with Slipstream, where there is one
    """

    kind: Kind
    work: Path | None
    out: Path
    size: int | None
    disk: int
    seconds: float | None
    device: str
    threads: int | None
    tokenizer: bool = True
    start: str | None = None
    changes: Mapping[str, Any] = MappingProxyType({})


class Finished(NamedTuple):
    """What came of it. path: of the drafter; None where the user stopped before the end."""

    path: Path | None
    work: Path
    figures: dict[str, Any]


def train_drafter(model: Path, source: Source, asked: Asked, report: Report) -> Finished:
    """Train a drafter for a model and write its file.

    Raises SlipstreamError: a target that the native runtime cannot run, impossible sizes, a full disk.
    """
    header = read_model_header(model)
    weights = Weights(header)
    start = None
    if asked.kind == "head":
        start = chosen_start(asked.start, dict(asked.changes), header, weights, report.say)
    recipe = planned(header, weights, source, asked, start)
    work = asked.work or cache_directory() / "training" / f"{recipe.fingerprint[:12]}-{recipe.answers_key}"
    with ExitStack() as stack:
        with storage.storage_errors(work):
            work.mkdir(parents=True, exist_ok=True)
        stack.enter_context(storage.exclusive(work / "lock", lambda: _refuse(work)))
        with storage.storage_errors(asked.out.parent, ELSEWHERE):
            asked.out.parent.mkdir(parents=True, exist_ok=True)
        return _Run(header, weights, recipe, source, asked, start, work, report, stack).run()


def _refuse(work: Path) -> None:
    raise UsageError(f"Another program trains in {work}; wait for it, or give another --work.")


@dataclass
class _Run:
    """One run of the program: what it loads and what it has come to."""

    header: GgufHeader
    weights: Weights
    recipe: Recipe
    source: Source
    asked: Asked
    start: Start | None
    work: Path
    report: Report
    stack: ExitStack

    def run(self) -> Finished:
        self._set_threads()
        engine = self.stack.enter_context(self._load())
        shards, held_texts = self._answers(engine)
        if self.report.should_stop():
            return Finished(None, self.work, {})
        answered = monotonic()
        layers = read_layers(self.recipe, self.weights)
        store = self._states(engine, shards, layers)
        held = [Held(text, think(engine.target, text.tokens, text.prompt, layers)) for text in held_texts]
        if self.report.should_stop():
            return Finished(None, self.work, {})
        teacher = self._teacher(store.texts, engine.target.vocabulary.end_tokens)
        folder = self.work / f"{self.recipe.kind}-{self.recipe.key}"
        spent = sum(shard.seconds for shard in shards) + monotonic() - answered
        left = None if self.asked.seconds is None else max(self.asked.seconds - spent, 1.0)
        training = Training(self._task(teacher, store), self.recipe, store, held, folder, self.report, left)
        if not training.run():
            return Finished(None, self.work, {})
        figures = training.measure(LAST_MEASURED)
        if figures:
            self.report.say(sentence(figures))
        self._write(training, shards, figures, len(teacher.ids))
        return Finished(self.asked.out, self.work, figures)

    def _set_threads(self) -> None:
        torch.set_num_threads(self.asked.threads or default_threads())

    def _load(self) -> Engine:
        recipe = self.recipe
        context = min(recipe.prompt_tokens + recipe.answer_tokens + 1, self.header.context_length or 1 << 20)
        # one session more than are decoded at once: states are read in it
        options = ModelOptions(
            runtime="native", context_length=context, max_sequences=WIDTH + 1, threads=self.asked.threads
        )
        return Engine.load(self.header.path, speculation="off", options=options)

    def _answers(self, engine: Engine) -> tuple[list[Shard], list[Text]]:
        report, recipe = self.report, self.recipe
        report.progress(0, recipe.tokens, "answers")
        seconds = None if self.asked.seconds is None else ANSWER_SHARE * self.asked.seconds
        shards = make_answers(
            engine,
            self.source,
            recipe,
            self.work / "answers",
            Limits(recipe.tokens, seconds),
            lambda done, total: report.progress(done, total, "answers"),
            report.say,
            report.should_stop,
        )
        if report.should_stop():
            return shards, []
        return shards, answer_held_out(engine, self.source.held_out, recipe, self.work / "answers", report.should_stop)

    def _states(self, engine: Engine, shards: Sequence[Shard], layers: Sequence[int]) -> StateStore:
        def compute(text: Text) -> States:
            return think(engine.target, text.tokens, text.prompt, layers)

        store = StateStore(
            self.work / f"states-{self.recipe.states_key}",
            shards,
            compute,
            layers=len(layers),
            width=self.weights.decoder.width,
            limit=self.asked.disk,
            say=self.report.say,
        )
        store.fill(lambda done, total: self.report.progress(done, total, "states"), self.report.should_stop)
        return store

    def _teacher(self, texts: Sequence[Text], ends: frozenset[int]) -> Teacher:
        # what a head could draft it should still be able to; in most vocabularies low ids are the commonest tokens
        old = None if self.start is None else self.start.head.draft_tokens
        others = [] if old is None else np.sort(old).tolist()
        ids = frequent_tokens(texts, self.recipe.vocabulary, sorted(ends), others)
        return Teacher(self.weights, ids, self.asked.device)

    def _task(self, teacher: Teacher, store: StateStore) -> Task:
        half = _multiplies_halves(self.asked.device)
        if self.recipe.kind == "model":
            return ModelTask(self.weights, teacher, self.recipe, half)
        sample = [store[index] for index in range(min(SAMPLE, len(store.texts)))]
        begun = None if self.start is None else begun_with(self.start, self.header, self.weights, teacher)
        return HeadTask(self.weights, teacher, self.recipe, half, sample, begun)

    def _write(self, training: Training, shards: Sequence[Shard], figures: dict[str, Any], vocabulary: int) -> None:
        out = self.asked.out
        told = self.recipe.as_dict() | {
            "vocabulary": vocabulary,
            "answer_tokens_seen": sum(shard.answer_tokens for shard in shards),
            "steps": training.steps,
            "seconds": round(training.spent + sum(shard.seconds for shard in shards)),
            "held_out": figures,
            "note": self.source.note,
            "version": version("slipstream-decoding"),
            "python": python_version(),
        }
        with storage.storage_errors(out.parent, ELSEWHERE), storage.staging(out.parent, out.name) as stage:
            finished = stage / out.name
            training.task.write(finished, described(self.header, self.recipe, json.dumps(told), self.asked.tokenizer))
            storage.publish(finished, out)
        write_json(training.folder / "history.json", {"history": training.history, "recipe": told})


def planned(header: GgufHeader, weights: Weights, source: Source, asked: Asked, start: Start | None = None) -> Recipe:
    """The recipe, with sizes that keep the file within its limit. Raises UsageError where none do.

    start: the head that training begins with, whose shape it has
    """
    recipe = Recipe(
        kind=asked.kind,
        target=header.name,
        fingerprint=fingerprint(header.path),
        prompts=source.key,
        layers=default_layers(weights.layer_count) if asked.kind == "head" else (),
    )
    if start is not None:
        recipe = replace(recipe, **start.shape, **GOING_ON)
    recipe = replace(recipe, **asked.changes)
    recipe.check(weights.layer_count)
    if start is not None:
        recipe = replace(recipe, start=start.recipe)
    vocabulary = min(recipe.vocabulary, weights.vocabulary)
    fixed = len(metadata_bytes(described(header, recipe, "x" * 3072, asked.tokenizer))) + 2048
    if recipe.kind == "model":
        return _fitting_model(replace(recipe, vocabulary=vocabulary), weights, fixed, asked.size)
    sizes = weights.sizes
    if sizes.width % 32 or sizes.feed_forward % 32:
        raise UnsupportedModelError("The target's width is no multiple of 32, so no head can be trained for it.")
    shapes = head_shapes(sizes, 0, direct=recipe.direct)
    fixed += sum(stored_bytes(shape, recipe.quantisation) for shape in shapes.values()) + 4 * 8 * sizes.width
    each = stored_bytes((1, sizes.width), recipe.quantisation) + 8
    if asked.size is not None and (fits := (asked.size - fixed) // each) < vocabulary:
        vocabulary = fits // 32 * 32
        if vocabulary < min(LEAST_VOCABULARY, weights.vocabulary):
            raise UsageError(
                f"A head for {header.path.name} takes about {(fixed + 1024 * each) / 1e6:.1f} MB; give a larger --size."
            )
    return replace(recipe, vocabulary=vocabulary)


def _fitting_model(recipe: Recipe, weights: Weights, fixed: int, size: int | None) -> Recipe:
    """The widest draft model that fits."""
    needed = 0
    for width, heads in MODEL_WIDTHS:
        if width > weights.decoder.width:
            continue
        made = replace(
            recipe,
            width=recipe.width or width,
            heads=recipe.heads or heads,
            depth=recipe.depth or MODEL_DEPTH,
            feed_forward=recipe.feed_forward or 3 * width // 32 * 32 or 32,
        )
        needed = fixed + sum(
            stored_bytes(shape, "F32" if len(shape) < 2 else recipe.quantisation)
            for shape in model_shapes(made, weights.vocabulary).values()
        )
        if size is None or needed <= size:
            return made
    raise UsageError(f"The smallest draft model takes {needed / 1e6:.1f} MB; give a larger --size.")


def default_layers(count: int) -> tuple[int, ...]:
    """An early, a middle and a late layer, in the words of docs/heads.md."""
    return (min(2, count), max(count // 2, 1), max(count - 1, 1))


def read_layers(recipe: Recipe, weights: Weights) -> list[int]:
    """The layers whose outputs are kept: what a head reads, and the last, from which the target's choice follows."""
    layers = [layer - 1 for layer in recipe.layers]
    last = weights.layer_count - 1
    return layers if layers and layers[-1] == last else [*layers, last]


def described(header: GgufHeader, recipe: Recipe, told: str, tokenizer: bool) -> dict[str, Any]:
    """Metadata of the drafter's file that do not depend on its sizes."""
    kind = "head" if recipe.kind == "head" else "draft model"
    found: dict[str, Any] = {
        "general.type": "model",
        "general.name": f"{header.name} {kind}",
        "general.license": header.licence or "unknown",
        "general.file_type": {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7}[recipe.quantisation],
        "context_length": header.context_length or 4096,
        "slipstream.head.target_name": header.name,
        "slipstream.head.target_fingerprint": recipe.fingerprint,
        "slipstream.head.recipe": told,
    }
    if tokenizer or recipe.kind == "model":
        left_out = () if recipe.kind == "model" else ("tokenizer.chat_template",)
        found |= {
            key: value
            for key, value in header.metadata.items()
            if key.startswith("tokenizer.") and not key.startswith(left_out or "\0")
        }
    return found


def _multiplies_halves(device: str) -> bool:
    """Whether bfloat16 is faster: on GPUs, and on CPUs with instructions for it."""
    if torch.device(device).type != "cpu":
        return True
    capability: Callable[[], bool] = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return bool(capability())


def check_out(out: Path) -> None:
    """Raise StorageError where the drafter could not be written in the end."""
    if out.is_dir():
        raise StorageError(f"{out} is a folder; give a file name for the drafter, such as head.gguf.")
