import json
import sys
from pathlib import Path

import pytest

from slipstream.models import CATALOG, models_directory
from slipstream.runtime import native as real_native
from tests import fake_native
from tests.cli.conftest import Cli
from tests.tiny_models import Shape, tiny_llama


@pytest.fixture
def two_models(home: Path) -> Path:
    """One good and one damaged file in our cache."""
    models_directory().mkdir(parents=True)
    (models_directory() / "damaged.gguf").write_bytes(b"GGUF")
    return tiny_llama(models_directory() / "good\x1b[31m.gguf")


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """A native runtime that runs everything."""
    fake_native.install(monkeypatch)


def test_a_pipe_gets_a_line_for_each_model_separated_by_tabs(cli: Cli, two_models: Path) -> None:
    result = cli("models")
    assert result.code == 0
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [len(row) for row in rows] == [7] * (2 + len(CATALOG))
    assert rows[1] == ["good[31m", "0 MB", "F32", "llama", "cc0-1.0", "slipstream", "native"]
    assert ["smollm2-135m", "98 MB", "Q4_1", "-", "apache-2.0", "not fetched", "-"] in rows
    assert "damaged cannot be used: " in result.err


def test_json_has_paths_and_problems(cli: Cli, two_models: Path) -> None:
    result = cli("models", "--json")
    assert result.err == ""
    damaged, good, *available = json.loads(result.out)
    assert good["path"] == str(two_models)
    assert good["problem"] is None
    assert damaged["problem"]
    assert (damaged["runtime"], good["runtime"]) == (None, "native")
    assert {row["path"] for row in available} == {None}
    assert {row["name"] for row in available} == set(CATALOG)


def test_what_the_native_runtime_cannot_run_is_llamacpp_s(
    cli: Cli, two_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_native.install(monkeypatch, {two_models.name: "it is a test"})
    _, good, *_ = json.loads(cli("models", "--json").out)
    assert good["runtime"] == "llamacpp"


def test_a_model_is_explained_in_a_line_for_each_fact(
    cli: Cli, two_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_native.uninstall(monkeypatch)
    result = cli("models", "--explain", str(two_models), "--ctx", "64")
    assert result.code == 0
    facts = dict(line.split("\t") for line in result.out.splitlines())
    assert list(facts) == [
        "model",
        "architecture",
        "formats",
        "runtime",
        "computes on",
        "memory",
        "speed",
        "low-bit copy",
    ]
    assert facts["model"] == "good[31m.gguf"
    assert facts["architecture"].startswith("llama: ")
    assert "because the native runtime is not built" in facts["runtime"]
    assert "with a context of 64 tokens" in facts["memory"]
    assert "slipstream bench" in facts["speed"], "nothing to measure with"
    assert facts["low-bit copy"].startswith("--draft lowbit:q4_0 would have ")
    assert "known when they are made" in facts["low-bit copy"]


def test_types_that_were_not_asked_for_are_explained(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_native.uninstall(monkeypatch)
    target = tiny_llama(tmp_path / "big.gguf", storage="F16", shape=Shape(feed_forward=80))
    facts = dict(line.split("\t") for line in cli("models", "--explain", str(target)).out.splitlines())
    assert "of F16 because rows of these matrices are no whole blocks" in facts["low-bit copy"]
    assert "because" not in facts["formats"]


def test_the_native_runtime_tells_how_fast_a_model_can_be(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, fake_native.NAME, real_native)
    found = json.loads(cli("models", "--explain", str(tiny), "--json").out)
    assert found["runtime"] == "native"
    assert "threads, " in found["computes_on"]
    assert found["most_tokens_per_second"] > found["most_tokens_per_second_at_full_context"] > 0
    assert found["most_tokens_per_second"] == pytest.approx(found["bytes_per_second"] / found["bytes_per_token"])
    assert 1e8 < found["bytes_per_second"] < 1e13, "in bytes"
    facts = dict(line.split("\t") for line in cli("models", "--explain", str(tiny)).out.splitlines())
    assert facts["speed"].startswith("at most ")
    assert "tok/s of plain decoding" in facts["speed"]


@pytest.mark.parametrize("option", [("--ctx", "64"), ("--runtime", "native")])
def test_options_of_an_explanation_without_one(cli: Cli, option: tuple[str, str]) -> None:
    result = cli("models", *option)
    assert (result.code, result.out) == (2, "")
    assert "belong to --explain" in result.err


def test_an_explanation_as_json(cli: Cli, two_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_native.uninstall(monkeypatch)
    found = json.loads(cli("models", "--explain", str(two_models), "--json").out)
    assert found["path"] == str(two_models)
    assert found["memory_bytes"]["buffers"] is None
    assert found["most_tokens_per_second"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--explain", "nobody"], "There is no model called 'nobody'"),
        (["--explain", "{folder}/damaged.gguf"], "damaged"),
        (["--explain", "{good}", "--ctx", "1"], "context length must be"),
    ],
)
def test_what_cannot_be_explained_is_one_sentence(
    cli: Cli, two_models: Path, arguments: list[str], sentence: str
) -> None:
    result = cli("models", *(one.format(folder=two_models.parent, good=two_models) for one in arguments))
    assert result.code != 0
    assert sentence in result.err
    assert result.out == ""
