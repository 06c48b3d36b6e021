import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.cli import figures, terminal
from slipstream.cli.answer import Thinking, show
from slipstream.engine import Completion, Token
from slipstream.models import cache_directory
from tests.cli.conftest import start
from tests.fakes import ByteVocabulary

# One thread: on a busy machine two that wait for each other in a loop take seconds.
SHORT = ("--max-tokens", "30", "--threads", "1")
LONG = ("--threads", "1", "--max-tokens", "3000", "--temperature", "0")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nüñí 漢字 🙂", "plain\ttext\nüñí 漢字 🙂"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x1b]0;title\x07", "]0;title"),
        ("\x9b31m\x90q\x9c", "31mq"),
        ("a\rb\x08c\x00\x7f", "abc"),
    ],
)
def test_nothing_a_model_says_controls_the_terminal(text: str, shown: str) -> None:
    assert terminal.printable(text) == shown


def test_figures_break_between_figures() -> None:
    parts = ["128 tokens", "45.2 tok/s", "2.31 tokens a round", "61% accepted", "seed 7"]
    assert figures.fit(parts, 200) == " · ".join(parts)
    narrow = figures.fit(parts, 30)
    assert narrow.replace("\n", " · ") == " · ".join(parts)
    assert max(map(len, narrow.splitlines())) <= 30
    assert figures.fit(parts, 5) == "\n".join(parts)


def test_json_has_no_control_characters() -> None:
    assert figures.to_json({"text": "a\x1b\x9b\x7fé\n"}) == '{"text": "a\\u001b\\u009b\\u007fé\\n"}\n'


def thinks(pieces: list[str], *, opened: bool = False) -> list[bool]:
    follow = Thinking(("<think>", "</think>"), opened, ByteVocabulary())
    return [follow.push(Token(piece, 65, None, False, "")) for piece in pieces]


def test_thinking_is_followed_from_tag_to_tag() -> None:
    pieces = ["a", "<think>", "b", "</think>", "c", "<th", "ink>", "d"]
    assert thinks(pieces) == [False, True, True, True, False, False, True, True]
    assert thinks(["a", "</", "think", ">", "b"], opened=True) == [True, True, True, True, False]


def test_thinking_tags_may_be_control_tokens_without_text() -> None:
    follow = Thinking(("<end>", "<bos>"), False, ByteVocabulary())
    tokens = [Token("a", 65, None, False, ""), Token("", 256, None, False, ""), Token("b", 66, None, False, "")]
    assert [follow.push(token) for token in tokens] == [False, True, True]


def test_thinking_is_dim_and_accepted_tokens_are_green(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = [
        Token("so", 65, None, False, ""),
        Token("</think>", 66, None, True, "x"),
        Token("yes", 67, None, True, "x"),
    ]

    class Answer(list[Token]):
        completion = Completion([1], text="so</think>yes")
        cancel = close = __enter__ = __exit__ = lambda *_: None

    output = terminal.Output()
    output.styles = True
    for colour in (True, False):
        follow = Thinking(("<think>", "</think>"), True, ByteVocabulary())
        show(Answer(tokens), output, follow, colour_accepted=colour)  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines() == [
        "\x1b[2mso\x1b[0m\x1b[2;32m</think>\x1b[0m\x1b[32myes\x1b[0m",
        "\x1b[2mso</think>\x1b[0myes",
    ]


# A real process on a real (pseudo) terminal. -----------------------------------------------------------------


class Terminal:
    """Runs the command on a pseudo-terminal; `screen` is everything it wrote to stdout and stderr."""

    def __init__(self, arguments: list[str | Path], *, columns: int = 80, **environment: str) -> None:
        self._main, child = pty.openpty()
        variables = {"TERM": "xterm-256color", "COLUMNS": str(columns)} | environment
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slipstream", *map(str, arguments)],
            stdin=child, stdout=child, stderr=child, env=inherited | variables, start_new_session=True,
        )  # fmt: skip
        os.close(child)
        self.screen = ""

    def read(self, until: Callable[[str], object] = lambda screen: False) -> str:
        """Read until `until` holds for the screen, or to the end."""
        while not until(self.screen):
            try:
                data = os.read(self._main, 65536)
            except OSError:  # Linux's way to say that the other side has closed
                break
            if not data:
                break
            self.screen += data.decode(errors="replace")
        return self.screen

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def end(self) -> int:
        self.read()
        os.close(self._main)
        return self.process.wait(60)


def run_on_terminal(arguments: list[str | Path], **options: str) -> str:
    shown = Terminal(arguments, **options)
    assert shown.end() == 0, shown.screen
    return shown.screen


def test_accepted_tokens_are_coloured_on_a_terminal(tiny: Path) -> None:
    screen = run_on_terminal(["run", "-m", tiny, "-d", tiny, "--speculation", "on", "hi", *SHORT])
    assert "\x1b[32m" in screen
    assert screen.rstrip().endswith("\x1b[0m"), "the terminal gets its own colours back"
    figures_at = screen.index(" tok/s")
    assert "\x1b[2m" in screen[:figures_at][-60:], "figures are dim"


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"}), (["--no-show-accepted"], {})],
)
def test_colours_can_be_unwanted(tiny: Path, arguments: list[str], environment: dict[str, str]) -> None:
    screen = run_on_terminal(
        ["run", "-m", tiny, "-d", tiny, "--speculation", "on", "hi", *SHORT, *arguments], **environment
    )
    assert "\x1b[32m" not in screen
    if environment:
        assert "\x1b" not in screen


def test_a_pipe_gets_text_alone(tiny: Path) -> None:
    process = start(["run", "-m", tiny, "-d", tiny, "--speculation", "on", "hi", *SHORT])
    out, err = process.communicate(timeout=60)
    assert b"\x1b[" not in out
    assert b"\x1b[" not in err
    assert err.count(b"\n") == 1


def test_forced_colours_reach_a_pipe(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out, _ = start(["run", "-m", tiny, "-d", tiny, "--speculation", "on", "hi", *SHORT]).communicate(timeout=60)
    assert b"\x1b[32m" in out


def test_a_reader_that_has_enough_ends_it_quietly(tiny: Path) -> None:
    process = start(["run", "-m", tiny, "hi", *LONG])
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 1
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_output_that_cannot_be_stored_is_an_error(tiny: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start(["run", "-m", tiny, "hi", "--max-tokens", "30"], stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == b"slipstream: The output cannot be written: the disk is full.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_that_cannot_be_stored_is_an_error(argument: str) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start([argument], stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == b"slipstream: The output cannot be written: the disk is full.\n"


def redirected(redirection: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run the command from a shell that closes some of its files."""
    script = f'exec "$@" {redirection}'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "slipstream", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("arguments", [["run", "hi"], ["--help"], ["models"]])
def test_a_closed_output_is_refused_before_anything_is_done(arguments: list[str]) -> None:
    result = redirected(">&-", *arguments)
    assert result.returncode == 1
    assert result.stderr == "slipstream: Standard output is closed; send it to a file, a pipe or /dev/null.\n"


def test_closed_error_output_and_input_change_nothing_else(tiny: Path) -> None:
    arguments = ("run", "-m", tiny, "hi", *SHORT, "--seed", "3")
    usual = redirected("", *arguments)
    assert (usual.returncode, usual.stderr.count("\n")) == (0, 1)
    quiet = redirected("<&- 2>&-", *arguments)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, usual.stdout, "")
    assert redirected("<&-", "chat", "-m", tiny).returncode == 0
    assert redirected(">&- 2>&-", *arguments).returncode == 1


def test_an_interrupt_while_modules_load_is_quiet() -> None:
    code = (
        "import os, signal, sys\n"
        "from slipstream.cli import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, check=False, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


def test_colours_that_cannot_be_shown_are_not_left_out_silently(tiny: Path) -> None:
    out, err = start(["run", "-m", tiny, "hi", "--show-accepted", *SHORT]).communicate(timeout=60)
    assert b"\x1b[" not in out
    first, _ = err.decode().splitlines()
    assert first == "--show-accepted needs a terminal with colours; FORCE_COLOR=1 sends them into a pipe."


def test_the_first_interrupt_ends_an_answer_and_shows_what_there_is(tiny: Path) -> None:
    process = start(["run", "-m", tiny, "hi", *LONG])
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first + out
    assert re.fullmatch(rb"\d+ tokens? .* seed \d+ \xc2\xb7 interrupted\n", err), err


def test_an_interrupt_while_loading_ends_it(tiny: Path) -> None:
    shown = Terminal(["run", "-m", tiny, "hi"])
    shown.read(lambda screen: "Loading" in screen)
    shown.process.send_signal(signal.SIGINT)
    assert shown.end() == 130
    assert "Traceback" not in shown.screen


def test_an_interrupt_while_fetching_leaves_nothing_behind(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection and never answers
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        shown = Terminal(["pull", "smollm2-135m"], PIP_INDEX_URL=index, PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS="")
        shown.read(lambda screen: "fetching smollm2-135m" in screen)
        silent.accept()[0].close()  # pip is there
        shown.process.send_signal(signal.SIGINT)
        assert shown.end() == 130
    assert "Traceback" not in shown.screen
    assert [path for path in cache_directory().rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_the_second_interrupt_does_not_wait() -> None:
    """The library may be computing for seconds; here a thread-less sleep in C stands for it."""
    code = (
        "import ctypes, os\n"
        "from slipstream.cli.interrupt import interrupts\n"
        "interrupts.install()\n"
        "with interrupts.cancelling(lambda: None):\n"
        "    os.write(1, b'x')\n"
        "    libc = ctypes.CDLL(None)\n"
        "    while True: libc.poll(None, 0, 100)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None, "the first one only asks"
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    process.stdout.close()


def test_a_chat_on_a_terminal(tiny: Path) -> None:
    shown = Terminal(["chat", "-m", tiny, *LONG])
    shown.read(lambda screen: screen.endswith("> "))
    shown.type("hello\n")
    begun = len(shown.screen)
    shown.read(lambda screen: len(screen) > begun + 40)
    shown.type("\x03")  # Ctrl-C stops the answer ...
    shown.read(lambda screen: screen.count("> ") >= 2 and "seed" in screen)
    shown.type("/stats\n")  # ... and the conversation goes on
    shown.read(lambda screen: "turns" in screen and screen.endswith("> "))
    shown.type("\x04")
    assert shown.end() == 0
    assert "Traceback" not in shown.screen


def test_models_fit_a_narrow_terminal(home: Path) -> None:
    for columns in (40, 120):
        screen = run_on_terminal(["models"], columns=columns)
        assert "smollm2-135m" in screen
        plain = re.sub(r"\x1b\[[0-9;]*m", "", screen)
        assert max(map(len, plain.splitlines())) <= max(columns, 40)
