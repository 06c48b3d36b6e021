import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.cli import helppage
from slipstream.cli.settings import Settings
from slipstream.core.params import SamplingParams
from slipstream.engine import DEFAULT_NUM_DRAFT_TOKENS
from slipstream.policy import DEFAULT_MAX_SLOWDOWN
from slipstream.policy.adaptive import DEFAULT_MOST_DRAFTED, DEFAULT_MOST_PREDICTED
from tests import fake_native
from tests.cli.conftest import Cli

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_in_docs_is_current() -> None:
    assert PAGE.read_text() == helppage.page(), "run `python -m slipstream.cli.helppage > docs/cli.md`"


def test_every_option_is_on_the_page() -> None:
    for name in inspect.signature(Settings).parameters:
        assert f"--{name.replace('_', '-')}" in helppage.page()


def test_the_defaults_on_the_page_are_the_defaults() -> None:
    page = helppage.page()
    defaults = SamplingParams()
    for option, value in (
        ("--temperature", defaults.temperature),
        ("--top-p", defaults.top_p),
        ("--min-p", defaults.min_p),
        ("--max-slowdown", DEFAULT_MAX_SLOWDOWN),
    ):
        for row in rows(page, option):
            assert row.endswith(f"{value}. |")
    for row in rows(page, "--num-draft-tokens"):
        assert f"auto (default {DEFAULT_MOST_DRAFTED}, and {DEFAULT_MOST_PREDICTED} for a text with" in row
        assert f"for on (default {DEFAULT_NUM_DRAFT_TOKENS})" in row


def rows(page: str, option: str) -> list[str]:
    found = [line for line in page.splitlines() if line.startswith(f"| `{option}")]
    assert found
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "-h"],
        ["chat", "--help"],
        ["pull", "-h"],
        ["models", "-h"],
        ["bench", "-h"],
        ["report", "-h"],
    ],
)
def test_help_needs_no_engine(arguments: list[str]) -> None:
    code = f"import sys; from slipstream.cli.app import execute; code = execute({arguments!r}); "
    code += "sys.exit(code or 'numpy' in sys.modules or 'jinja2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_no_command_shows_the_help(cli: Cli) -> None:
    result = cli()
    assert result.code == 2
    assert "chat" in result.out


def test_the_version_names_the_library_and_the_instruction_set(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_native.install(monkeypatch)
    result = cli("--version")
    assert result.code == 0
    first, native, library = result.out.splitlines()
    assert first.startswith("slipstream ")
    assert native == "native runtime: avx2 (here also avx512_vnni, portable)"
    assert re.fullmatch(r"llama-cpp-python [\d.]+, GPU devices: .+", library)


def test_the_version_says_why_there_is_no_native_runtime(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_native.uninstall(monkeypatch)
    result = cli("--version")
    assert result.code == 0
    assert re.search(r"^native runtime: .+", result.out, re.MULTILINE)
