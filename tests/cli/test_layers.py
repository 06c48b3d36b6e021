"""`slipstream layers`: what it prints, what it keeps, and that it goes on after whatever ended it."""

import json
import os
import signal
import time
from pathlib import Path
from statistics import fmean

import pytest

from slipstream.measure import layers as measured
from slipstream.models import cache_directory, layer_profiles
from slipstream.models.layer_sets import parse_layers
from tests.cli.conftest import Cli, Result, start
from tests.tiny_models import Shape, tiny_llama, tiny_recurrent

COUNT = 6
SHAPE = Shape(heads=4, key_value_heads=2, feed_forward=96, layers=COUNT)
QUICK = ("--budget", "2", "--max-tokens", "16")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "PROFILE_SECONDS", 0.05)


@pytest.fixture
def model(home: Path) -> Path:
    return tiny_llama(home / "six.gguf", shape=SHAPE)


@pytest.fixture
def prompts(home: Path) -> Path:
    path = home / "prompts.jsonl"
    lines = [json.dumps({"text": f"{number} the thing and another {number}"}) for number in range(9)]
    path.write_text("\n".join(lines))
    return path


def assert_sentence(result: Result, code: int, *parts: str) -> None:
    assert (result.code, result.out) == (code, "")
    assert "Traceback" not in result.err
    for part in parts:
        assert part in result.err


def test_what_is_found_is_kept_and_drafts_from_then_on(cli: Cli, model: Path, prompts: Path) -> None:
    result = cli("layers", model, "--prompts", prompts, "--json", *QUICK)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert (found["target"], found["layers"], found["resumed"], found["partial"]) == ("six.gguf", COUNT, 0, False)
    best = parse_layers(found["subsets"][0]["layers"], COUNT, "six.gguf")
    kept = layer_profiles.find(model, COUNT)
    assert kept is not None
    assert kept.subsets[0] == best
    assert kept.rates[0] == pytest.approx(fmean(found["subsets"][0]["right"].values()))
    assert found["profile"] == str(layer_profiles.profile_path(model))
    assert set(found["subsets"][0]["right"]) == {"0.0", "1.0"}
    assert found["subsets"][0]["checked_speedup"] is not None
    run = cli("run", "-m", model, "the", "-d", "layers", "--speculation", "on", "--max-tokens", "8", "--json", "--raw")
    assert json.loads(run.out)["draft_models"][0]["name"] == "layers of six.gguf"


def test_the_table_and_a_second_search(cli: Cli, model: Path, prompts: Path) -> None:
    first = cli("layers", model, "--prompts", prompts, *QUICK)
    lines = first.out.splitlines()
    assert lines[0].startswith(f"six.gguf: {COUNT} layers, ")
    assert [line.split()[0] for line in lines if line.startswith(("found", "default"))] == ["found", "default"]
    assert "\x1b" not in first.out + first.err
    second = json.loads(cli("layers", model, "--prompts", prompts, "--json", *QUICK).out)
    assert second["resumed"] > 0
    fresh = json.loads(cli("layers", model, "--prompts", prompts, "--json", "--fresh", *QUICK).out)
    assert fresh["resumed"] == 0


def test_a_budget_that_is_too_small_for_anything_still_finds_something(
    cli: Cli, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured._Clock, "_gone", 2.0)
    found = json.loads(cli("layers", model, "--prompts", prompts, "--json", *QUICK).out)
    assert found["evaluated"] == 1
    assert found["subsets"][0]["layers"] == found["default"]["layers"] == "0-1,5"
    assert layer_profiles.find(model, COUNT) is not None


def test_layers_can_be_kept(cli: Cli, model: Path, prompts: Path) -> None:
    found = json.loads(cli("layers", model, "--prompts", prompts, "--keep", "2-3", "--json", *QUICK).out)
    for one in found["subsets"]:
        assert {2, 3} <= set(parse_layers(one["layers"], COUNT, ""))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--budget", "0"), "--budget must be from 1 to"),
        (("--budget", "nan"), "--budget must be from 1 to"),
        (("--max-tokens", "1"), "--max-tokens must be"),
        (("--keep", "a"), "--keep must be followed by the layers"),
        (("--keep", "3,2"), "in ascending order"),
        (("--keep", "0-5"), "--keep 0-5 is all of six.gguf"),
        (("--keep", "0-6"), "has the layers 0 to 5"),
        (("--prompts", "nowhere.txt"), "cannot be read"),
    ],
)
def test_impossible_values(cli: Cli, model: Path, arguments: tuple[str, ...], says: str) -> None:
    result = cli("layers", model, *arguments)
    assert result.code in (1, 2)
    assert_sentence(result, result.code, says)


def test_models_that_have_nothing_to_search(cli: Cli, home: Path) -> None:
    recurrent = tiny_recurrent(home / "recurrent.gguf")
    assert_sentence(cli("layers", recurrent, *QUICK), 1, "runs on llamacpp, and a search needs the native runtime")
    one = tiny_llama(home / "one.gguf", shape=Shape(layers=1))
    assert_sentence(cli("layers", one, *QUICK), 1, "has 1 layer, of which none can be left out")


def test_prompts_without_usable_answers(cli: Cli, model: Path, home: Path) -> None:
    path = home / "long.jsonl"
    path.write_text(json.dumps({"text": "a much longer text " * 80}))
    assert_sentence(cli("layers", model, "--prompts", path, *QUICK), 2, "None of the prompts has an answer")


def test_a_cache_that_cannot_be_written_to(cli: Cli, model: Path, prompts: Path) -> None:
    cache_directory().mkdir(parents=True)
    (cache_directory() / "layers").write_text("a file")
    assert_sentence(cli("layers", model, "--prompts", prompts, *QUICK), 1, "cannot be", "layers")


def states() -> list[Path]:
    return sorted((cache_directory() / "layers").glob("*.search"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_search_that_is_ended_goes_on(
    cli: Cli, home: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    """Many layers, so that it is not done before it is ended."""
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(home / "cache"))
    model = tiny_llama(home / "many.gguf", shape=Shape(heads=4, key_value_heads=2, feed_forward=96, layers=40))
    arguments = ("layers", model, "--prompts", prompts, "--json", "--max-tokens", "16")
    process = start([*arguments, "--budget", "600"], env={**os.environ})
    deadline = time.monotonic() + 120
    while _looked_at() < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(how)
    out, err = process.communicate(timeout=120)
    looked_at = _looked_at()
    assert looked_at >= 3, err
    if how == signal.SIGINT:
        assert process.returncode == 130, err
        assert json.loads(out)["partial"]
        assert json.loads(out)["evaluated"] == looked_at
        assert layer_profiles.find(model, 40) is not None
    again = json.loads(cli(*arguments, "--budget", "1").out)
    assert again["resumed"] == looked_at


def _looked_at() -> int:
    found = states()
    return len(json.loads(found[0].read_text())["memory"]["agreements"]) if found else 0


def test_a_damaged_state_counts_as_absent(cli: Cli, model: Path, prompts: Path) -> None:
    cli("layers", model, "--prompts", prompts, *QUICK)
    [state] = states()
    rows = state.read_text().replace('"rows": {"1"', '"rows": {"one"')
    for damaged in ("{", '{"format": 1}', '{"format": 1, "passages": [{}], "memory": {}}', rows):
        state.write_text(damaged)
        found = json.loads(cli("layers", model, "--prompts", prompts, "--json", *QUICK).out)
        assert found["resumed"] == 0
