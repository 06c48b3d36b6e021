"""What `slipstream models --explain` says of a file; tiny models."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.engine.low_bit import low_bit_copy
from slipstream.errors import UsageError
from slipstream.measure import explanation
from slipstream.measure.explanation import explain
from slipstream.measure.memory_bill import kv_bytes_per_token
from slipstream.models import read_model_header
from slipstream.models.gguf import GgufHeader, TensorInfo
from slipstream.models.gguf_types import TENSOR_TYPES
from slipstream.runtime import LoadOptions, native
from slipstream.runtime.llamacpp import binding
from slipstream.runtime.native import load_native
from slipstream.runtime.native.loading import plan
from tests import fake_native
from tests.tiny_models import GROUPED, Shape, tiny_decoder, tiny_llama

ON_CPU = LoadOptions(gpu_layers=0, threads=1)
F32 = next(kind for kind in TENSOR_TYPES.values() if kind.name == "F32")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


@pytest.fixture(autouse=True)
def rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(explanation, "_read_rate", lambda read, threads: 1e9)


def header(metadata: Mapping[str, object], tensors: dict[str, int]) -> GgufHeader:
    """A header with tensors of so many bytes."""
    placed = tuple(TensorInfo(name, F32, (count // 4,), 0, count) for name, count in tensors.items())
    return GgufHeader(Path("x.gguf"), 3, {"general.architecture": "other", **metadata}, placed, 0, 0)  # type: ignore[dict-item]


def test_memory_is_what_loading_takes(tiny: Path) -> None:
    found = explain(read_model_header(tiny), LoadOptions(gpu_layers=0, threads=1, context_length=100))
    with_weights = load_native(tiny, context_length=100, threads=1)
    parts = with_weights.memory_parts
    with_weights.close()
    assert (found.runtime, found.context) == ("native", 100)
    assert {"weights": found.weights, "kv_cache": found.kv_cache, "buffers": found.buffers} == parts


def test_speed_is_bounded_by_what_a_token_reads(tiny: Path) -> None:
    found = explain(read_model_header(tiny), ON_CPU)
    assert found.kv_cache is not None
    assert found.first_rate == pytest.approx(1e9 / found.read)
    assert found.last_rate == pytest.approx(1e9 / (found.read + found.kv_cache))


def test_layers_with_a_window_read_no_more_than_it(tmp_path: Path) -> None:
    path = tiny_decoder(tmp_path / "x.gguf", "gemma3", shape=GROUPED, extra={"gemma3.attention.sliding_window": 64})
    found = explain(read_model_header(path), LoadOptions(gpu_layers=0, threads=1, context_length=512))
    windows = plan(read_model_header(path)).decoder.windows()
    per_token = kv_bytes_per_token(read_model_header(path))
    assert per_token is not None
    assert found.read_behind == per_token / len(windows) * sum(window or 512 for window in windows)


def test_the_instruction_set_is_the_one_that_is_used(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_ISA", "portable")
    assert explain(read_model_header(tiny), ON_CPU).computes_on == "CPU, 1 threads, portable"
    monkeypatch.setenv("SLIPSTREAM_ISA", "abacus")
    with pytest.raises(UsageError, match="abacus"):
        explain(read_model_header(tiny), ON_CPU)


def test_a_tokenizer_that_is_not_known_is_said(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Texts become tokens" not in explain(read_model_header(tiny), ON_CPU).reason
    head = read_model_header(tiny)
    other = replace(head, metadata={**head.metadata, "tokenizer.ggml.pre": "of-tomorrow"})
    assert "Texts become tokens by llama.cpp. " in explain(other, ON_CPU).reason
    monkeypatch.setattr(binding, "installed", lambda: False)
    assert "It is not installed; run: pip install" in explain(other, ON_CPU).reason


def test_what_is_read_is_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    asked: list[tuple[int, int]] = []

    def measure(threads: int, megabytes: int) -> float:
        asked.append((threads, megabytes))
        return 12.5

    monkeypatch.setattr(native, "measure_read", measure)
    monkeypatch.setattr(explanation, "available_memory", lambda: 2_000_000_000)
    assert explanation._read_rate(100_000_000, 3) == 12.5e9, "gigabytes a second"
    explanation._read_rate(1, 1)
    explanation._read_rate(10**12, 1)
    assert asked == [(3, 100), (1, 64), (1, 500)], "at least 64 MB, at most a quarter of what is free"
    monkeypatch.setattr(explanation, "available_memory", lambda: 100_000_000)
    assert explanation._read_rate(10**12, 1) is None
    assert len(asked) == 3


def test_why_not_the_native_runtime(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_native.install(monkeypatch, {tiny.name: "it is a test"})
    found = explain(read_model_header(tiny), ON_CPU)
    assert found.runtime == "llamacpp"
    assert "cannot run it: it is a test" in found.reason
    assert found.buffers is None
    assert found.weights == read_model_header(tiny).tensor_bytes


def test_what_is_not_installed_is_said(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "installed", lambda: False)
    found = explain(read_model_header(tiny), LoadOptions(runtime="llamacpp"))
    assert "It is not installed; run: pip install" in found.reason


def test_a_gpu_has_another_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "devices", lambda: ["CUDA0: a card (8 GiB)"])
    found = explain(read_model_header(tiny), LoadOptions(runtime="llamacpp"))
    assert found.computes_on == "CUDA0: a card (8 GiB) and CPU"
    assert found.read_rate is None
    assert found.first_rate is None
    assert found.last_rate is None


@pytest.mark.parametrize(
    ("tensors", "read"),
    [
        ({"token_embd.weight": 400, "output.weight": 400, "blk.0.attn_q.weight": 40}, 440),
        ({"token_embd.weight": 400, "blk.0.attn_q.weight": 40}, 440),
        ({"token_embd.weight": 400, "blk.0.ffn_up_exps.weight": 80, "blk.0.ffn_up_shexp.weight": 8}, 428),
    ],
)
def test_what_a_token_reads(tensors: dict[str, int], read: int) -> None:
    """Embeddings that are no output give a row each; of eight experts two are asked."""
    experts = {"other.expert_count": 8, "other.expert_used_count": 2}
    assert explain(header(experts, tensors), ON_CPU).read == read


def test_a_context_that_cannot_be_is_refused(tiny: Path) -> None:
    with pytest.raises(UsageError, match="trained for a context"):
        explain(read_model_header(tiny), LoadOptions(context_length=1 << 20, gpu_layers=0))


def test_low_bit_copies_are_explained_before_and_after_they_are_made(tmp_path: Path) -> None:
    shape = Shape(width=128, heads=2, feed_forward=80)
    target = read_model_header(tiny_llama(tmp_path / "big.gguf", storage="F16", shape=shape))
    [planned] = explain(target, ON_CPU).copies
    assert (planned.type, planned.made) == ("q4_0", False)
    for kind in ("q4_0", "q3_k_m"):
        low_bit_copy(target, kind, lambda done: None)
    by_kind = {one.type: one for one in explain(target, ON_CPU).copies}
    assert by_kind["q4_0"] == replace(planned, made=True)
    assert planned.fallen_back == {"F16": 2 * 128 * 80 * 2}
    wider = by_kind["q3_k_m"]
    assert wider.made
    assert set(wider.fallen_back) == set(wider.formats) - {"F32"}, "no row is a super-block"
    assert explain(target, ON_CPU).as_dict()["low_bit_copies"][0]["format_bytes"] == dict(planned.formats)


def test_a_model_of_few_bits_gets_no_copy(tmp_path: Path) -> None:
    small = read_model_header(tiny_llama(tmp_path / "small.gguf", storage="Q4_0"))
    assert explain(small, ON_CPU).copies == []
