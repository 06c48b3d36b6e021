"""Texts and functions from the standard library of the Python that runs this (PSF-2.0), to make prompts from.

`pydoc_data` is not among them: held-out prompts quote it.
"""

import ast
import sysconfig
import textwrap
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("asyncio", "collections", "concurrent", "email", "http", "importlib", "json", "logging", "urllib", "xml")
"""Beside the single modules."""
LEAST_TEXT, MOST_TEXT = 300, 1600
LEAST_CODE, MOST_CODE = 150, 1200
"""Characters."""


class _Found(NamedTuple):
    passages: tuple[str, ...]
    functions: tuple[str, ...]


def passages() -> tuple[str, ...]:
    """Docstrings of some length."""
    return _found().passages


def functions() -> tuple[str, ...]:
    """Sources of functions of some length."""
    return _found().functions


@cache
def _found() -> _Found:
    root = Path(sysconfig.get_path("stdlib"))
    texts: dict[str, None] = {}
    code: dict[str, None] = {}
    packages = [path for name in PACKAGES for path in sorted((root / name).rglob("*.py"))]
    for path in (*sorted(root.glob("*.py")), *packages):
        _read(path, texts, code)
    return _Found(tuple(texts), tuple(code))


def _read(path: Path, texts: dict[str, None], code: dict[str, None]) -> None:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return
    lines = source.splitlines(keepends=True)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text and LEAST_TEXT <= len(text) <= MOST_TEXT:
            texts[text] = None
        if isinstance(node, ast.FunctionDef):
            function = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))
            if LEAST_CODE <= len(function) <= MOST_CODE:
                code[function] = None
