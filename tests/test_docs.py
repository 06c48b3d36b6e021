"""The documentation is true: its Python runs, its commands parse, its links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from slipstream.cli.app import app
from tests.tiny_models import tiny_llama

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
REAL_MODEL = re.compile(r"smollm2-135m")
SHELLS = ("sh", "bash", "shell", "console")


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    """(where, text) of each fenced block in one of the languages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in FENCE.finditer(text):
            if block[2] in languages:
                line = text.count("\n", 0, block.start()) + 1
                yield f"{page.relative_to(ROOT)}:{line}", block[3]


def python_blocks() -> list[object]:
    return [
        pytest.param(text, id=where, marks=[pytest.mark.model] if REAL_MODEL.search(text) else [])
        for where, text in blocks("python")
    ]


def commands(text: str, language_has_prompt: bool) -> Iterator[list[str]]:
    """Words of each `slipstream ...` in a block of shell, pipes and redirections left out."""
    text = text.replace("\\\n", " ")
    for line in text.splitlines():
        if language_has_prompt and not line.startswith("$ "):
            continue  # output
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|<>;&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("|<>;&"):
                words.append(word)
                continue
            if words and Path(words[0]).name == "slipstream":
                yield words[1:]
            words = []


def shell_commands() -> list[object]:
    return [
        pytest.param(words, id=f"{where} {' '.join(words)}")
        for language in SHELLS
        for where, text in blocks(language)
        for words in commands(text, language_has_prompt=bool(re.search(r"^\$ ", text, re.MULTILINE)))
    ]


@pytest.mark.parametrize("text", python_blocks())
def test_python_on_a_page_runs(text: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """As a program of its own, in a folder where `model.gguf` is a tiny model."""
    if REAL_MODEL.search(text):
        request.getfixturevalue("smollm2")
    tiny_llama(tmp_path / "model.gguf")
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-W", "error", "-c", text]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("words", shell_commands())
def test_commands_on_a_page_parse(words: list[str]) -> None:
    parse(words)


def parse(words: list[str]) -> None:
    """Raise what the command line would raise for these words, without running them."""
    group = typer.main.get_command(app)
    try:
        with group.make_context("slipstream", list(words)) as context:
            name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
            command.make_context(name, rest, parent=context)
    except typer.Exit:
        pass  # --help, --version


@pytest.mark.parametrize("line", ["run --no-such-option 1", "sing", "run --num-draft-tokens many", "pull"])
def test_a_wrong_command_would_be_found(line: str) -> None:
    with pytest.raises(typer.TyperException):
        parse(line.split())


def test_commands_are_found_between_pipes_prompts_and_continuations() -> None:
    text = (
        '$ cat a | slipstream run "b; c" \\\n    --json > d.json\nslipstream run: done\n$ .venv/bin/slipstream models'
    )
    assert list(commands(text, True)) == [["run", "b; c", "--json"], ["models"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = page.parent / path if path else page
        assert file.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


def anchors(page: Path) -> set[str]:
    """What headings can be linked by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_package_is_named_in_the_page_about_the_structure() -> None:
    page = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    packages = [init.parent for init in (ROOT / "src" / "slipstream").glob("*/**/__init__.py")]
    assert [str(package) for package in packages if not re.search(rf"\b{package.name}\b", page)] == []


def test_every_page_is_named_on_another() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for page in (ROOT / "docs").glob("**/*.md"):
        assert any(page.name in text for other, text in texts.items() if other != page), f"nobody finds {page.name}"


def test_every_example_is_a_file_that_a_page_leads_to() -> None:
    assert any("examples/" in page.read_text(encoding="utf-8") for page in PAGES)
