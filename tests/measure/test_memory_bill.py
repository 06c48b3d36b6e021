from pathlib import Path

import numpy as np
import pytest

from slipstream.draft import ModelDrafter, OtherTokenizerDrafter, SuffixDrafter
from slipstream.draft.base import BaseDrafter
from slipstream.engine import Engine, ModelOptions
from slipstream.measure.memory_bill import MemoryBill, kv_bytes_of, kv_bytes_per_token, memory_bill
from slipstream.models import GgufHeader, read_model_header
from slipstream.models.low_bit import write_low_bit
from slipstream.runtime import RuntimeName
from slipstream.runtime.native import load_native
from slipstream.runtime.native.loading import plan
from slipstream.tokenizer import load_tokenizer
from tests.fakes import FakeModel
from tests.tiny_models import GROUPED, Shape, tiny_decoder, tiny_llama


def header(**metadata: object) -> GgufHeader:
    values = {"general.architecture": "llama", "llama.block_count": 4, "llama.embedding_length": 64}
    values |= {f"llama.attention.{key}": value for key, value in metadata.items()}
    return GgufHeader(Path("model.gguf"), 3, values, (), 0, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"head_count": 8, "head_count_kv": 2}, 4 * 2 * 16 * 2),
        ({"head_count": 8}, 4 * 8 * 16 * 2),
        ({"head_count": 8, "head_count_kv": 2, "key_length": 32, "value_length": 16}, 4 * 2 * 48 * 2),
        ({"head_count": 8, "head_count_kv": np.array([1, 2, 0, 1])}, 4 * 16 * 2),
        ({"head_count": 8, "head_count_kv": np.array([1, 2])}, 4 * 8 * 16 * 2),
        ({}, None),
    ],
)
def test_bytes_of_a_token_follow_from_the_header(metadata: dict[str, object], expected: int | None) -> None:
    assert kv_bytes_per_token(header(**metadata)) == expected


@pytest.mark.parametrize("shape", [Shape(), GROUPED])
def test_the_header_s_bytes_are_what_a_runtime_takes(tmp_path: Path, shape: Shape) -> None:
    path = tiny_llama(tmp_path / "model.gguf", shape=shape)
    head = read_model_header(path)
    model = load_native(path, context_length=512)
    try:
        expected = kv_bytes_per_token(head)
        assert expected is not None
        assert kv_bytes_of(model, head) == expected
        bill = memory_bill([ModelDrafter(model)], expected, [head])
        assert bill.total == model.memory()
        other = memory_bill([OtherTokenizerDrafter(model, model.vocabulary)], expected, [head])
        assert other.buffers - bill.buffers == load_tokenizer(head).memory > 0
        assert bill.context == 512
        assert bill.target_context == round((bill.weights + bill.kv_cache) / expected)
        assert bill.formats == {"F32": head.tensor_bytes}
    finally:
        model.close()


def test_layers_with_a_window_take_nothing_more_once_it_is_full(tmp_path: Path) -> None:
    extra = {"gemma3.attention.sliding_window": 64}
    path = tiny_decoder(tmp_path / "model.gguf", "gemma3", shape=GROUPED, extra=extra)
    head = read_model_header(path)
    model = load_native(path, context_length=512)
    windows = plan(head).decoder.windows()
    try:
        assert 0 < windows.count(0) < len(windows)
        full = kv_bytes_per_token(head)
        assert full is not None
        assert kv_bytes_of(model, head) == full * windows.count(0) / len(windows)
    finally:
        model.close()


def drafter(context: int = 99) -> ModelDrafter:
    return ModelDrafter(FakeModel(context_length=context))


def test_a_model_that_tells_no_parts_is_all_weights() -> None:
    assert memory_bill([drafter()], 0.5) == MemoryBill(weights=1, context=99, target_context=2)
    assert memory_bill([drafter()], None).target_context is None


def test_two_models_are_added_up() -> None:
    bill = memory_bill([drafter(), drafter(50)], 0.5)
    assert bill == MemoryBill(weights=2, context=99, target_context=4)


class Hoarder(BaseDrafter):
    """Has no model, and something else that is large."""

    def memory(self) -> int:
        return 1000


def test_a_drafter_without_a_model_tells_what_it_takes() -> None:
    bill = memory_bill([drafter(), Hoarder()], 0.5)
    assert bill == MemoryBill(weights=1, context=99, target_context=2002, own=1000)
    assert bill.total == bill.as_dict()["total_bytes"] == 1001


def test_rows_that_are_no_whole_blocks_are_on_the_bill(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "x.gguf", storage="F16", shape=Shape(feed_forward=80))
    write_low_bit(read_model_header(source), tmp_path / "copy.gguf", lambda done: None)
    copy = read_model_header(tmp_path / "copy.gguf")
    bill = memory_bill([drafter()], None, [copy])
    assert set(bill.formats) == {"Q4_0", "Q8_0", "F16", "F32"}
    assert sum(bill.formats.values()) == copy.tensor_bytes
    assert bill.fallen_back == {"F16": 2 * 64 * 80 * 2}
    assert bill.as_dict()["fallen_back_bytes"] == {"F16": 2 * 64 * 80 * 2}


def test_no_model_costs_nothing() -> None:
    bill = memory_bill([SuffixDrafter()], 100)
    assert bill.total == 0
    assert bill.as_dict()["target_context_tokens"] == 0


@pytest.mark.parametrize("runtime", ["native", "llamacpp"])
def test_the_bill_of_layers_is_what_memory_grew_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: RuntimeName
) -> None:
    """Nothing where the target runs them itself, and a copy's weights, cache and buffers where it cannot."""
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    path = tiny_llama(tmp_path / "model.gguf", shape=Shape(layers=6))
    options = ModelOptions(runtime=runtime, draft_runtime=runtime, context_length=512, threads=1)
    with Engine.load(path, speculation="off", options=options) as plain:
        before = sum(plain.memory().values())
        with plain.sharing(draft="layers", speculation="on") as engine:
            engine.generate([40, 41, 42], seed=1, max_tokens=20)
            grown = sum(engine.memory().values()) - before
            bill = memory_bill(engine.drafters, kv_bytes_of(plain.target, read_model_header(path)))
    assert bill.total == grown
    assert (bill.total > 0) == (runtime == "llamacpp")
    assert bill.context == (512 if runtime == "llamacpp" else 0)
