"""The head that comes with Slipstream for a model, in the commands."""

import json
from pathlib import Path

import pytest

from slipstream.cli import serve
from tests.cli.conftest import Cli
from tests.shipping import ship
from tests.tiny_models import tiny_llama

RUN = ("hi", "--max-tokens", "4", "--seed", "1", "--threads", "1")
SMALL = ("--max-tokens", "6", "--threads", "1")


@pytest.fixture
def head(tiny: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return ship(monkeypatch, home, tiny)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.jsonl"
    path.write_text('{"kind": "chat", "prompt": "the thing"}\n{"kind": "code", "prompt": "and another"}\n')
    return path


@pytest.mark.parametrize(
    ("options", "drafter"),
    [
        ((), "suffix+head"),
        (("-d", "auto"), "suffix+head"),
        (("-d", "suffix"), "suffix"),
        (("-d", "head"), "head"),
        (("-d", "none"), "none"),
        (("--speculation", "off"), "none"),
        (("--runtime", "llamacpp"), "suffix"),
    ],
)
def test_who_drafts(cli: Cli, tiny: Path, head: Path, options: tuple[str, ...], drafter: str) -> None:
    result = cli("run", "-m", tiny, *RUN, "--json", *options)
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["speculation"]["drafter"] == drafter


def test_a_missing_one_is_a_line_and_suffix_drafts(cli: Cli, tiny: Path, head: Path) -> None:
    head.unlink()
    result = cli("run", "-m", tiny, *RUN, "--json")
    assert result.code == 0
    assert result.err.startswith("Suffix lookup drafts alone, without the head that comes with Slipstream: ")
    assert result.err.count("\n") == 1
    assert json.loads(result.out)["speculation"]["drafter"] == "suffix"


def test_a_model_without_one_is_told_how_to_get_one(cli: Cli, home: Path, head: Path) -> None:
    other = tiny_llama(home / "other.gguf")
    result = cli("run", "-m", other, *RUN, "-d", "head")
    assert result.code == 2
    assert "No head for other.gguf comes with Slipstream; train one with `slipstream train-drafter" in result.err
    assert result.err.count("\n") == 1
    assert "leave auto out of auto+head" in cli("run", "-m", other, *RUN, "-d", "auto+head").err
    assert "did you mean head?" in cli("run", "-m", other, *RUN, "-d", "heads").err


def test_the_chat_drafts_by_it(cli: Cli, tiny: Path, head: Path) -> None:
    result = cli("chat", "-m", tiny, *SMALL, "--seed", "1", stdin="hi\n/stats\n")
    assert result.code == 0, result.err
    assert "suffix+head" in result.out + result.err


def test_the_server_drafts_by_it_for_all_its_texts(tiny: Path, head: Path) -> None:
    said: list[str] = []
    engine = serve._load(str(tiny), 128, "auto", 1, None, "on", None, "off", 3, said.append)
    with engine:
        assert (engine.drafter_name, said) == ("suffix+head", [])
        prompts = [[5, 6, 7], [8, 9, 10], [5, 6, 11]]
        assert len(engine.generate_many(prompts, max_tokens=5, seed=1)) == 3


def test_the_benchmark_measures_it(cli: Cli, tiny: Path, head: Path, two: Path) -> None:
    result = cli("bench", "-m", tiny, "--prompts", two, *SMALL, "--repeats", "1", "--json")
    assert result.code == 0, result.err
    value = json.loads(result.out)
    assert value["configurations"] == ["off", "suffix+head"]
    head.unlink()
    result = cli("bench", "-m", tiny, "--prompts", two, *SMALL, "--repeats", "1", "--json")
    assert json.loads(result.out)["configurations"] == ["off", "suffix"]
    assert "Suffix lookup drafts alone" in result.err


def test_advice_measures_it_and_its_memory(cli: Cli, tiny: Path, head: Path, two: Path) -> None:
    quick = ("--minutes", "0.1", "--max-tokens", "8", "--threads", "1")
    found = json.loads(cli("advise", "-m", tiny, "--prompts", two, "--json", *quick).out)
    suffix, both = found["candidates"]
    assert [one["draft"] for one in (suffix, both)] == ["suffix", "suffix+head"]
    assert both["memory"]["weights_bytes"] > suffix["memory"]["weights_bytes"] == 0
    assert both["memory"]["kv_cache_bytes"] > 0
    assert both["overall"]["speed_up"] is not None
    assert both["overall"]["predicted"] is None
    assert suffix["overall"]["predicted"] is not None


def test_a_certificate_is_for_it_too(cli: Cli, tiny: Path, head: Path, two: Path) -> None:
    result = cli("verify", "-m", tiny, "--prompts", two, "--count", "1", *SMALL, "--json")
    assert result.code == 0, result.out + result.err
    assert json.loads(result.out)["drafters"] == ["suffix", "head"]


def test_the_explanation_of_a_model_counts_it(cli: Cli, tiny: Path, head: Path) -> None:
    lines = dict(line.split("\t", 1) for line in cli("models", "--explain", tiny, "--ctx", "256").out.splitlines())
    assert "comes with Slipstream drafts for it and takes " in lines["head"]
    assert json.loads(cli("models", "--explain", tiny, "--json").out)["head_bytes"] > head.stat().st_size // 4
    head.unlink()
    assert "head\t" not in cli("models", "--explain", tiny).out
