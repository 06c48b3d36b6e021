"""What a native model computes, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from slipstream.core.protocols import Segment
from slipstream.errors import ContextLimitError, RuntimeUnavailableError, UsageError
from slipstream.models.gguf import read_model_header
from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.session import NativeSession
from tests.runtime.native.against_llamacpp import EXACT, TOKENS, distance, native_logits
from tests.runtime.native.helpers import FORMATS, SUPER_FORMATS, feed, same_bits, shape_for
from tests.tiny_models import GROUPED, Shape, sentencepiece, tiny_llama

ALL_LAYERS = range(GROUPED.layers)


# ---- Against llama.cpp -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        GROUPED,
        Shape(heads=3, key_value_heads=1, layers=2),
        Shape(width=96, heads=2, head_size=64),
        Shape(width=128, heads=2, head_size=128, feed_forward=160),
        Shape(width=64, heads=40, key_value_heads=1, layers=1),
    ],
    ids=str,
)
def test_shapes(tmp_path: Path, shape: Shape, tied: bool) -> None:
    """Grouped heads (one group larger than what attends together), other head sizes."""
    assert distance(tiny_llama(tmp_path / "it.gguf", shape=shape, tied=tied)) < EXACT


@pytest.mark.parametrize(("storage", "most"), [("F16", 3e-3), ("BF16", 2e-2)])
def test_numbers(tmp_path: Path, storage: str, most: float) -> None:
    assert distance(tiny_llama(tmp_path / "it.gguf", shape=GROUPED, storage=storage)) < most


@pytest.mark.parametrize("storage", [storage for storage in FORMATS if storage not in ("F32", "F16", "BF16")])
def test_quantised_formats(tmp_path: Path, storage: str) -> None:
    """The two round activations differently, for super-blocks llama.cpp with one scale for 256; a wrong weight or scale
    would move logits by their own size.
    """
    most = 5e-2 if storage in SUPER_FORMATS else 3e-2
    assert distance(tiny_llama(tmp_path / "it.gguf", shape=shape_for(storage), storage=storage)) < most


def test_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    assert distance(tiny_llama(tmp_path / "it.gguf", vocabulary=sentencepiece())) < EXACT


@pytest.mark.parametrize(
    "extra",
    [
        {"llama.rope.freq_base": 500000.0},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scale_linear": 2.0},
        {"llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.factor": 4.0, "llama.rope.scale_linear": 2.0},
        {"llama.rope.scaling.factor": 0.0, "llama.rope.scale_linear": 2.0},
        {"llama.rope.scaling.type": "linear", "llama.rope.scale_linear": 2.0},
        {"llama.rope.scaling.type": "none", "llama.rope.scale_linear": 2.0},
        {"llama.rope.scaling.factor": 0.5, "llama.rope.scaling.attn_factor": 1.0},
        {"llama.attention.layer_norm_rms_epsilon": 0.1},
    ],
    ids=str,
)
def test_metadata_that_changes_the_numbers(tmp_path: Path, extra: dict[str, float | str]) -> None:
    path = tiny_llama(tmp_path / "it.gguf", shape=GROUPED, extra=extra)
    assert distance(path) < EXACT


def test_rotary_factors_of_llama_3(tmp_path: Path) -> None:
    factors = np.geomspace(1, 8, GROUPED.head_size // 2).astype(np.float32)
    path = tiny_llama(tmp_path / "it.gguf", shape=GROUPED, tensors={"rope_freqs.weight": factors})
    assert distance(path) < EXACT
    plain = native_logits(tiny_llama(tmp_path / "plain.gguf", shape=GROUPED))
    assert np.abs(native_logits(path) - plain).max() > 0.1


def test_half_a_head_that_is_rotated(tmp_path: Path) -> None:
    """llama.cpp has no such llama; but it is a whole head's rotation in which the other half stands still.

    base^(-2i / 64) = (base^2)^(-2i / 128), and a frequency divided by 1e30 is 0.
    """
    whole, half = Shape(heads=2, head_size=128), Shape(heads=2, head_size=128, rotary=64)
    factors = np.repeat([1, 1e30], 32).astype(np.float32)
    extra = {"llama.rope.freq_base": 1e8}
    still = tiny_llama(tmp_path / "a.gguf", shape=whole, extra=extra, tensors={"rope_freqs.weight": factors})
    logits = native_logits(tiny_llama(tmp_path / "b.gguf", shape=half))
    np.testing.assert_allclose(logits, native_logits(still), atol=1e-3)
    assert np.abs(logits - native_logits(tiny_llama(tmp_path / "c.gguf", shape=whole))).max() > 0.1


def test_norms_that_are_not_one(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    names = [f"blk.{layer}.{norm}.weight" for layer in ALL_LAYERS for norm in ("attn_norm", "ffn_norm")]
    norms = {
        name: chance.uniform(0.5, 1.5, GROUPED.width).astype(np.float32) for name in [*names, "output_norm.weight"]
    }
    assert distance(tiny_llama(tmp_path / "it.gguf", shape=GROUPED, tensors=norms)) < EXACT


# ---- Rows ------------------------------------------------------------------------------------------------------------


def test_what_it_says_of_itself(model: NativeModel, file: Path) -> None:
    assert (model.name, model.runtime, model.notice) == (file.name, "native", None)
    can = model.capabilities
    assert (can.rollback, can.trees, can.bit_exact_rows, can.hidden_states, can.layer_subsets) == (True,) * 5
    assert (model.context_length, model.max_rows, model.threads) == (256, 64, 1)
    assert (model.layer_count, model.width) == (GROUPED.layers, GROUPED.width)


def test_context_matters(model: NativeModel) -> None:
    one = feed(model, model.open_session(), [40, 41, 42])[-1]
    other = feed(model, model.open_session(), [43, 41, 42])[-1]
    assert np.abs(one - other).max() > 0.1


def test_logits_are_views_that_cannot_be_written(model: NativeModel) -> None:
    rows = model.forward([Segment(model.open_session(), [40, 41, 42])])[0]
    first, again = rows.logits(1), rows.logits(1)
    assert (first.shape, first.dtype, first.flags.c_contiguous) == ((model.vocabulary.size,), np.float32, True)
    assert np.shares_memory(first, again)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0


def test_rows_end_with_the_next_forward(model: NativeModel) -> None:
    session = model.open_session()
    rows = model.forward([Segment(session, [40])], hidden=[0])[0]
    model.forward([Segment(session, [41])])
    for use in (lambda: rows.logits(0), lambda: rows.top(0, 1), lambda: rows.hidden(0, 0)):
        with pytest.raises(AssertionError, match="valid until the model's next forward"):
            use()


def test_only_rows_that_were_asked_for_have_logits(model: NativeModel) -> None:
    first, second, third = (model.open_session() for _ in range(3))
    whole = model.forward([Segment(first, [40, 41, 42, 43])])[0]
    expected = {row: np.array(whole.logits(row)) for row in (2, 3)}
    batch = [
        Segment(first, [40, 41, 42, 43], outputs=2),
        Segment(second, [50, 51], outputs=0),
        Segment(third, [40, 41, 42, 43], outputs=1),
    ]
    some, none, last = model.forward(batch)
    for rows, present, absent in ((some, [2, 3], [0, 1, 4, -1]), (none, [], [0, 1]), (last, [3], [0, 2])):
        for row in present:
            assert same_bits(rows.logits(row), expected[row])
        for row in absent:
            with pytest.raises(AssertionError, match="no logits were asked for"):
                rows.logits(row)


def test_top_is_the_largest_first(model: NativeModel) -> None:
    rows = model.forward([Segment(model.open_session(), [40, 41])])[0]
    logits = rows.logits(1)
    ids, values = rows.top(1, 7)
    order = np.lexsort((np.arange(len(logits)), -logits))[:7]
    assert (ids == order).all()
    assert (values == logits[order]).all()


# ---- Hidden states ---------------------------------------------------------------------------------------------------


def test_the_last_hidden_state_gives_the_logits(tmp_path: Path) -> None:
    chance = np.random.default_rng(2)
    norm = chance.uniform(0.5, 1.5, GROUPED.width).astype(np.float32)
    output = chance.standard_normal((271, GROUPED.width)).astype(np.float32)
    path = tiny_llama(
        tmp_path / "it.gguf", shape=GROUPED, tensors={"output_norm.weight": norm, "output.weight": output}
    )
    model = load_native(path, context_length=64, threads=1)
    batch = [Segment(model.open_session(), [40, 41, 42], outputs=2)]
    rows = model.forward(batch, hidden=[GROUPED.layers - 1])[0]
    for row in (1, 2):
        state = rows.hidden(row, GROUPED.layers - 1).astype(np.float64)
        assert state.shape == (GROUPED.width,)
        normalised = state / np.sqrt(np.mean(state**2) + 1e-5) * norm
        np.testing.assert_allclose(rows.logits(row), output @ normalised, atol=2e-5)
    model.close()


def test_hidden_states_belong_to_their_rows(model: NativeModel) -> None:
    """In a batch of a chain and a tree, each row's states are those of its own tokens alone."""
    chain, tree, alone = (model.open_session() for _ in range(3))
    batch = [Segment(chain, [50, 51], outputs=0), Segment(tree, [40, 41, 42], [-1, -1, 0], outputs=1)]
    rows = model.forward(batch, hidden=[0, 2])
    found = {(0, 1): rows[0], (1, 1): rows[1], (1, 2): rows[1]}
    texts = {(0, 1): [50, 51], (1, 1): [41], (1, 2): [40, 42]}
    states = {key: [np.array(one.hidden(key[1], layer)) for layer in (0, 2)] for key, one in found.items()}
    for key, text in texts.items():
        single = model.forward([Segment(alone, text, outputs=0)], hidden=[0, 2])[0]
        for layer, state in zip((0, 2), states[key], strict=True):
            assert same_bits(state, single.hidden(len(text) - 1, layer))


def test_hidden_states_that_nobody_asked_for(model: NativeModel) -> None:
    rows = model.forward([Segment(model.open_session(), [40])], hidden=[1])[0]
    with pytest.raises(RuntimeError, match="no hidden states of this layer were asked for"):
        rows.hidden(0, 2)


@pytest.mark.parametrize("row", [-1, 2, 4])
def test_hidden_states_of_rows_that_are_not_in_the_segment(model: NativeModel, row: int) -> None:
    """Its neighbours in the batch have states there."""
    before, middle, after = (Segment(model.open_session(), tokens) for tokens in ([40, 41], [42, 43], [44, 45]))
    rows = model.forward([before, middle, after], hidden=[0])[1]
    assert rows.hidden(1, 0).shape == (model.width,)
    with pytest.raises(AssertionError, match=f"no row {row} among the 2 of this segment"):
        rows.hidden(row, 0)


# ---- Layer subsets ---------------------------------------------------------------------------------------------------


def test_all_layers_named_are_all_layers(model: NativeModel) -> None:
    one, other = model.open_session(), model.open_session()
    whole, named = feed(model, one, [40, 41, 42]), []
    for token in (40, 41, 42):
        named.append(np.array(model.forward([Segment(other, [token])], layers=ALL_LAYERS)[0].logits(0)))
        other.hold([0])
    assert same_bits(whole, np.array(named))
    assert (one.length, other.length) == (3, 0)


def test_a_subset_computes_something_else_and_leaves_no_trace(model: NativeModel) -> None:
    one, other = model.open_session(), model.open_session()
    feed(model, one, [40, 41])
    feed(model, other, [40, 41])
    expected = np.array(model.forward([Segment(other, [42])])[0].logits(0))
    drafted = np.array(model.forward([Segment(one, [42])], layers=[1])[0].logits(0))
    one.hold([0])
    assert np.abs(drafted - expected).max() > 0.1
    model.forward([Segment(one, [43, 44], [-1, -1])], layers=[1])
    one.hold([1])
    assert same_bits(model.forward([Segment(one, [42])])[0].logits(0), expected)


def test_a_subset_is_the_model_without_the_other_layers(tmp_path: Path) -> None:
    """Layer 1 of three left out is the file with layers 0 and 2."""
    whole = load_native(tiny_llama(tmp_path / "a.gguf", shape=GROUPED), context_length=64, threads=1)
    session = whole.open_session()
    drafted = whole.forward([Segment(session, [40, 41, 42])], layers=[0, 2])[0].logits(2)
    kept = {f"blk.1.{part}": _tensor(tmp_path / "a.gguf", f"blk.2.{part}") for part in PARTS}
    two = Shape(**{**vars_of(GROUPED), "layers": 2})
    same = {name: _tensor(tmp_path / "a.gguf", name) for name in ("token_embd.weight", "output.weight", *FIRST)}
    cut = load_native(tiny_llama(tmp_path / "b.gguf", shape=two, tensors=same | kept), context_length=64, threads=1)
    assert same_bits(feed(cut, cut.open_session(), [40, 41, 42])[2], np.array(drafted))
    cut.close()
    whole.close()


PARTS = [
    f"{part}.weight"
    for part in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
]
FIRST = [f"blk.0.{part}" for part in PARTS]


def vars_of(shape: Shape) -> dict[str, int | None]:
    return {name: getattr(shape, name) for name in shape.__dataclass_fields__}


def _tensor(path: Path, name: str) -> NDArray[np.float32]:
    gguf = pytest.importorskip("gguf")
    return next(np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)


# ---- What is refused -------------------------------------------------------------------------------------------------


def test_the_context_is_full(model: NativeModel) -> None:
    session = model.open_session()
    for start in range(0, 250, 50):
        feed(model, session, range(start, start + 50))
    before = np.array(model.forward([Segment(session, [40])])[0].logits(0))
    with pytest.raises(ContextLimitError) as caught:
        model.forward([Segment(session, range(7))])
    assert str(caught.value) == (
        "The context is full: it holds 256 tokens, 250 are in use and 7 more are needed; "
        "shorten the text or load the model with a longer context."
    )
    assert session.length == 250
    assert same_bits(model.forward([Segment(session, [40])])[0].logits(0), before)
    feed(model, session, range(6))
    assert session.length == 256


def test_a_full_context_of_one_leaves_the_others_of_the_batch_alone(model: NativeModel) -> None:
    full, other = model.open_session(), model.open_session()
    for start in range(0, 256, 64):
        feed(model, full, range(start, start + 64))
    with pytest.raises(ContextLimitError):
        model.forward([Segment(other, [40]), Segment(full, [40])])
    assert (full.length, other.length) == (256, 0)
    assert same_bits(feed(model, other, [40])[0], feed(model, model.open_session(), [40])[0])


def test_draft_rows_count_against_the_context(model: NativeModel) -> None:
    """Held rows take slots; the sentence is the same."""
    session = model.open_session()
    for start in range(0, 250, 50):
        feed(model, session, range(start, start + 50))
    model.forward([Segment(session, range(6))], layers=[0])
    session.hold(range(6))
    with pytest.raises((ContextLimitError, RuntimeError), match="context is full"):
        model.forward([Segment(session, [1])], layers=[0])
    model.forward([Segment(session, [1])])


def test_more_rows_than_a_forward_takes(model: NativeModel) -> None:
    session = model.open_session()
    feed(model, session, range(64))
    with pytest.raises(AssertionError, match="65 rows in a forward of at most 64"):
        model.forward([Segment(session, range(65))])
    with pytest.raises(AssertionError, match="0 rows"):
        model.forward([])


@pytest.mark.parametrize(
    ("tokens", "parents", "outputs", "says"),
    [
        ([271], None, None, "a token that the vocabulary lacks"),
        ([-1], None, None, "a token that the vocabulary lacks"),
        ([1, 2], [-1, 1], None, "parents come before their children"),
        ([1, 2], [-1, -2], None, "parents come before their children"),
        ([1, 2], [-1], None, "one parent for each row"),
        ([1, 2], None, 3, "more outputs than rows"),
        ([1, 2], None, -1, "more outputs than rows"),
    ],
)
def test_mistakes_of_ours_are_caught(
    model: NativeModel, tokens: list[int], parents: list[int] | None, outputs: int | None, says: str
) -> None:
    session = model.open_session()
    with pytest.raises(RuntimeError, match=says):
        model.forward([Segment(session, tokens, parents, outputs)])
    assert session.length == 0
    feed(model, session, [1])


def test_segments_that_cannot_be(model: NativeModel, file: Path) -> None:
    session = model.open_session()
    with pytest.raises(RuntimeError, match="one segment for a session"):
        model.forward([Segment(session, [1]), Segment(session, [2])])
    with pytest.raises(RuntimeError, match="a segment needs rows"):
        model.forward([Segment(session, [1]), Segment(model.open_session(), [])])
    for layers in ([3], [-1]):
        with pytest.raises(RuntimeError, match="a layer that the model lacks"):
            model.forward([Segment(session, [1])], layers=layers)
    other = load_native(file, context_length=64, threads=1)
    with pytest.raises(AssertionError, match="a session of another model"):
        model.forward([Segment(other.open_session(), [1])])
    with pytest.raises(AssertionError, match="a session of another runtime"):
        model.forward([Segment(object(), [1])])  # type: ignore[arg-type]
    other.close()
    session.close()
    with pytest.raises(AssertionError, match="the session is closed"):
        model.forward([Segment(session, [1])])


def test_all_sessions_in_use(model: NativeModel) -> None:
    sessions = [model.open_session() for _ in range(3)]
    expected = "All 3 session(s) of tiny.gguf are in use; close one, or load the model with more sequences."
    for another in (model.open_session, lambda: sessions[0].fork(0)):
        with pytest.raises(RuntimeUnavailableError) as caught:
            another()
        assert str(caught.value) == expected
    sessions[1].close()
    model.open_session()


def test_a_closed_model(file: Path) -> None:
    model = load_native(file, context_length=64, threads=1)
    session = model.open_session()
    kept = model.forward([Segment(session, [40])])[0]
    view = kept.logits(0)
    before = np.array(view)
    model.close()
    model.close()
    for use in (model.open_session, model.profile, lambda: model.forward([Segment(session, [1])])):
        with pytest.raises(RuntimeUnavailableError, match="has been closed; load it again"):
            use()
    with pytest.raises(AssertionError, match="valid until"):
        kept.logits(0)
    assert session.length == 0
    session.close()
    assert same_bits(view, before)  # whoever keeps a view keeps its memory


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"context_length": 1}, "The context length must be from 2 to"),
        ({"context_length": 2049}, "was trained for a context of 2048 tokens and 2049 were asked for"),
        ({"max_sequences": 0}, "The number of sequences must be from 1 to 256, not 0."),
        ({"threads": 0}, "The number of threads must be from 1 to 512, not 0."),
        ({"max_rows": 1}, "The number of rows in one forward must be from 2 to"),
    ],
)
def test_sizes_that_cannot_be(file: Path, options: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_native(file, **options)  # type: ignore[arg-type]


# ---- Loading, memory -------------------------------------------------------------------------------------------------


def test_defaults(file: Path) -> None:
    model = load_native(file)
    assert (model.context_length, model.max_rows) == (2048, 512)
    assert model.threads >= 1
    model.open_session()
    model.close()


@pytest.mark.parametrize("storage", FORMATS)
def test_memory_is_what_was_said_before(tmp_path: Path, storage: str) -> None:
    shape = shape_for(storage)
    path = tiny_llama(tmp_path / "it.gguf", shape=shape, storage=storage)
    model = load_native(path, context_length=100, max_sequences=3, max_rows=64, threads=2)
    parts = model.memory_parts
    assert set(parts) == {"weights", "kv_cache", "buffers"}
    assert sum(parts.values()) == model.memory()
    assert parts["buffers"] == model.native.buffer_bytes()
    # two blocks of 64 for 100 tokens; keys and values of half precision
    assert parts["kv_cache"] == 3 * 128 * shape.layers * shape.keys * 2 * 2
    # blocks of 16 rows, cache lines of 64 bytes; scales of six bits in a file have eight in memory
    widened = {"Q3_K": (110, 114), "Q4_K": (144, 148), "Q5_K": (176, 180)}
    expected = 0
    for info in read_model_header(path).tensors:
        rows = info.shape[1] if len(info.shape) > 1 else 1
        packed, unpacked = widened.get(info.type.name, (1, 1))
        row_bytes = info.nbytes // rows // packed * unpacked
        expected += -(-(row_bytes * (-(-rows // 16) * 16)) // 64) * 64
    assert parts["weights"] == expected
    model.close()


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    apart = load_native(tiny_llama(tmp_path / "a.gguf"), context_length=64, threads=1)
    tied = load_native(tiny_llama(tmp_path / "b.gguf", tied=True), context_length=64, threads=1)
    assert apart.memory_parts["weights"] - tied.memory_parts["weights"] == 272 * 64 * 4  # rows come in sixteens
    apart.close()
    tied.close()


def test_progress_rises_to_one(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "it.gguf", shape=Shape(width=256, heads=4, head_size=64, feed_forward=1024))
    seen: list[float] = []
    load_native(path, context_length=64, threads=1, progress=seen.append).close()
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert seen[0] > 0
    assert seen[-1] == 1


def test_an_exception_in_progress_ends_loading(file: Path) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_native(file, context_length=64, threads=1, progress=stop)


def test_the_profile_names_every_stage(model: NativeModel) -> None:
    feed(model, model.open_session(), [40])
    profile = model.profile()
    assert set(profile) == {"prepare", "query_key_value", "attention", "projection", "gated_unit", "output"}
    assert all(seconds > 0 for seconds in profile.values())


def test_sessions_are_native(model: NativeModel) -> None:
    assert isinstance(model.open_session(), NativeSession)


# ---- What must not follow a mistake ----------------------------------------------------------------------------------


def test_a_refused_commit_moves_nothing(tmp_path: Path) -> None:
    model = load_native(tiny_llama(tmp_path / "m.gguf"), context_length=128, max_sequences=2, threads=1)
    session, plain = model.open_session(), model.open_session()
    feed(model, session, TOKENS[:5])
    model.forward([Segment(session, [1, 2, 3, 4, 5, 6, 7, 8], [-1, 0, 0, 2, 3, 4, 5, 6])])
    with pytest.raises(RuntimeError, match="parent"):
        session.commit([0, 2, 7])
    session.commit([0, 1])
    feed(model, plain, [*TOKENS[:5], 1, 2])
    assert same_bits(feed(model, session, [9]), feed(model, plain, [9]))
    model.close()


def test_hidden_states_outlive_their_forward(tmp_path: Path) -> None:
    model = load_native(tiny_llama(tmp_path / "m.gguf"), context_length=128, threads=1)
    session = model.open_session()
    kept = model.forward([Segment(session, TOKENS)], hidden=[0])[0].hidden(3, 0)
    before = kept.copy()
    for _ in range(3):
        model.forward([Segment(session, [5])], hidden=[0])
    model.close()
    assert same_bits(kept, before)


def test_layers_ascend_and_are_some(tmp_path: Path) -> None:
    model = load_native(tiny_llama(tmp_path / "m.gguf", shape=GROUPED), context_length=128, threads=1)
    session = model.open_session()
    for layers in ([1, 0], [1, 1]):
        with pytest.raises(RuntimeError, match="layers must ascend"):
            model.forward([Segment(session, [1])], layers=layers)
    with pytest.raises(AssertionError, match="a forward needs layers"):
        model.forward([Segment(session, [1])], layers=[])
    model.close()


def test_memory_counts_rows_that_give_logits(tmp_path: Path) -> None:
    model = load_native(tiny_llama(tmp_path / "m.gguf"), context_length=512, max_rows=256, threads=1)
    before = model.memory()
    model.forward([Segment(model.open_session(), [1] * 256)])
    assert model.memory() - before == (256 - 32) * 4 * -(-model.vocabulary.size // 16) * 16
    model.close()
