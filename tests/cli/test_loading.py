"""What is shown while models load, on a pseudo-terminal and elsewhere."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.cli.loading import Loading
from tests import fake_native
from tests.cli.conftest import Cli

SCRIPT = """
import sys, time
from slipstream.cli.loading import Loading
with Loading("some model") as loading:
    for model, fraction, pause in {steps}:
        loading.report(model, fraction)
        time.sleep(pause)
"""
Steps = list[tuple[str, float, float]]
SLOW: Steps = [("large.gguf", 0.0, 0.35), ("large.gguf", 0.4, 0.2), ("large.gguf", 1.0, 0.1)]


def screen(steps: Steps, **environment: str) -> str:
    """Everything that a terminal gets while this is reported."""
    main, child = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    variables = inherited | {"TERM": "xterm-256color", "COLUMNS": "80"} | environment
    process = subprocess.Popen([sys.executable, "-c", SCRIPT.format(steps=steps)], stderr=child, env=variables)
    os.close(child)
    text = b""
    while data := _read(main):
        text += data
    os.close(main)
    assert process.wait(60) == 0
    return text.decode()


def _read(main: int) -> bytes:
    try:
        return os.read(main, 65536)
    except OSError:  # Linux's way to say that the other side has closed
        return b""


def test_a_slow_model_gets_a_bar_in_place_of_the_line_and_nothing_stays() -> None:
    shown = screen(SLOW)
    assert shown.startswith("\x1b[2mLoading some model ...\x1b[0m\r\x1b[K")
    assert "40%" in shown
    assert shown.count("Loading large.gguf") == shown.count("%"), "every frame says what it is about"
    assert shown.endswith("\r\x1b[K")
    assert "\x1b[?25h" in shown, "the cursor is there again"


def test_a_quick_model_gets_no_bar() -> None:
    quick: Steps = [("large.gguf", 0.0, 0.02), ("large.gguf", 0.9, 0.4), ("large.gguf", 1.0, 0.0)]
    assert screen(quick) == "\x1b[2mLoading some model ...\x1b[0m\r\x1b[K"


def test_a_second_model_takes_the_bar_over() -> None:
    shown = screen([*SLOW, ("small.gguf", 0.2, 0.2)])
    assert shown.index("Loading large.gguf") < shown.index("Loading small.gguf")
    assert "20%" in shown


def test_a_narrow_terminal_gets_the_percentage() -> None:
    shown = screen(SLOW, COLUMNS="40")
    assert "40%" in shown
    assert "━" not in shown
    assert "━" in screen(SLOW)


def test_forced_colours_send_no_bar_into_a_pipe() -> None:
    variables = os.environ | {"TERM": "xterm-256color", "FORCE_COLOR": "1"}
    variables.pop("NO_COLOR", None)
    command = [sys.executable, "-c", SCRIPT.format(steps=SLOW)]
    result = subprocess.run(command, capture_output=True, check=True, env=variables)
    assert b"large.gguf" not in result.stderr


def test_run_reports_what_the_engine_loads(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_native.install(monkeypatch)
    seen: list[tuple[str, float]] = []
    monkeypatch.setattr(Loading, "report", lambda self, model, fraction: seen.append((model, fraction)))
    assert cli("run", "-m", tiny, "hi", "--max-tokens", "2").code == 0
    assert seen == [("tiny.gguf", fraction) for fraction in (0.0, 0.5, 1.0)]


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminals_that_take_nothing_back_get_nothing(environment: dict[str, str]) -> None:
    assert screen(SLOW, **environment) == ""


def test_names_cannot_control_the_terminal() -> None:
    evil: Steps = [(name.replace("large", "\x1b]0;title\x07"), *rest) for name, *rest in SLOW]  # type: ignore[misc]
    assert "\x1b]0;" not in screen(evil)


def test_what_is_no_terminal_gets_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.cli.loading.PATIENCE", 0.0)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with Loading("some model") as loading:
        for fraction in (0.0, 0.5, 1.0):
            loading.report("large.gguf", fraction)
    assert capsys.readouterr() == ("", "")
