"""A guard against one miscompiled kernel, which would end the process with a segmentation fault.

GCC before 11.5, 12.4, 13.3 and 14 takes only the first 8 bytes of a tile configuration for used by
`_tile_loadconfig` (GCC bug 114098) and drops the stores of the rest, so llama.cpp's AMX kernels load
garbage. Debian 12 and Ubuntu 22.04 ship such compilers, and processors with AMX are common.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

_COMPILER = re.compile(rb"GCC: \([^)]*\) (\d+)\.(\d+)")
_FIRST_GOOD_MINOR = {11: 5, 12: 4, 13: 3}


@cache
def amx_is_broken(llama: Any) -> bool:
    """Whether the library has AMX kernels that the compiler's bug makes crash: keep weights away from them."""
    information: bytes = llama.llama_print_system_info()
    if b"AMX_INT8 = 1" not in information:
        return False
    directory = Path(llama.llama_cpp._lib._name).parent
    return any(compiled_by_broken_gcc(path.read_bytes()) for path in directory.glob("libggml-cpu*.so"))


def compiled_by_broken_gcc(library: bytes) -> bool:
    """Whether a shared library's .comment section names a GCC with bug 114098."""
    versions = [(int(major), int(minor)) for major, minor in _COMPILER.findall(library)]
    return any(minor < _FIRST_GOOD_MINOR.get(major, 0 if major > 13 else 99) for major, minor in versions)
