"""Every program in examples/ runs as a user would run it, and says what it is there to say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAME = r" +\d+ tokens in +\d+ rounds +(?:the same tokens|a near-tie: they part after \d+ tokens)\n"
SAYS = {
    "chat.py": r"> Name three animals\.\n(.*\n)+\[0 tokens remembered.+\n(.*\n)+\[[1-9]\d* tokens remembered",
    "generate.py": r"fox(.*\n)+\d+ tokens in \d+ rounds.*\n[1-9]\d* of \d+ guessed tokens were right",
    "own_drafter.py": r"none: 12 rounds, 1\.00 .*\nlast follower: [2-9] rounds(.*\n)*.*fox",
    "same_text.py": rf"^none .* the reference\nsuffix{SAME}model{SAME}suffix\+model{SAME}$",
    "several_prompts.py": r"^river: .+\n(.*\n)*lantern: .+\n(.*\n)*violin: .+\n(.*\n)*4 answers, \d+ tokens",
    "stream.py": r"\033\[32m.+\033\[0m(.*\n)*seed 7, finished by",
}
"""A pattern of each one's output with 12 tokens."""


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py"} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_examples_say_how_to_run_them_and_stay_short(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert f"python examples/{name}" in text.split('"""')[1]
    assert len(text.splitlines()) <= 45


@pytest.mark.model
@pytest.mark.parametrize("name", SAYS)
def test_examples_run(name: str, smollm2: Path, tmp_path: Path) -> None:
    # llama_cpp opens the null device when it is imported and never closes it
    warnings = ["-W", "error", "-W", "ignore:unclosed file:ResourceWarning"]
    command = [sys.executable, *warnings, EXAMPLES / name, "12"]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8"
    )
    assert result.returncode == 0, result.stderr
    assert re.search(SAYS[name], result.stdout), result.stdout
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"
