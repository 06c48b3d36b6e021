"""What `slipstream models --explain` says of a file; tiny models."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.measure import explanation
from slipstream.measure.explanation import explain
from slipstream.models import read_model_header
from slipstream.models.gguf import GgufHeader, TensorInfo
from slipstream.models.gguf_types import TENSOR_TYPES
from slipstream.runtime import LoadOptions
from slipstream.runtime.llamacpp import binding
from slipstream.runtime.native import load_native
from tests import fake_native
from tests.tiny_models import tiny_llama

ON_CPU = LoadOptions(gpu_layers=0, threads=1)
F32 = next(kind for kind in TENSOR_TYPES.values() if kind.name == "F32")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


@pytest.fixture(autouse=True)
def rate(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert found.tokens_per_second(0) == pytest.approx(1e9 / found.read)
    assert found.tokens_per_second(found.context) == pytest.approx(1e9 / (found.read + found.kv_cache))


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
    assert found.tokens_per_second(0) is None


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
