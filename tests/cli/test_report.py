import errno
from pathlib import Path

import pytest

from slipstream.measure.records import Failure, Writer
from tests.cli.conftest import Cli
from tests.measure.answers import full_bench


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """What a benchmark wrote."""
    path = tmp_path / "bench.jsonl"
    bench = full_bench()
    with Writer(path) as writer:
        writer.begin(bench.header)
        for answer in bench.answers:
            writer.add(answer)
        writer.add(Failure("It broke.", "model:x.gguf"))
        writer.end(stopped=False)
    return path


def test_a_table(cli: Cli, recorded: Path) -> None:
    result = cli("report", recorded)
    assert result.code == 0
    head, *lines = result.out.splitlines()
    assert head.startswith("kind")
    assert [line.split()[0] for line in lines] == ["chat", "suffix", "model:draft.gguf,n=4",
                                                   "code", "suffix", "model:draft.gguf,n=4",
                                                   "all", "suffix", "model:draft.gguf,n=4"]  # fmt: skip
    assert "Target: target.gguf" in result.err
    assert "model:x.gguf: It broke." in result.err


def test_several_files_are_several_tables(cli: Cli, recorded: Path) -> None:
    assert cli("report", recorded, recorded).out.count("kind") == 2


def test_markdown_and_html_are_written(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    markdown, html = tmp_path / "r.md", tmp_path / "r.html"
    result = cli("report", recorded, "--markdown", markdown, "--html", html)
    assert (result.code, result.out) == (0, "")
    assert markdown.read_text().startswith("# Benchmark\n\n## target.gguf\n")
    assert html.read_text().startswith("<!doctype html>")
    assert f"Written: {html}" in result.err


def test_a_dash_is_standard_output(cli: Cli, recorded: Path) -> None:
    assert cli("report", recorded, "--markdown", "-").out.startswith("# Benchmark\n")
    assert cli("report", recorded, "--html", "-").out.endswith("</html>\n")


def test_what_was_cut_short_is_still_read(cli: Cli, recorded: Path) -> None:
    recorded.write_bytes(recorded.read_bytes()[:-200])
    result = cli("report", recorded)
    assert result.code == 0
    assert "was cut short and is left out" in result.err
    assert "ended before its end" in result.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("missing.jsonl",), "cannot be read: No such file"),
        (("notes.txt",), "is not a file that slipstream bench --out wrote"),
        (("bench.jsonl", "--html", "missing/r.html"), "cannot be written: No such file"),
        (("bench.jsonl", "--html", "/dev/full"), "cannot be written: the disk is full"),
        (("bench.jsonl", "--html", "./bench.jsonl"), "--html would overwrite bench.jsonl, which holds the benchmark"),
        (("bench.jsonl", "--markdown", "bench.jsonl"), "--markdown would overwrite bench.jsonl"),
        (("bench.jsonl", "--html", "-", "--markdown", "-"), "must be two places"),
        ((), "Missing argument"),
    ],
)
def test_slips_are_sentences(
    cli: Cli, recorded: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(recorded.parent)
    Path("notes.txt").write_text("To do: buy milk\n")
    result = cli("report", *arguments)
    assert result.code in (1, 2)
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_a_page_that_cannot_be_written_is_not_left_in_halves(
    cli: Cli, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fills(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fills)
    result = cli("report", recorded, "--html", tmp_path / "r.html")
    assert result.code == 1
    assert not (tmp_path / "r.html").exists()


def test_names_that_are_not_utf_8_can_be_written(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    recorded.write_text(recorded.read_text().replace("suffix", "caf\\udce9"))
    assert cli("report", recorded, "--html", tmp_path / "r.html").code == 0
    assert "caf?" in (tmp_path / "r.html").read_text()
