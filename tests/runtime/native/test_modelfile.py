"""What an architecture reads from a header."""

from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from slipstream.models.gguf import GgufHeader, Value
from slipstream.runtime.native.modelfile import MOST, ModelFile, NotSupported


def model_file(**values: Value) -> ModelFile:
    """`rope__freq_base=1.0` sets llama.rope.freq_base."""
    metadata: dict[str, Value] = {f"llama.{key.replace('__', '.')}": value for key, value in values.items()}
    metadata["general.architecture"] = "llama"
    return ModelFile(GgufHeader(Path("it.gguf"), 3, MappingProxyType(metadata), (), 0, 0))


@pytest.mark.parametrize("value", [1, 576, MOST])
def test_sizes(value: int) -> None:
    assert model_file(width=value).integer("width") == value


@pytest.mark.parametrize("value", [0, -1, MOST + 1, 2**63, True, 1.0, "1", np.array([1, 2], np.int32)])
def test_sizes_that_are_none(value: Value) -> None:
    with pytest.raises(NotSupported, match="its width is not one whole number in a sensible range"):
        model_file(width=value).integer("width", 5)


def test_sizes_that_are_not_said() -> None:
    assert model_file().integer("width", 5) == 5
    with pytest.raises(NotSupported, match="it does not say its width"):
        model_file().integer("width")


@pytest.mark.parametrize("value", [1e-5, 1, 1e29])
def test_numbers(value: float) -> None:
    found = model_file(epsilon=value).number("epsilon")
    assert found == value
    assert isinstance(found, float)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e30, float("nan"), float("inf"), True, "1"])
def test_numbers_that_are_none(value: Value) -> None:
    with pytest.raises(NotSupported, match="its epsilon is not a sensible number"):
        model_file(epsilon=value).number("epsilon", 1.0)


def test_what_is_refused_where_it_is_set() -> None:
    for harmless in (model_file(), model_file(expert_count=0), model_file(expert_count=0.0)):
        harmless.refuse("expert_count", "it is a mixture of experts")
    for value in (8, 0.5, "some", True):
        with pytest.raises(NotSupported, match="it is a mixture of experts"):
            model_file(expert_count=value).refuse("expert_count", "it is a mixture of experts")


def test_rotary_frequencies() -> None:
    expected = [500.0 ** (-2 * pair / 64) for pair in range(32)]
    rotary = model_file(rope__freq_base=500.0).rotary(64)
    assert not rotary.halves
    np.testing.assert_allclose(rotary.frequencies, expected, rtol=1e-12)


def test_rotary_defaults() -> None:
    assert model_file().rotary(32).frequencies[1] == pytest.approx(10000.0 ** (-2 / 32))
    assert len(model_file(rope__dimension_count=32).rotary(64).frequencies) == 16


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        ({}, 1),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, 1),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, 4),
        ({"rope__scaling__type": "linear"}, 1),
        ({"rope__scale_linear": 8.0}, 8),
    ],
    ids=str,
)
def test_linear_scaling_divides_frequencies(scaling: dict[str, Value], factor: float) -> None:
    plain, scaled = model_file().rotary(32), model_file(**scaling).rotary(32)
    np.testing.assert_allclose(np.array(plain.frequencies) / factor, scaled.frequencies, rtol=1e-12)
