"""Which instruction set a model computes with."""

import sys
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import UsageError
from slipstream.runtime.native import default_instruction_set, instruction_sets, load_native, measure
from tests.runtime.native.helpers import feed

chosen: Any = sys.modules["slipstream.runtime.native.instruction_sets"]
"""The module; the package has a function of this name."""


def test_portable_is_always_there_and_last() -> None:
    assert instruction_sets()[-1] == "portable"
    assert default_instruction_set() == instruction_sets()[0]
    assert len(set(instruction_sets())) == len(instruction_sets())


@pytest.mark.parametrize("asked", ["", None])
def test_the_best_is_chosen(file: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    monkeypatch.delenv("SLIPSTREAM_ISA", raising=False)
    if asked is not None:
        monkeypatch.setenv("SLIPSTREAM_ISA", asked)
    model = load_native(file, context_length=64, threads=1)
    assert model.instruction_set == default_instruction_set()
    model.close()


@pytest.mark.parametrize("isa", instruction_sets())
def test_any_can_be_asked_for(file: Path, monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("SLIPSTREAM_ISA", isa)
    model = load_native(file, context_length=64, threads=1)
    assert model.instruction_set == isa
    monkeypatch.delenv("SLIPSTREAM_ISA")
    best = load_native(file, context_length=64, threads=1)
    ours, theirs = (feed(one, one.open_session(), [40, 41, 42]) for one in (model, best))
    assert abs(ours - theirs).max() < 1e-2
    model.close()
    best.close()


@pytest.mark.parametrize("name", ["avx9000", "AVX2", "portable "])
def test_a_name_that_is_none(file: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("SLIPSTREAM_ISA", name)
    with pytest.raises(UsageError) as caught:
        load_native(file)
    assert str(caught.value) == (
        f"SLIPSTREAM_ISA={name} is not an instruction set that this build has and this machine runs; "
        f"choose one of {', '.join(instruction_sets())}, or unset it."
    )


def test_a_build_for_another_processor_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIPSTREAM_ISA", raising=False)
    monkeypatch.setattr(chosen._native, "instruction_sets", lambda: ["portable"])
    monkeypatch.setattr(chosen.platform, "machine", lambda: "x86_64")
    for has_avx2 in (True, False):
        monkeypatch.setattr(chosen, "_has_avx2", lambda has_avx2=has_avx2: has_avx2)
        model = load_native(file, context_length=64, threads=1)
        assert ("run scripts/setup again" in (model.notice or "")) == has_avx2
        model.close()
    monkeypatch.undo()
    if len(instruction_sets()) > 1:
        assert chosen.slow_build() is None


def test_what_the_machine_reaches() -> None:
    assert measure.measure_read(1, 8) > 0.01
    assert measure.measure_dot(1) > 0.01
    assert measure.measure_fma(1) > 0.01
    assert measure.huge_page_bytes() >= 0
