"""What is promised outside the code: metadata, layers, dependencies, scripts."""

import ast
import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

import slipstream

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "slipstream"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPTS = [*sorted((ROOT / "scripts").iterdir()), ROOT / ".ci" / "run"]


def tracked_files() -> list[Path]:
    """Files git knows; skips where there is no git or no checkout (an unpacked source archive)."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    output = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in output.stdout.split("\0") if name and (ROOT / name).is_file()]


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0] for requirement in requirements}


def documented_packages(heading: str) -> set[str]:
    """First column of the table under `heading` in docs/dependencies.md."""
    text = (ROOT / "docs" / "dependencies.md").read_text()
    section = text.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))


def declared_layers() -> set[str]:
    (contract,) = PROJECT["tool"]["importlinter"]["contracts"]
    assert contract["exhaustive"] is True
    return {name.strip(" ()") for layer in contract["layers"] for name in re.split(r"[|:]", layer)}


def test_the_version_is_the_one_in_pyproject() -> None:
    assert slipstream.__version__ == PROJECT["project"]["version"]


def test_no_module_repeats_the_version() -> None:
    version = PROJECT["project"]["version"]
    for module in PACKAGE.rglob("*.py"):
        constants = [node.value for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Constant)]
        assert version not in constants, f"{module} repeats the version; ask importlib.metadata"


def test_the_command_is_installed() -> None:
    (command,) = distribution(PROJECT["project"]["name"]).entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("slipstream", "slipstream.cli:main")
    assert callable(command.load())


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_every_dependency_has_its_reason_and_no_reason_outlives_its_dependency() -> None:
    assert documented_packages("To run") == requirement_names(PROJECT["project"]["dependencies"])
    assert documented_packages("To develop") == requirement_names(PROJECT["project"]["optional-dependencies"]["dev"])


def test_every_module_of_the_package_has_a_layer() -> None:
    present = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py"} - {"__init__"}
    present |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert present - declared_layers() == set()


def test_the_licence_is_the_one_that_is_declared() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_run_and_parse(script: Path) -> None:
    assert os.access(script, os.X_OK)
    first_line = script.read_text().splitlines()[0]
    if "bash" in first_line:
        subprocess.run(["bash", "-n", script], check=True)
    else:
        ast.parse(script.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_leave_the_package_index_to_the_user(script: Path) -> None:
    """A host name in a script would override a mirror, and break where only the mirror can be reached."""
    found = re.findall(r"https?://\S+|--(?:extra-)?index-url|--find-links|\bpypi\.\w+", script.read_text())
    assert found == []


def test_no_model_weights_are_tracked() -> None:
    assert [path for path in tracked_files() if path.suffix in (".gguf", ".safetensors", ".bin", ".whl")] == []


def test_changelog_fragments_have_a_known_type() -> None:
    types = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
    for fragment in (ROOT / "changelog.d").glob("*.md"):
        assert fragment.stem.rsplit(".", 1)[-1] in types, f"{fragment.name}: one of {sorted(types)} is expected"
        assert fragment.read_text().strip()
