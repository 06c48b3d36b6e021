"""Stands for `slipstream.runtime.native` where a test is about choosing it, not about what it computes."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from slipstream.core.protocols import Model
from slipstream.models import GgufHeader, Vocabulary, read_model_header
from tests.fakes import ByteVocabulary, FakeModel

NAME = "slipstream.runtime.native"


class NativeModel(FakeModel):
    runtime = "native"


class FakeNative(ModuleType):
    """`reasons` has a clause for each file name that it cannot run; `loaded` what it was asked to load, and how."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(NAME)
        self.reasons = reasons
        self.fractions = [0.0, 0.5, 1.0]
        self.loaded: list[tuple[str, dict[str, object]]] = []

    def unsupported(self, header: GgufHeader) -> str | None:
        return self.reasons.get(header.path.name)

    def load_native(self, path: Path, *, progress: Callable[[float], None] | None = None, **options: object) -> Model:
        self.loaded.append((path.name, options))
        for fraction in self.fractions if progress else []:
            assert progress is not None
            progress(fraction)
        vocabulary = ByteVocabulary()
        vocabulary.size = len(Vocabulary.from_header(read_model_header(path)))
        return NativeModel(vocabulary, name=path.name)

    def instruction_sets(self) -> tuple[str, ...]:
        return ("avx512_vnni", "avx2", "portable")

    def chosen_instruction_set(self) -> str:
        return "avx2"

    def default_instruction_set(self) -> str:
        return "avx2"


def install(monkeypatch: pytest.MonkeyPatch, reasons: dict[str, str] | None = None) -> FakeNative:
    """Let imports find this one."""
    native = FakeNative(reasons or {})
    monkeypatch.setitem(sys.modules, NAME, native)
    return native


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports fail, as where the extension was not built."""
    monkeypatch.setitem(sys.modules, NAME, None)
