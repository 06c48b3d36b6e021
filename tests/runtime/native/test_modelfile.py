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
    for value in (8, 0.5, "some", "", True, np.array([0, 0])):
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
        ({"rope__scaling__type": "none", "rope__scale_linear": 4.0}, 1),
        ({"rope__scaling__type": "linear"}, 1),
        ({"rope__scaling__type": "linear", "rope__scale_linear": 8.0}, 8),
        ({"rope__scaling__factor": 4.0}, 4),
        ({"rope__scaling__factor": 4.0, "rope__scale_linear": 8.0}, 4),
        ({"rope__scaling__factor": 0.0, "rope__scale_linear": 8.0}, 1),
        ({"rope__scale_linear": 8.0}, 8),
        ({"rope__scale_linear": 0.0}, 1),
        ({"rope__scaling__factor": 0.25, "rope__scaling__attn_factor": 1.0}, 0.25),
    ],
    ids=str,
)
def test_linear_scaling_divides_frequencies(scaling: dict[str, Value], factor: float) -> None:
    plain, scaled = model_file().rotary(32), model_file(**scaling).rotary(32)
    np.testing.assert_allclose(np.array(plain.frequencies) / factor, scaled.frequencies, rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rope__scaling__factor": 1e-40}, "impossible frequencies"),
        ({"rope__scaling__factor": -2.0}, "impossible frequencies"),
        ({"rope__scaling__factor": float("nan")}, "impossible frequencies"),
        ({"rope__scaling__factor": float("inf")}, "impossible frequencies"),
        ({"rope__freq_base": 1e-300}, "impossible frequencies"),
        ({"rope__freq_base": 5e-324, "rope__scaling__factor": float("inf")}, "impossible frequencies"),
        ({"rope__scaling__factor": 4}, "its rope.scaling.factor is not a sensible number"),
        ({"rope__scaling__factor": 4, "rope__scaling__type": "none"}, "its rope.scaling.factor is not"),
        ({"rope__scaling__factor": "4"}, "its rope.scaling.factor is not a sensible number"),
        ({"rope__scaling__factor": np.array([4.0, 4.0])}, "its rope.scaling.factor is not a sensible number"),
        ({"rope__scale_linear": True}, "its rope.scale_linear is not a sensible number"),
        ({"rope__scaling__type": 0}, "its rope.scaling.type is not a name"),
        ({"rope__scaling__type": np.array([0, 0])}, "its rope.scaling.type is not a name"),
        ({"rope__scaling__type": "Linear"}, "its rotary embedding is scaled by 'Linear'"),
        ({"rope__scaling__type": ""}, "its rotary embedding is scaled by ''"),
        ({"rope__scaling__attn_factor": 1.5}, "it sets rope.scaling.attn_factor"),
        ({"rope__scaling__attn_factor": 0.0}, "it sets rope.scaling.attn_factor"),
        ({"rope__scaling__attn_factor": 1}, "its rope.scaling.attn_factor is not a sensible number"),
    ],
    ids=str,
)
def test_scalings_that_are_none(values: dict[str, Value], says: str) -> None:
    with pytest.raises(NotSupported, match=says):
        model_file(**values).rotary(32)


def test_flags() -> None:
    assert [model_file(causal=value).flag("causal", True) for value in (False, True)] == [False, True]
    assert [model_file().flag("causal", default) for default in (False, True)] == [False, True]
    for value in (0, 1, 1.0, "true", np.array([True, True])):
        with pytest.raises(NotSupported, match="its causal is neither true nor false"):
            model_file(causal=value).flag("causal", True)


def test_sizes_that_have_a_limit_of_their_own() -> None:
    assert model_file(size=8).integer("size", most=8) == 8
    for file in (model_file(size=9), model_file()):
        with pytest.raises(NotSupported, match="its size is not one whole number in a sensible range"):
            file.integer("size", 9, most=8)
