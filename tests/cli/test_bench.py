import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from slipstream.measure.records import read_bench
from slipstream.models import models_directory
from tests.cli.conftest import Cli, Result, start
from tests.measure.openai_server import serving

QUICK = ("--max-tokens", "4", "--repeats", "1", "-c", "suffix,n=2,name=suffix")
HEAD = "kind  configuration"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two prompts of two kinds."""
    path = tmp_path / "two.jsonl"
    path.write_text('{"kind": "chat", "prompt": "the thing"}\n{"kind": "code", "prompt": "and another"}\n')
    return path


def table(result: Result) -> list[list[str]]:
    """The lines under the head, cut into words."""
    head, *lines = result.out.splitlines()
    assert head.startswith("kind")
    return [line.split() for line in lines]


def test_two_prompts_make_a_table(cli: Cli, tiny: Path, two: Path) -> None:
    result = cli("bench", "-m", tiny, "--prompts", two, *QUICK)
    assert result.code == 0, result.err
    lines = table(result)
    assert [line[0] for line in lines[::2]] == ["chat", "code", "all"]
    assert [line[0] for line in lines[1::2]] == ["suffix"] * 3
    assert all(line[2].endswith("x") for line in lines[1::2])
    assert "\x1b" not in result.out + result.err
    assert "So few answers say little" in result.err


def test_the_file_has_the_run(cli: Cli, tiny: Path, two: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench.jsonl"
    options = ("--temperature", "0.5", "--seed", "7", "--threads", "1", "-o", out)
    assert cli("bench", "-m", tiny, "--prompts", two, *QUICK, *options).code == 0
    bench = read_bench(out)
    assert bench.complete
    assert len(bench.answers) == 4
    assert all(one.rounds and one.seed == 7 and one.tokens <= 4 for one in bench.answers)
    assert [one["name"] for one in bench.header["configurations"]] == ["off", "suffix"]
    assert bench.header["sampling"]["temperature"] == 0.5
    assert bench.header["machine"]["threads"] == 1
    assert (bench.header["target"]["name"], bench.header["target"]["runtime"]) == (tiny.name, "native")
    assert bench.header["kinds"] == ["chat", "code"]


def test_costs_that_were_measured_are_in_the_file(cli: Cli, tiny: Path, two: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench.jsonl"
    assert cli("bench", "-m", tiny, "--prompts", two, "--max-tokens", "4", "--repeats", "1", "-o", out).code == 0
    costs = read_bench(out).header["costs"]
    assert "1" in costs
    assert all(seconds > 0 for seconds in costs.values())


def test_json(cli: Cli, tiny: Path, two: Path) -> None:
    result = cli("bench", "-m", tiny, "--prompts", two, *QUICK, "--json")
    value: dict[str, Any] = json.loads(result.out)
    assert value["configurations"] == ["off", "suffix"]
    assert [row["kind"] for row in value["rows"]] == ["chat", "code", "all"]
    assert value["target"]["name"] == tiny.name


def test_shipped_prompts_by_kind(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench.jsonl"
    arguments = ("--kinds", "maths,chat", "--kinds", "prose", "--per-kind", "1")
    assert cli("bench", "-m", tiny, *arguments, *QUICK, "--out", out).code == 0
    assert {one.prompt for one in read_bench(out).answers} == {"maths-1", "chat-1", "prose-1"}


def test_a_configuration_that_does_not_load_is_said_and_the_others_run(
    cli: Cli, tiny: Path, two: Path, tmp_path: Path
) -> None:
    other, out = tmp_path / "other.gguf", tmp_path / "bench.jsonl"
    other.write_bytes(tiny.read_bytes()[:-100])
    specs = ("-c", f"model:{other},n=2", "-c", f"{tmp_path}/missing.gguf,n=2,name=missing")
    result = cli("bench", "-m", tiny, "--prompts", two, *QUICK, *specs, "--out", out)
    assert result.code == 1
    assert len(table(result)) == 6
    assert "model:other.gguf,n=2: " in result.err
    assert "other.gguf is truncated" in result.err
    assert "missing: There is no file" in result.err
    assert "Traceback" not in result.err
    bench = read_bench(out)
    assert [one.configuration for one in bench.failures] == ["model:other.gguf,n=2", "missing"]
    assert bench.configurations == ["off", "suffix"]


def test_a_target_that_does_not_load_is_the_end(cli: Cli, two: Path, tmp_path: Path) -> None:
    result = cli("bench", "-m", tmp_path / "missing.gguf", "--prompts", two)
    assert (result.code, result.out) == (1, "")
    assert "no file" in result.err


def test_a_server_that_dies_half_way_keeps_the_rest(cli: Cli, tiny: Path, two: Path) -> None:
    with serving("dies", good=2) as server:
        result = cli("bench", "-m", tiny, "--prompts", two, *QUICK, "--against", server.url)
    assert result.code == 1
    name = server.url.removeprefix("http://")
    assert f"{name}: The server {name} went away in the middle of an answer" in result.err
    words = [word for line in table(result) for word in line]
    assert name in words
    assert words.count("suffix") == 3


def test_a_server_is_asked_with_the_same_sampling(
    cli: Cli, tiny: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_API_KEY", "secret")
    with serving("llama") as server:
        result = cli("bench", "-m", tiny, "--prompts", two, *QUICK, "--against", server.url, "--top-k", "9")
    assert result.code == 0
    assert {request["top_k"] for request in server.requests} == {9}
    assert {request["max_tokens"] for request in server.requests} == {4}
    assert server.keys[0] == "Bearer secret"
    server_line = next(line for line in table(result) if line[0].startswith("127.0.0.1"))
    assert server_line[1] == "100.0"
    assert server_line[-2:] == ["62%", "-"]


def test_a_full_disk_is_one_sentence_and_the_table_comes(cli: Cli, tiny: Path, two: Path) -> None:
    result = cli("bench", "-m", tiny, "--prompts", two, *QUICK, "--out", "/dev/full")
    assert result.code == 1
    assert result.err.count("the disk is full") == 1
    assert len(table(result)) == 6


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--repeats", "0"), "--repeats must be a whole number from 1"),
        (("--max-tokens", "0"), "--max-tokens must be"),
        (("--per-kind", "0"), "--per-kind must be"),
        (("--seed", "-1"), "--seed must be"),
        (("--temperature", "-1"), "--temperature must be"),
        (("--max-slowdown", "7"), "--max-slowdown must be"),
        (("--kinds", "math"), "did you mean maths?"),
        (("-c", "suffix,m=1"), "unknown option m"),
        (("-c", "suffix", "-c", "suffix"), "tell them apart"),
        (("--against", "ftp://x"), "--against must be the address"),
        (("--against", "http://x:1/a", "--against", "x:1"), "--against names x:1 twice"),
        (("--prompts", "two.jsonl", "--out", "./two.jsonl"), "--out would overwrite the prompts in two.jsonl"),
        (("--prompts", "missing.jsonl"), "cannot be read"),
        (("--out", "missing/bench.jsonl"), "cannot be written"),
        (("--confg", "x"), "No such option"),
    ],
)
def test_slips_are_refused_before_anything_is_loaded(
    cli: Cli, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli("bench", "-m", tmp_path / "not-there.gguf", *arguments)
    assert result.code in (1, 2)
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert "not-there" not in result.err
    assert two.read_text().startswith('{"kind"')


def test_a_target_that_does_not_load_leaves_files_alone(cli: Cli, two: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text("an hour's work")
    for out in (old, new):
        assert cli("bench", "-m", tmp_path / "not-there.gguf", "--prompts", two, "--out", out).code == 1
    assert old.read_text() == "an hour's work"
    assert not new.exists()


def test_a_damaged_prompt_file_names_its_line(cli: Cli, two: Path) -> None:
    two.write_text(two.read_text() + "{oops\n")
    result = cli("bench", "-m", "not-there.gguf", "--prompts", two)
    assert result.code == 2
    assert "Line 3 of" in result.err


def test_ctrl_c_keeps_what_is_done(home: Path, tiny: Path, two: Path) -> None:
    out = home / "bench.jsonl"
    arguments = ("--prompts", two, "-c", "suffix,n=2,name=suffix", "--max-tokens", "16", "--repeats", "10000")
    process = start(["bench", "-m", tiny, *arguments, "--out", out])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not out.exists() or out.read_bytes().count(b"\n") < 8):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    written, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert written.startswith(b"kind")
    assert b"The run was ended before its end" in said
    assert b"Traceback" not in said
    bench = read_bench(out)
    assert len(bench.answers) >= 7
    assert not bench.complete
    assert not bench.notes


def test_a_known_model_that_is_not_here_is_fetched(
    cli: Cli, tiny: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, progress: object) -> Path:
        target = models_directory() / tiny.name
        target.parent.mkdir(parents=True)
        target.write_bytes(tiny.read_bytes())
        return target

    monkeypatch.setattr("slipstream.models.locate.pull", fetch)
    monkeypatch.setattr(
        "slipstream.models.locate.cached_path", lambda entry: next(models_directory().glob("*.gguf"), None)
    )
    assert cli("bench", "--prompts", two, *QUICK).code == 0


@pytest.mark.model
def test_the_real_model_says_the_same_with_every_drafter(smollm2: Path, cli: Cli, two: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench.jsonl"
    result = cli("bench", "-m", smollm2, "--kinds", "chat,json", "--per-kind", "1", "--max-tokens", "24", "-o", out,
                 "-c", "suffix,n=4", "-c", f"model:{smollm2},n=3")  # fmt: skip
    assert result.code == 0, result.err
    bench = read_bench(out)
    assert len(bench.answers) == 2 * 2 * 3
    for prompt in ("chat-1", "json-1"):
        for repeat in range(2):
            own = [one for one in bench.answers if (one.prompt, one.repeat) == (prompt, repeat)]
            assert len({one.ids_hash for one in own}) == 1
    drafted = [one for one in bench.answers if one.configuration.startswith("model:")]
    assert sum(one.accepted or 0 for one in drafted) > 0.5 * sum(one.drafted or 0 for one in drafted)
