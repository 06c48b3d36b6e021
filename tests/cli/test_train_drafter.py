import json
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.models import read_header
from tests.cli.conftest import Cli
from tests.shipping import ship_file

FAST = ("--tokens", "300", "--epochs", "0.2", "-t", "1", "--set", "vocabulary=64", "--set", "answer_tokens=12")
FAST += ("--set", "batch=256", "--set", "pack=64")  # type: ignore[assignment]


@pytest.fixture
def documents(home: Path) -> Path:
    folder = home / "documents"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02}.txt").write_text(
            f"Chapter {number}. " + f"The thing and the other thing {number}. " * 5
        )
    return folder


def test_a_head_for_ones_own_documents(cli: Cli, home: Path, tiny: Path, documents: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra [train]")
    out = home / "own.gguf"
    result = cli("train-drafter", tiny, "--prompts", documents, "-o", out, "--work", home / "work", "--json", *FAST)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["path"] == str(out)
    assert found["bytes"] == out.stat().st_size
    assert 0 <= found["held_out"]["0"]["positions"][0] <= 1


def test_an_hour_begins_with_the_head_that_comes_with_slipstream(
    cli: Cli, home: Path, tiny: Path, documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file has no vocabulary, and the next head begins with it."""
    pytest.importorskip("torch", reason="needs the extra [train]")
    given = ("--prompts", documents, "--work", home / "work", "--no-tokenizer", *FAST)
    assert cli("train-drafter", tiny, *given, "-o", home / "first.gguf").code == 0
    header = read_header(home / "first.gguf")
    assert not any(key.startswith("tokenizer.") for key in header.metadata)
    ship_file(monkeypatch, home / "first.gguf", tiny)
    for options, begun in (((), True), (("--set", "start=target"), False), (("--from", home / "first.gguf"), True)):
        result = cli("train-drafter", tiny, *given, "-o", home / "second.gguf", *options)
        assert result.code == 0, result.err
        recipe = json.loads(read_header(home / "second.gguf").text("slipstream.head.recipe") or "")
        assert recipe["start"].startswith("head:") == begun
        assert ("Training begins with the head that comes with Slipstream" in result.err) == (options == ())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "learning_rat=1"], "did you mean learning_rate?"),
        (["--set", "batch=many"], "must have a value like 2048"),
        (["--hours", "0"], "--hours must be"),
        (["--tokens", "0"], "--tokens must be"),
        (["--size", "-1"], "--size must be"),
        (["--device", "abacus"], "give --device cpu"),
        (["--prompts", "/nowhere"], "There is no file or folder /nowhere"),
        (["-o", "/"], "is a folder"),
        (["--set", "quantisation=Q9"], "one of Q8_0"),
        (["--set", "start=anywhere"], "random or target"),
        (["--from", "nowhere.gguf"], "There is no file nowhere.gguf"),
        (["--from", "head.gguf", "--set", "start=target"], "give one of them"),
        (["--kind", "model", "--from", "head.gguf"], "--kind model trains none"),
        (["--kind", "model", "--no-tokenizer"], "a draft model's file needs its vocabulary"),
        (["--set", "direct=perhaps"], "must have a value like True"),
        (["--set", "optimiser=sgd"], "muon or adamw"),
        (["--set", "layers=1,2"], "three numbers from 1 to 2"),
        (["--set", "batch=0"], "batch must be"),
    ],
)
def test_what_cannot_be_is_a_sentence(cli: Cli, tiny: Path, options: list[str], sentence: str) -> None:
    pytest.importorskip("torch", reason="needs the extra [train]")
    result = cli("train-drafter", tiny, *options)
    assert result.code != 0
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err


def test_a_missing_torch_is_a_sentence_with_the_line_that_installs_it(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = cli("train-drafter", tiny)
    assert result.code == 1
    assert "pip install 'slipstream-decoding[train]'" in result.err
    assert result.err.count("\n") == 1


def test_the_help_page_needs_no_torch() -> None:
    code = (
        "import sys; from slipstream.cli import app; app.execute(['train-drafter', '--help']); "
        "assert not {'torch', 'numpy'} & set(sys.modules), 'loaded for a help page'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
