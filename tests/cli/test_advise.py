import json
import os
import signal
import time
from pathlib import Path

import pytest

from slipstream.models import models_directory, profiles
from tests.cli.conftest import Cli, start
from tests.tiny_models import sentencepiece, tiny_llama, tiny_recurrent

QUICK = ("--minutes", "0.05", "--max-tokens", "8", "--ctx", "256")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("advise", "evidence"):
        monkeypatch.setattr(f"slipstream.measure.{module}.PROFILE_SECONDS", 0.05)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two prompts of two kinds."""
    path = tmp_path / "two.jsonl"
    path.write_text('{"kind": "chat", "prompt": "the thing"}\n{"kind": "code", "prompt": "and another"}\n')
    return path


def test_named_candidates_come_to_tables_and_a_verdict(cli: Cli, tiny: Path, two: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", vocabulary=sentencepiece())
    recurrent = tiny_recurrent(tmp_path / "recurrent.gguf")
    chosen = ("-c", "suffix", "-c", tiny, "-c", other, "-c", recurrent, "-c", "nowhere")
    result = cli("advise", "-m", tiny, "--prompts", two, *chosen, *QUICK)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith(f"Target: {tiny.name} on native, 256 tokens of context at ")
    assert lines[-1].startswith("Verdict: ")
    assert (
        sum(line.split() == ["kind", "speed-up", "predicted", "accepted", "tokens", "a", "round"] for line in lines)
        == 3
    )
    reasons = [line.strip() for line in lines[lines.index("Not measured:") :]]
    assert any(line.startswith(str(other)) for line in lines), "a model of another vocabulary drafts through the text"
    assert any(line.startswith(f"{recurrent}: ") and "cannot take tokens back" in line for line in reasons)
    assert any(line.startswith("nowhere: There is no model called") for line in reasons)
    assert "\x1b" not in result.out + result.err


def test_json_is_one_object(cli: Cli, tiny: Path, two: Path) -> None:
    result = cli("advise", "-m", tiny, "--prompts", two, "--kinds", "code", "-c", "suffix", "--json", *QUICK)
    found = json.loads(result.out)
    assert found["target"] == tiny.name
    assert found["profile"] is None
    assert found["verdict"]["answer"] in ("yes", "some", "none")
    [candidate] = found["candidates"]
    assert candidate["name"] == candidate["draft"] == "suffix"
    assert list(candidate["kinds"]) == ["code"]
    assert candidate["overall"]["speed_up"]["pairs"] >= 1
    assert candidate["memory"]["total_bytes"] == candidate["memory"]["own_bytes"] > 0


def test_models_of_this_machine_are_found(cli: Cli, home: Path, two: Path) -> None:
    target = tiny_llama(home / "target.gguf", storage="F32")
    models_directory().mkdir(parents=True)
    tiny_llama(models_directory() / "small.gguf", storage="Q4_0")
    found = json.loads(cli("advise", "-m", target, "--prompts", two, "--json", *QUICK).out)
    assert [one["name"] for one in found["candidates"]] == ["suffix", "small"]


def test_a_saved_verdict_is_the_profile_of_that_target(cli: Cli, tiny: Path, two: Path, tmp_path: Path) -> None:
    recurrent = tiny_recurrent(tmp_path / "recurrent.gguf")
    result = cli("advise", "-m", tiny, "--prompts", two, "-c", recurrent, "--save", *QUICK)
    assert result.code == 0, result.err
    profile = profiles.find(tiny, "native")
    assert profile is not None
    assert (profile.target, profile.draft, profile.runtime) == (tiny.name, "none", "native")
    assert profile.version
    assert profile.date
    assert "Saved to " in result.err


def test_a_profile_that_cannot_be_saved_does_not_cost_the_verdict(
    cli: Cli, tiny: Path, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLIPSTREAM_CONFIG_DIR", str(tmp_path / "file"))
    result = cli("advise", "-m", tiny, "--prompts", two, "-c", "suffix", "--save", *QUICK)
    assert result.code == 1
    assert "Verdict: " in result.out
    assert "The profile cannot be saved" in result.err


def test_a_winner_is_saved_with_its_speed_up(
    cli: Cli, tiny: Path, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tiny_llama(tmp_path / "small.gguf", storage="Q8_0")
    monkeypatch.setattr("slipstream.measure.verdict.is_worth", lambda ratio: True)
    result = cli("advise", "-m", tiny, "--prompts", two, "-c", small, "--num-draft-tokens", "6", "--save", *QUICK)
    assert result.code == 0, result.err
    profile = profiles.find(tiny)
    assert profile is not None
    assert (profile.draft, profile.draft_runtime, profile.num_draft_tokens) == (str(small), "native", 6)
    assert set(profile.kinds) == {"chat", "code"}
    assert 0 < profile.low <= profile.ratio <= profile.high


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--minutes", "0"), "--minutes must be from 0.05 to 1440, not 0."),
        (("--minutes", "nan"), "--minutes must be"),
        (("--max-tokens", "0"), "--max-tokens must be"),
        (
            ("-c", "none"),
            "--candidates must be suffix, recycling, lowbit, layers, head, a model, a head's file or suffix",
        ),
        (("-c", "suffx", "--save"), "None of the candidates can be measured. suffx: There is no model called 'suffx'"),
        (("--kinds", "cod"), "did you mean code?"),
        (("--max-slowdown", "2"), "--max-slowdown must be"),
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("-m", "nowhere"), "no model called 'nowhere'"),
        (("--draft", "suffix"), "--draft"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, tiny: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = cli("advise", "-m", tiny, *arguments)
    assert result.code in (1, 2)
    assert result.out == ""
    assert sentence in result.err
    assert len(result.err.splitlines()) == 1


def test_ctrl_c_ends_it_with_a_verdict_on_what_there_is(tiny: Path, home: Path) -> None:
    environment = os.environ | {"SLIPSTREAM_CACHE_DIR": str(home / "cache")}
    process = start(["advise", "-m", tiny, "-c", "suffix", "--max-tokens", "800", "--minutes", "30"], env=environment)
    while not list((home / "cache").glob("policy/*.json")):  # the policy's costs: all is loaded
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.decode().splitlines()[-1].startswith("Verdict: ")
    assert "unfinished" in out.decode()


@pytest.mark.model
def test_a_real_model_and_a_copy_of_itself(cli: Cli, smollm2: Path, two: Path) -> None:
    """Its structure; speed is measured where nothing else is at work."""
    chosen = ("-c", "suffix", "-c", smollm2)
    result = cli("advise", "-m", smollm2, "--prompts", two, *chosen, "--minutes", "0.2", "--max-tokens", "16", "--json")
    assert result.code in (0, 1), result.err
    found = json.loads(result.out)
    assert [one["name"] for one in found["candidates"]] == ["suffix", str(smollm2)]
    itself = found["candidates"][1]
    assert itself["memory"]["target_context_tokens"] > 0
    assert itself["differing_answers"] == 0
    assert itself["costs"]["draft_step"] > 0
