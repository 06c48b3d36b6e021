"""A row's logits, keys and values are the same bits in every company, tree, chunking, history and number of threads."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slipstream.core.protocols import Segment
from slipstream.runtime.native import NativeModel, instruction_sets
from tests.runtime.native.helpers import (
    FORMATS,
    Beginning,
    Reference,
    cached,
    feed,
    feed_silently,
    load,
    one_by_one,
    same_bits,
    same_cache,
    shape_for,
)
from tests.runtime.native.schedule import SESSIONS, Schedule
from tests.tiny_models import GROUPED, Metadata, Shape, tiny_decoder, tiny_llama

BEST = instruction_sets()[0]
OTHERS = instruction_sets()[1:]
VOCABULARY = 271
BLOCK, CHUNK = 64, 256
"""Positions of a block of the KV cache and of a chunk of attention (`kKeyBlock`, `kChunk`)."""

OTHER_MODELS: dict[str, tuple[Shape, Metadata]] = {
    "qwen2": (Shape(heads=2, key_value_heads=1, feed_forward=96, layers=3), {}),
    "qwen3": (GROUPED, {}),
    "gemma3": (GROUPED, {"gemma3.attention.sliding_window": 40}),
    "gemma3 wide": (GROUPED, {"gemma3.attention.sliding_window": 300}),
}
"""Shape and metadata of files that are no llamas; all are Q4_0. Windows end within a block, a tree, a chunk."""
KINDS = (*FORMATS, *OTHER_MODELS)
"""Files: llamas of each format, and the others."""

# A model's numbers repeat themselves, so schedules do too: a failure is found again by running the test again.
repeatable = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


class Models:
    """Files and models, each made once; every model is held against a reference with one thread of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.file = cache(self._file)
        self.model = cache(self._model)
        self.reference = cache(self._reference)
        self.long = cache(self._long)
        self.patient = cache(self._patient)
        self.beginnings = cache(self._beginnings)
        self.made: list[NativeModel] = []

    def _file(self, kind: str) -> Path:
        path = self._directory / f"{kind}.gguf"
        if kind in OTHER_MODELS:
            shape, extra = OTHER_MODELS[kind]
            architecture = kind.split()[0]
            return tiny_decoder(path, architecture, shape=shape, extra=extra, storage="Q4_0", context_length=2560)
        # Half of the files have their output matrix in common with the embedding.
        tied = FORMATS.index(kind) % 2 == 1
        return tiny_llama(path, shape=shape_for(kind), storage=kind, tied=tied, context_length=2560)

    def _model(
        self, kind: str, isa: str, threads: int = 1, context: int = 512, sessions: int = SESSIONS, rows: int = 512
    ) -> NativeModel:
        path = self.file(kind)
        self.made.append(load(path, isa, threads=threads, context=context, sessions=sessions, rows=rows))
        return self.made[-1]

    def _reference(self, kind: str, isa: str) -> Reference:
        return Reference(self._model(kind, isa))

    def _long(self, kind: str, isa: str) -> "LongReference":
        return LongReference(self._model(kind, isa, context=2560, rows=2560))  # a window leaves nothing behind

    def _patient(self, kind: str, isa: str) -> NativeModel:
        """For histories of a windowed kind: with room for everything."""
        return self._model(kind, isa, context=WINDOWED[kind], rows=WINDOWED[kind])

    def _beginnings(self, kind: str, isa: str) -> list[Beginning]:
        """Two texts, each shorter than the context by what a history adds."""
        model, length, made = self.patient(kind, isa), WINDOWED[kind] - 100, []
        for start in (0, length):
            made.append(Beginning(PREFIX[start : start + length], model.open_session()))
            feed_silently(model, made[-1].session, made[-1].tokens, 1)
        return made


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    made = Models(tmp_path_factory.mktemp("bits"))
    yield made
    for model in made.made:
        model.close()


# ---- Rows alone, together, in chunks -----------------------------------------------------------------------------


def check_chunks(models: Models, kind: str, isa: str, threads: int, cuts: Sequence[int], seed: int) -> None:
    """Tokens that are fed in chunks [0, cut), [cut, cut) ... come out as those fed one by one."""
    model, reference = models.model(kind, isa, threads), models.reference(kind, isa)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, max(cuts)).tolist()
    session = model.open_session()
    reference.row(tokens)  # and so the rows of all prefixes
    try:
        for start, end in pairwise([0, *cuts]):
            logits = feed(model, session, tokens[start:end])
            for row in range(start, end):
                assert same_bits(logits[row - start], reference.row(tokens[: row + 1])), (start, row, end)
        assert same_cache(cached(model, session), reference.cached(tokens))
    finally:
        session.close()


chunkings = st.lists(st.integers(1, 400), min_size=1, max_size=6, unique=True).map(sorted)


@pytest.mark.parametrize("kind", KINDS)
@settings(repeatable, max_examples=4)
@given(cuts=chunkings, seed=st.integers(0, 3))
@example(cuts=[1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66, 78, 91, 105, 120, 136], seed=0)  # 1 to 16 rows
@example(cuts=[300], seed=1)  # panels of 128 rows, and a rest
def test_chunking_changes_nothing(models: Models, kind: str, cuts: list[int], seed: int) -> None:
    check_chunks(models, kind, BEST, 1, cuts, seed)


@pytest.mark.parametrize("isa", OTHERS)
@pytest.mark.parametrize("kind", KINDS)
def test_chunking_changes_nothing_on_any_instruction_set(models: Models, kind: str, isa: str) -> None:
    check_chunks(models, kind, isa, 1, [1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66, 78, 91, 230], seed=0)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_nothing(models: Models, kind: str, threads: int) -> None:
    check_chunks(models, kind, BEST, threads, [1, 3, 6, 14, 30, 65, 290], seed=0)


# ---- Histories ----------------------------------------------------------------------------------------------------


WINDOWED = {"gemma3": 512, "gemma3 wide": 1024}
"""Contexts in which sessions of these kinds leave blocks behind: their store has 12 or 32, and three sessions with most
of a beginning need 15 or 39."""
WINDOWED_ROWS = 24


def play(models: Models, kind: str, isa: str, threads: int, seed: int, steps: int) -> None:
    if kind in WINDOWED:
        model = models.model(kind, isa, threads, WINDOWED[kind], rows=WINDOWED_ROWS)
        reference = Reference(models.patient(kind, isa), models.beginnings(kind, isa))
    else:
        model = models.model(kind, isa, threads, 256)
        reference = Reference(models.model(kind, isa, 1, 512))
    free = model.native.free_blocks()
    schedule = Schedule(model, reference, seed)
    try:
        if kind in WINDOWED:
            assert any(one.reachable(1) == 0 for one in schedule.tracked), "windows leave their beginnings behind"
        for _ in range(steps):
            schedule.step()
        schedule.check()
    finally:
        schedule.close()
    assert model.native.free_blocks() == free


@pytest.mark.parametrize("kind", KINDS)
@settings(repeatable, max_examples=25)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 30))
def test_history_changes_nothing(models: Models, kind: str, seed: int, steps: int) -> None:
    play(models, kind, BEST, 1, seed, steps)


@pytest.mark.parametrize("isa", OTHERS)
@pytest.mark.parametrize("kind", KINDS)
def test_history_changes_nothing_on_any_instruction_set(models: Models, kind: str, isa: str) -> None:
    for seed in range(3):
        play(models, kind, isa, 1, seed, 20)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("kind", ["F16", "Q4_0", "gemma3"])
def test_history_changes_nothing_on_any_number_of_threads(models: Models, kind: str, threads: int) -> None:
    for seed in range(100, 103):
        play(models, kind, BEST, threads, seed, 12)


# ---- Long contexts --------------------------------------------------------------------------------------------------

PREFIX = np.random.default_rng(7).integers(0, VOCABULARY, 2560).tolist()


class LongReference:
    """One session that was fed `PREFIX` token by token.

    It goes back to a length by `truncate`, whose truth the histories above establish with fresh sessions.
    """

    def __init__(self, model: NativeModel) -> None:
        self.model = model
        self.session = model.open_session()
        self._base = 0

    def rows(self, base: int, tokens: Sequence[int]) -> np.ndarray:
        """[n, vocab] logits of these tokens, fed one by one after the first `base` of `PREFIX`."""
        self._go_to(base)
        return one_by_one(self.model, self.session, tokens)

    def _go_to(self, base: int) -> None:
        self.session.truncate(min(base, self._base))
        one_by_one(self.model, self.session, PREFIX[self.session.length : base])
        self._base = base


def check_tree(models: Models, kind: str, isa: str, threads: int, base: int, count: int, step: int) -> None:
    """A tree at the end of a long context, a path of it committed, and the row after that."""
    rows = 128 if kind.startswith("gemma3") else 512  # so few that blocks outside a window are used again
    model, reference = models.model(kind, isa, threads, 2560, 1, rows), models.long(kind, isa)
    chance = random.Random(f"{base} {count}")
    tokens = [chance.randrange(VOCABULARY) for _ in range(count)]
    parents = [chance.choice([row - 1, row - 1, chance.randint(-1, row - 1)]) for row in range(count)]
    session = model.open_session()
    try:
        feed_silently(model, session, PREFIX[:base], min(step, rows))
        assert (session.reachable(CHUNK) == 0) == kind.startswith("gemma3"), "windows leave their beginnings behind"
        computed = model.forward([Segment(session, tokens, parents)])[0]
        logits = np.array([computed.logits(row) for row in range(count)])
        last: list[int] = []
        for leaf in sorted({count - 1, *chance.sample(range(count), min(2, count))}):
            last = path_to(leaf, parents)
            expected = reference.rows(base, [tokens[row] for row in last])
            assert same_bits(logits[last], expected), (leaf, last)
        session.commit(last)  # where the reference is now
        assert same_cache(cached(model, session), cached(reference.model, reference.session))
        following = [chance.randrange(VOCABULARY) for _ in range(3)]
        assert same_bits(feed(model, session, following), one_by_one(reference.model, reference.session, following))
    finally:
        session.close()


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


# With these numbers of rows a forward shares chunks among threads (few) or gives each whole tiles (many). The first
# rows of all lie before a border between chunks or blocks, the others behind it.
AROUND_BORDERS = [
    (8 * CHUNK - 3, 1),
    (8 * CHUNK - 3, 7),
    (8 * CHUNK - 2, 40),
    (33 * BLOCK - 5, 12),
    (34 * BLOCK - 30, 100),
    (9 * CHUNK - 1, 8),
    (9 * CHUNK - 40, 90),
]


@pytest.mark.parametrize("kind", ["Q4_0", "F16", "gemma3", "gemma3 wide"])
def test_long_contexts(models: Models, kind: str) -> None:
    for number, (base, count) in enumerate(AROUND_BORDERS):
        check_tree(models, kind, BEST, 1, base, count, step=[512, 300, 96][number % 3])


@pytest.mark.parametrize("isa", OTHERS)
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "gemma3 wide"])
def test_long_contexts_on_any_instruction_set(models: Models, kind: str, isa: str) -> None:
    check_tree(models, kind, isa, 1, 4 * CHUNK - 2, 40, step=512)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("kind", ["Q4_0", "gemma3 wide"])
def test_long_contexts_on_any_number_of_threads(models: Models, kind: str, threads: int) -> None:
    for base, count in AROUND_BORDERS:
        check_tree(models, kind, BEST, threads, base, count, step=512)
