"""What is promised outside the code: metadata, layers, dependencies, scripts."""

import ast
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from scikit_build_core.build import build_sdist, build_wheel

import slipstream
from slipstream.models.shipped_heads import SHIPPED

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


def packed(project: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names in the source archive of a project, without the leading folder."""
    monkeypatch.chdir(project)
    with tarfile.open(folder / build_sdist(str(folder))) as archive:
        return {name.split("/", 1)[1] for name in archive.getnames()}


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


def test_the_compiled_module_is_installed_and_has_a_stub() -> None:
    files = distribution(PROJECT["project"]["name"]).files or []
    (module,) = [file for file in files if file.name.startswith("_native.")]
    assert module.parent.as_posix() == "slipstream/runtime/native"
    assert module.suffix == ".so"
    assert (PACKAGE / "runtime" / "native" / "_native.pyi").is_file()


def test_the_source_archive_holds_what_a_build_and_a_reader_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ("src", "native", "tests", "benchmarks", "examples", "scripts", "docs")
    names = packed(ROOT, tmp_path, monkeypatch)
    tracked = {path.relative_to(ROOT) for path in tracked_files()}
    assert {path.as_posix() for path in tracked if path.parts[0] in parts} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= names


def test_the_source_archive_leaves_out_what_lies_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    strays = ["model.gguf", "src/slipstream/model.gguf", "tests/model.gguf", "notes.txt", ".venv/bin/python"]
    strays += ["build/editable/_native.so", "src/slipstream/__pycache__/core.cpython-311.pyc"]
    wanted = {"src/slipstream/__init__.py", "native/src/module.cpp", "src/slipstream/models/shipped/head.gguf"}
    for name in [*strays, *wanted]:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, project)
    names = packed(project, tmp_path, monkeypatch)
    assert wanted <= names
    assert names.isdisjoint(strays)
    wheel = build_wheel(str(tmp_path), {"wheel.cmake": "false"})
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        packed_files = set(archive.namelist())
    assert "slipstream/models/shipped/head.gguf" in packed_files
    assert "slipstream/model.gguf" not in packed_files


def test_the_package_brings_the_files_that_are_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    wheel = build_wheel(str(tmp_path), {"wheel.cmake": "false"})
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        packed = set(archive.namelist())
    tracked = {path.relative_to(ROOT / "src") for path in tracked_files() if path.is_relative_to(PACKAGE)}
    assert {path.as_posix() for path in tracked} <= packed
    assert {"slipstream/server/static/index.html", "slipstream/measure/data/report.css"} <= packed


def test_no_kernel_leaves_its_instructions_in_code_that_all_share() -> None:
    """A template or inline function that the compiler does not inline is one copy for the whole module, whichever file
    it came from: if that file is one of AVX-512 kernels, others crash on a processor without it.
    """
    built = (ROOT / "build" / "editable").rglob("kernels_*.cpp.o")
    objects = [path for path in built if "portable" not in path.name]
    if shutil.which("nm") is None or not objects:
        pytest.skip("needs nm and the objects that scripts/setup leaves in build/editable")
    for path in objects:
        symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
        assert [line for line in symbols.splitlines() if re.search(r" [VWu] ", line)] == [], path.name


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_every_dependency_has_its_reason_and_no_reason_outlives_its_dependency() -> None:
    assert documented_packages("To run") == requirement_names(PROJECT["project"]["dependencies"])
    sections = {"llamacpp": "For other models and GPUs", "server": "To serve", "dev": "To develop"}
    sections["train"] = "To train drafters"
    for extra, requirements in PROJECT["project"]["optional-dependencies"].items():
        assert documented_packages(sections[extra]) == requirement_names(requirements)
    assert documented_packages("To build") == requirement_names(PROJECT["build-system"]["requires"])


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


def test_no_model_weights_are_tracked_but_those_of_shipped_heads() -> None:
    weights = {path for path in tracked_files() if path.suffix in (".gguf", ".safetensors", ".bin", ".whl")}
    assert weights <= {PACKAGE / "models" / "shipped" / one.file for one in SHIPPED}


def test_changelog_fragments_have_a_known_type() -> None:
    types = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
    for fragment in (ROOT / "changelog.d").glob("*.md"):
        assert fragment.stem.rsplit(".", 1)[-1] in types, f"{fragment.name}: one of {sorted(types)} is expected"
        assert fragment.read_text().strip()
