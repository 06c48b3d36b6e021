"""The guard against GCC bug 114098."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.runtime.llamacpp.amx import amx_is_broken, compiled_by_broken_gcc


@pytest.mark.parametrize(
    ("comment", "broken"),
    [
        (b"GCC: (Debian 12.2.0-14+deb12u1) 12.2.0", True),
        (b"GCC: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", True),
        (b"GCC: (GNU) 10.2.1", True),
        (b"GCC: (GNU) 11.5.0", False),
        (b"GCC: (GNU) 12.4.0", False),
        (b"GCC: (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0", False),
        (b"GCC: (GNU) 14.1.0", False),
        (b"GCC: (GNU) 15.1.0", False),
        (b"GCC: (GNU) 14.1.0\0GCC: (GNU) 12.2.0", True),
        (b"clang version 17.0.1", False),
    ],
)
def test_compilers(comment: bytes, broken: bool) -> None:
    assert compiled_by_broken_gcc(b"\x7fELF..." + comment + b"\0...") is broken


@pytest.mark.parametrize(("features", "broken"), [(b"AMX_INT8 = 1 | ", True), (b"AVX2 = 1 | ", False)])
def test_only_a_library_with_amx_kernels_matters(tmp_path: Path, features: bytes, broken: bool) -> None:
    (tmp_path / "libggml-cpu.so").write_bytes(b"GCC: (Debian 12.2.0-14) 12.2.0")
    shared = SimpleNamespace(_name=str(tmp_path / "libllama.so"))
    library: Any = type("Library", (), {})()
    library.llama_print_system_info = lambda: b"CPU : " + features
    library.llama_cpp = SimpleNamespace(_lib=shared)
    assert amx_is_broken(library) is broken
