import json
from pathlib import Path

import pytest

from slipstream.corpus import LOCAL, Record, Ring, scope_key
from tests.cli.conftest import Cli

TEXT = "def area(width, height):\n    return width * height\n"


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "area.py"
    path.write_text(TEXT)
    return path


def kept(home: Path) -> list[Record]:
    [folder] = (home / ".cache" / "slipstream" / "corpus").iterdir()
    return Ring(folder).texts(scope_key(LOCAL))


def test_files_are_added_once_and_shown(cli: Cli, home: Path, tiny: Path, document: Path) -> None:
    assert cli("corpus", "show").out.startswith("There is no corpus in ")
    added = cli("corpus", "add", document, "-m", tiny)
    assert (added.code, added.err) == (0, "")
    count = sum(len(one.tokens) for one in kept(home))
    assert f"{document}: {count} tokens" in added.out
    assert "is there already" in cli("corpus", "add", document, "-m", tiny).out
    assert sum(len(one.tokens) for one in kept(home)) == count
    [found] = json.loads(cli("corpus", "show", "--json").out)
    assert (found["texts"], found["tokens"], found["scopes"]) == (1, count, 1)
    assert f"{count} tokens in 1 texts of 1 user," in cli("corpus", "show", "-m", tiny).out


def test_folders_are_read_without_what_is_no_text(cli: Cli, home: Path, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("hidden")
    (folder / "one.txt").write_text("some text here")
    (folder / "two.bin").write_bytes(b"\xff\xfe\x00")
    result = cli("corpus", "add", folder, "-m", tiny)
    assert result.code == 0
    assert "one.txt" in result.out
    assert "two.bin" not in result.out
    assert len(kept(home)) == 1


def test_clear_deletes_it_all(cli: Cli, home: Path, tiny: Path, document: Path) -> None:
    cli("corpus", "add", document, "-m", tiny)
    assert "deleted from" in cli("corpus", "clear").out
    assert kept(home) == []
    assert cli("corpus", "clear").code == 0


def test_another_place(cli: Cli, home: Path, tiny: Path, document: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    assert cli("corpus", "add", document, "-m", tiny, "--corpus", place).code == 0
    assert not (home / ".cache" / "slipstream" / "corpus").exists()
    assert len(list(place.iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "nothing.txt"], "nothing.txt does not exist; name text files or folders."),
        (["show", "--corpus", "off"], "The corpus is off"),
        (["show", "--corpus", "file"], "is a file; name a folder."),
    ],
)
def test_mistakes_are_a_sentence(
    cli: Cli, home: Path, tiny: Path, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    Path("file").write_text("x")
    more = ["-m", str(tiny)] if arguments[0] == "add" else []
    result = cli("corpus", *arguments, *more)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert sentence in result.err


def test_a_file_that_is_no_text_is_refused(cli: Cli, home: Path, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    result = cli("corpus", "add", tmp_path / "b.bin", "-m", tiny)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "no UTF-8 text" in result.err


def test_chat_keeps_what_was_said_and_run_does_not(cli: Cli, home: Path, tiny: Path) -> None:
    options = ("-m", tiny, "--max-tokens", "12", "--seed", "5", "--threads", "1", "--speculation", "on")
    assert cli("run", "hello there, how are you?", "--raw", *options).code == 0
    assert not (home / ".cache" / "slipstream" / "corpus").exists()
    assert cli("chat", *options, "--corpus", "off", stdin="hello there, how are you?\n").code == 0
    assert not (home / ".cache" / "slipstream" / "corpus").exists()
    assert cli("chat", *options, stdin="hello there, how are you?\n").code == 0
    assert len(kept(home)) == 1


def test_run_drafts_from_a_corpus_that_is_named(cli: Cli, home: Path, tiny: Path, tmp_path: Path) -> None:
    options = ("-m", tiny, "--max-tokens", "12", "--seed", "5", "--threads", "1", "--speculation", "on", "--raw")
    plain = cli("run", "hello there", *options)
    first = cli("run", "hello there", *options, "--corpus", tmp_path / "c")
    second = cli("run", "hello there", *options, "--corpus", tmp_path / "c")
    assert plain.out == first.out == second.out
    assert list((tmp_path / "c").iterdir())


def test_the_environment_says_where_a_chat_s_corpus_is(
    cli: Cli, home: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("-m", tiny, "--max-tokens", "12", "--threads", "1", "--speculation", "on")
    monkeypatch.setenv("SLIPSTREAM_CORPUS", "off")
    assert cli("chat", *options, stdin="hello there, how are you?\n").code == 0
    monkeypatch.setenv("SLIPSTREAM_CORPUS", str(tmp_path / "c"))
    assert cli("chat", *options, stdin="hello there, how are you?\n").code == 0
    assert not (home / ".cache" / "slipstream" / "corpus").exists()
    assert list((tmp_path / "c").iterdir())


def test_a_corpus_that_is_a_file_is_refused(cli: Cli, home: Path, tiny: Path, document: Path) -> None:
    result = cli("chat", "-m", tiny, "--corpus", document, stdin="hello\n")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "is a file; name a folder, or off." in result.err
