"""Heads on the native runtime: the numbers of a plain PyTorch implementation, and the same bits in any company."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from slipstream.core.protocols import Continuation, Segment
from slipstream.errors import ModelFileError, RuntimeUnavailableError, UnsupportedModelError
from slipstream.models import read_header, read_model_header
from slipstream.models.head_checkpoints import convert
from slipstream.models.heads import read_head
from slipstream.policy.profile import profile
from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.head import MAX_HEAD_ROWS, NativeHead, head_memory, load_native_head
from tests.fakes import FakeModel
from tests.runtime.native.helpers import same_bits
from tests.tiny_heads import SMALL_HEAD, Facts, HeadShape, head_arrays, tiny_checkpoint, tiny_head
from tests.tiny_models import GROUPED, tiny_llama

TOKENS = [5, 80, 3, 77, 260, 9, 9, 41, 100, 200, 31, 7, 66, 12, 250, 1]
HALF_PRECISION = 2e-3
"""Keys and values are kept in half precision."""

SHAPES = [
    SMALL_HEAD,
    replace(SMALL_HEAD, norm_before_residual=True),
    replace(SMALL_HEAD, norm_before_fc=True, key_value_heads=4),
    replace(SMALL_HEAD, width=96, own_embedding=True, heads=2, key_value_heads=1, head_size=64),
    replace(SMALL_HEAD, drafted=None),
    replace(SMALL_HEAD, direct=True),
]


@pytest.fixture(scope="module")
def target_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("head") / "target.gguf", shape=GROUPED)


@pytest.fixture(scope="module")
def target(target_file: Path) -> Iterator[NativeModel]:
    model = load_native(target_file, context_length=256, max_sequences=2, threads=1)
    yield model
    model.close()


def load(path: Path, target: NativeModel, target_file: Path, *, threads: int = 1) -> NativeHead:
    return load_native_head(read_head(path), target, read_model_header(target_file), max_sequences=3, threads=threads)


def hidden_states(target: NativeModel, tokens: Sequence[int], layers: Sequence[int]) -> NDArray[np.float32]:
    """[n, layers * width] of a text."""
    session = target.open_session()
    rows = target.forward([Segment(session, tokens)], hidden=layers)[0]
    states = np.array([np.concatenate([rows.hidden(row, layer) for layer in layers]) for row in range(len(tokens))])
    session.close()
    return states


def grown(
    head: NativeHead, states: NDArray[np.float32], tokens: Sequence[int], steps: int
) -> list[NDArray[np.float32]]:
    """Logits and own state after what was read, and after each of `steps` tokens that go on from the head's own."""
    session, found = head.open_session(), []
    one = Continuation(session, tokens[: len(states)], states, own=False)
    for step in range(steps + 1):
        rows = head.go_on([one])[0]
        last = len(one.tokens) - 1
        session.commit(range(last + 1))
        found += [rows.logits(last).copy(), rows.hidden(last, 0).copy()]
        behind = len(states) + step
        one = Continuation(session, tokens[behind : behind + 1], found[-1][None], own=True)
    session.close()
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_are_those_of_plain_pytorch(
    tmp_path: Path, target: NativeModel, target_file: Path, shape: HeadShape
) -> None:
    torch = pytest.importorskip("torch")
    from tests.runtime.native.head_reference import Reference

    head = load(tiny_head(tmp_path / "head.gguf", target_file, shape, seed=3), target, target_file)
    hidden = hidden_states(target, TOKENS[:8], head.hidden_layers)
    found = grown(head, hidden, TOKENS[1:], 4)

    weights = head_arrays(Facts.of(target_file), shape, 3)
    table = weights.get("embed_tokens.weight", target.embeddings(range(target.vocabulary.size)))
    reference = Reference(weights, shape, table)
    states = reference.fused(torch.as_tensor(hidden))
    for step in range(5):
        logits, own = reference.rows(states, TOKENS[1 : 1 + len(states)])
        for expected, what in ((logits[-1], found[2 * step]), (own[-1], found[2 * step + 1])):
            assert np.abs(expected.numpy() - what).max() < HALF_PRECISION * float(expected.abs().max())
        states = torch.cat([states, own[-1:]])
    head.close()


@pytest.mark.parametrize("storage", ["F32", "Q8_0", "Q4_0"])
def test_a_row_s_bits_are_the_same_in_any_company(
    tmp_path: Path, target: NativeModel, target_file: Path, storage: str
) -> None:
    path = tiny_head(tmp_path / "head.gguf", target_file, replace(SMALL_HEAD, norm_before_fc=True), storage=storage)
    alone = load(path, target, target_file)
    hidden = hidden_states(target, TOKENS, alone.hidden_layers)[:-1]
    expected = grown(alone, hidden, TOKENS[1:], 0)
    crowd = load(path, target, target_file, threads=3)
    sessions = [crowd.open_session() for _ in range(3)]
    for first, last in ((0, 1), (1, 4), (4, 11), (11, 15)):
        states, tokens = hidden[first:last], TOKENS[1 + first : 1 + last]
        other = Continuation(sessions[1], tokens[:1], states[:1, : crowd.width], own=True)
        third = Continuation(sessions[2], tokens[::-1], np.ascontiguousarray(states[::-1]), own=False)
        rows = crowd.go_on([other, Continuation(sessions[0], tokens, states, own=False), third])[1]
        found = [rows.logits(len(tokens) - 1).copy(), rows.hidden(len(tokens) - 1, 0).copy()]
        for session, count in zip(sessions, (len(tokens), 1, len(tokens)), strict=True):
            session.commit(range(count))
    assert all(same_bits(one, other) for one, other in zip(expected, found, strict=True))
    for head in (alone, crowd):
        head.close()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_checkpoint_becomes_the_same_head(tmp_path: Path, target: NativeModel, target_file: Path, kind: str) -> None:
    folder = tiny_checkpoint(tmp_path / "checkpoint", target_file, kind=kind)
    convert(folder, read_header(target_file), tmp_path / "converted.gguf")
    made, written = read_head(tmp_path / "converted.gguf"), tiny_head(tmp_path / "h.gguf", target_file, storage="Q8_0")
    assert made.target_layers == read_head(written).target_layers
    assert np.array_equal(made.draft_tokens, read_head(written).draft_tokens)  # type: ignore[arg-type]
    found = []
    for path in (made.header.path, written):
        head = load(path, target, target_file)
        found.append(grown(head, hidden_states(target, TOKENS[:6], head.hidden_layers), TOKENS[1:], 2))
        head.close()
    for one, other in zip(*found, strict=True):
        if kind == "F32":
            assert same_bits(one, other)
        else:
            assert np.abs(one - other).max() < 0.1 * np.abs(other).max()


def test_the_target_s_output_serves_a_head_without_one(tmp_path: Path, target: NativeModel, target_file: Path) -> None:
    shape = replace(SMALL_HEAD, drafted=None, own_output=False)
    head = load(tiny_head(tmp_path / "head.gguf", target_file, shape), target, target_file)
    logits = grown(head, hidden_states(target, TOKENS[:4], head.hidden_layers), TOKENS[1:], 0)[0]
    assert len(logits) == target.vocabulary.size
    head.close()


def test_memory_is_what_was_foretold(tmp_path: Path, target: NativeModel, target_file: Path) -> None:
    path = tiny_head(tmp_path / "head.gguf", target_file)
    head = load(path, target, target_file)
    foretold = head_memory(
        read_head(path), read_model_header(target_file), context_length=256, threads=1, max_sequences=3
    )
    assert head.memory() == sum(foretold)
    assert head.memory_parts == foretold._asdict()
    assert foretold.buffers > 6 * MAX_HEAD_ROWS * 3 * target.width, "hidden states and their codes"
    head.close()


def test_its_costs_can_be_measured(tmp_path: Path, target: NativeModel, target_file: Path) -> None:
    head = load(tiny_head(tmp_path / "head.gguf", target_file), target, target_file)
    table = profile(head, 0.05, drafts=True)
    assert table.seconds(1) > 0
    head.close()
    with pytest.raises(RuntimeUnavailableError, match="has been closed"):
        head.open_session()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["fc.weight", "blk.0.attn_norm_2.weight", "blk.0.ffn_down.weight", "output.weight"])
def test_weights_that_are_no_numbers_are_refused(
    tmp_path: Path, target: NativeModel, target_file: Path, name: str, value: float
) -> None:
    path = tiny_head(tmp_path / "head.gguf", target_file)
    tensor = next(one for one in read_header(path).tensors if one.name == name)
    with path.open("r+b") as file:
        file.seek(tensor.offset + tensor.nbytes // 8 * 4)
        file.write(np.float32(value).tobytes())
    with pytest.raises(ModelFileError, match="weights are not all numbers"):
        load(path, target, target_file)


def test_another_runtime_s_target_is_refused(tmp_path: Path, target_file: Path) -> None:
    head = read_head(tiny_head(tmp_path / "head.gguf", target_file))
    with pytest.raises(UnsupportedModelError, match="only the native runtime"):
        load_native_head(head, FakeModel(), read_model_header(target_file))


def test_a_head_s_tensors_have_types_that_are_known(tmp_path: Path, target: NativeModel, target_file: Path) -> None:
    path = tiny_head(tmp_path / "head.gguf", target_file, storage="Q8_0")
    content = path.read_bytes()
    name = b"blk.0.attn_norm.weight"
    at = content.index(name) + len(name) + 4 + 8
    path.write_bytes(content[:at] + (28).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(ModelFileError):
        load(path, target, target_file)
