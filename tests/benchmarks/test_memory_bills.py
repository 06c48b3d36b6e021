"""Bills of drafters against what a process grows by. The model is large enough for that to be seen."""

from pathlib import Path

import pytest

from benchmarks.memory_bills import CASES, Case, Found, measured
from slipstream.engine import loading
from tests.tiny_models import Shape, tiny_llama

SHAPE = Shape(width=512, heads=8, head_size=64, feed_forward=2048, layers=12)
"""A copy in four bits takes 28 MB, and keys and values of 1024 tokens 25 MB."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bills")
    tiny_llama(folder / "big.gguf", storage="F16", shape=SHAPE)
    tiny_llama(folder / "small.gguf", storage="Q8_0", shape=SHAPE)
    return folder


@pytest.mark.parametrize(
    ("runtime", "draft", "predicted"),
    [
        ("native", "lowbit", False),
        ("native", "{folder}/small.gguf", False),
        ("native", "suffix", False),
        ("native", "none", True),
        ("llamacpp", "lowbit", False),
        ("llamacpp", "{folder}/small.gguf", False),
    ],
)
def test_a_bill_is_what_a_process_grows_by(
    folder: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, draft: str, predicted: bool
) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(folder / "cache"))
    case = Case(str(folder / "big.gguf"), draft.format(folder=folder), predicted)
    found = measured(case, 1024, runtime)
    assert found.agrees, found
    assert (found.stated > 50_000_000) == (draft not in ("suffix", "none")), found


def test_a_bill_that_is_off_is_seen() -> None:
    def found(stated: int, growth: int) -> Found:
        return Found({"total_bytes": stated}, growth)

    assert found(108_000_000, 100_000_000).agrees
    assert not found(112_000_000, 100_000_000).agrees
    assert not found(88_000_000, 100_000_000).agrees
    assert found(0, 3_000_000).agrees
    assert not found(0, 5_000_000).agrees


def test_no_named_drafter_is_forgotten() -> None:
    measured_ones = {case.draft.partition(":")[0] for case in CASES.values()}
    assert set(loading.NAMED) <= measured_ones
