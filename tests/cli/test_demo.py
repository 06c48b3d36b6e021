import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "demo"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout where everything is in place, and `slipstream` only says what it was asked for."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "setup.done").touch()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    command = tmp_path / ".venv" / "bin" / "slipstream"
    command.write_text('#!/bin/sh\necho "CALLED $(echo "$*" | head -1)"\n')
    command.chmod(0o755)
    return tmp_path


def demo(checkout: Path, *arguments: str) -> list[str]:
    """What was called, from a demonstration that writes into a pipe."""
    output = subprocess.run(
        [checkout / "scripts" / "demo", *arguments],
        stdout=subprocess.PIPE, check=True, text=True, cwd=os.sep, stdin=subprocess.DEVNULL,
    ).stdout  # fmt: skip
    assert "\x1b" not in output, "no colours in a pipe"
    assert "colour" not in output, "and no word about them"
    return [line.removeprefix("CALLED ") for line in output.splitlines() if line.startswith("CALLED ")]


def test_it_fetches_the_model_and_answers_without_and_with_speculation(checkout: Path) -> None:
    pull, *answers = demo(checkout)
    assert pull == "pull smollm2-135m"
    for question, plain, fast in (("Write a Python function", *answers[:2]), ("Print these", *answers[2:])):
        assert f"--seed 7 --speculation off {question}" in plain
        assert "--speculation" not in fast
        assert fast.startswith(f"run --model smollm2-135m --temperature 0 --max-tokens 200 --seed 7 {question}")


def test_options_come_last_so_that_they_win(checkout: Path) -> None:
    _, plain, fast, *_ = demo(checkout, "--temperature", "1", "--seed", "9")
    assert "--seed 7 --temperature 1 --seed 9 --speculation off Write a" in plain
    assert "--seed 7 --temperature 1 --seed 9 Write a" in fast


def test_a_terminal_is_told_what_the_colours_mean(checkout: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    subprocess.run([checkout / "scripts" / "demo"], stdout=theirs, check=True, env=environment)
    os.close(theirs)
    with open(ours, "rb", buffering=0) as screen:  # noqa: PTH123 - a descriptor has no path
        assert b"in colour: guessed tokens" in screen.read(65536)


def test_it_sets_up_first_where_that_has_not_been_done(checkout: Path) -> None:
    (checkout / ".venv" / "setup.done").unlink()
    setup = checkout / "scripts" / "setup"
    setup.write_text("#!/bin/sh\necho CALLED setup\n")
    setup.chmod(0o755)
    assert demo(checkout)[0] == "setup"
