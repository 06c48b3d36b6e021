import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from slipstream.cli import app
from slipstream.draft import SuffixDrafter
from slipstream.engine import Engine
from slipstream.models import ChatTemplate
from tests.fakes import ByteVocabulary, FakeModel
from tests.tiny_models import tiny_llama

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class Result(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


class LetterVocabulary(ByteVocabulary):
    """Bytes that a terminal shows as they are: whatever a model says here is readable."""

    def token_bytes(self, token: int) -> bytes:
        return bytes([97 + token % 26]) if token < 256 else b""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own, and a plain terminal, whatever the tests are started from."""
    for variable in list(os.environ):
        if variable.startswith(("HF_", "HUGGINGFACE_", "XDG_", "OLLAMA_", "SLIPSTREAM_")):
            monkeypatch.delenv(variable)
    for variable in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def cli(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command in this process: `cli("run", "hello", stdin="...")`."""

    def run(*arguments: str | Path, stdin: str | bytes = "") -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        code = app.execute([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    """Let `Engine.load` give a model without weights, whatever is asked for; returns that model."""
    model = FakeModel(LetterVocabulary(), context_length=400, order=1, sharpness=6.0, name="fake.gguf")

    def load(name: str, *, draft: str, **_: object) -> Engine:
        drafter = None if draft == "none" else SuffixDrafter()
        return Engine(model, drafter, template=ChatTemplate(TEMPLATE))

    monkeypatch.setattr(Engine, "load", load)
    return model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file of the real format with random weights."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", context_length=4096)


def start(arguments: Sequence[str | Path], **options: object) -> "subprocess.Popen[bytes]":
    """The command as a process of its own."""
    command = [sys.executable, "-m", "slipstream", *map(str, arguments)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **(pipes | options))  # type: ignore[call-overload,no-any-return]
