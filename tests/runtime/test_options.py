"""Options that cannot be are refused with the range; the rest resolve to what the library gets."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.errors import RuntimeUnavailableError, UsageError
from slipstream.runtime.llamacpp.options import ALL_LAYERS, Options


def header(trained: int | None) -> Any:
    return SimpleNamespace(context_length=trained, path=Path("model.gguf"))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"context_length": 0}, "context length must be from 2"),
        ({"max_sequences": 0}, "sequences must be from 1 to 256, not 0"),
        ({"max_sequences": 257}, "sequences must be from 1 to 256"),
        ({"threads": 0}, "threads must be from 1 to 512"),
        ({"batch_threads": -1}, "batch threads must be from 1 to 512"),
        ({"max_rows": 1}, "rows in one forward must be from 2"),
        ({"gpu_layers": -1}, "GPU layers must be from 0"),
        ({"gpu_layers": "some"}, "GPU layers must be one of auto, all, not 'some'"),
        ({"flash_attention": "maybe"}, "must be one of auto, off, on"),
        ({"kv_type_k": "q2_k"}, "keys must be one of f32, f16"),
        ({"kv_type_v": "int8"}, "values must be one of f32, f16"),
        ({"kv_type_v": "q8_0", "flash_attention": "off"}, "needs flash attention"),
    ],
)
def test_impossible_values(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        replace(Options(), **bad)


@pytest.mark.parametrize(
    ("asked", "trained", "given"),
    [(None, 8192, 4096), (None, 2048, 2048), (None, None, 4096), (8192, 8192, 8192), (9000, None, 9000)],
)
def test_context(asked: int | None, trained: int | None, given: int) -> None:
    assert Options(context_length=asked).context_for(header(trained)) == given


def test_a_context_beyond_training_is_refused() -> None:
    with pytest.raises(UsageError, match="trained for a context of 2048 tokens and 4096 were asked for"):
        Options(context_length=4096).context_for(header(2048))


@pytest.mark.parametrize(
    ("asked", "has_gpu", "given"),
    [("auto", False, 0), (0, False, 0), ("auto", True, ALL_LAYERS), ("all", True, ALL_LAYERS), (7, True, 7)],
)
def test_gpu_layers(asked: int | str, has_gpu: bool, given: int) -> None:
    assert Options(gpu_layers=asked).gpu_layers_for(has_gpu) == given


@pytest.mark.parametrize("asked", ["all", 1])
def test_gpu_layers_without_a_gpu(asked: int | str) -> None:
    with pytest.raises(RuntimeUnavailableError, match="sees no GPU"):
        Options(gpu_layers=asked).gpu_layers_for(has_gpu=False)


def test_batches_use_the_threads_of_single_rows_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.runtime.llamacpp.options.default_threads", lambda: 6)
    assert Options().thread_counts() == (6, 6)
    assert Options(threads=2).thread_counts() == (2, 2)
    assert Options(batch_threads=8).thread_counts() == (6, 8)
