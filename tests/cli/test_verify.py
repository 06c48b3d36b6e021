import json
import signal
from pathlib import Path

import pytest

from slipstream.cli.interrupt import interrupts
from slipstream.measure import cases
from slipstream.measure.broken import MISTAKES, planted
from tests.cli.conftest import Cli
from tests.tiny_models import sentencepiece, tiny_llama

SMALL = ("--count", "2", "--max-tokens", "12", "--seed", "3", "--threads", "1")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Short ones that repeat themselves, so that suffix drafts."""
    path = tmp_path / "prompts.txt"
    path.write_text("one two one two one two one two\n\nred green red green red green\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("runtime", ["native", "llamacpp"])
def test_a_certificate_for_a_tiny_model(cli: Cli, tiny: Path, prompts: Path, runtime: str) -> None:
    result = cli("verify", "-m", tiny, "-d", "suffix", "-d", tiny, *SMALL, "--prompts", prompts, "--runtime", runtime)
    assert result.code == 0, result.out + result.err
    head, *_, verdict = result.out.splitlines()
    assert head.startswith(f"tiny.gguf on the {runtime} runtime")
    trees = runtime == "native"
    for way in (
        "plain, again",
        "suffix, auto",
        "tiny.gguf, auto",
        "suffix+tiny.gguf, auto",
        "prediction, chains of 4",
        "rehearsal, chains of 4",
    ):
        assert f"\n{way} " in result.out
    assert ("rehearsal, trees of 4" in result.out) == trees
    assert verdict.startswith("IDENTICAL: " if trees else ("IDENTICAL: ", "NO REAL DIFFERENCE: "))


@pytest.mark.parametrize("runtime", ["native", "llamacpp"])
def test_a_certificate_with_a_draft_model_of_another_vocabulary(
    cli: Cli, tiny: Path, prompts: Path, tmp_path: Path, runtime: str
) -> None:
    other = tiny_llama(tmp_path / "other.gguf", vocabulary=sentencepiece())
    result = cli("verify", "-m", tiny, "-d", other, *SMALL, "--prompts", prompts, "--runtime", runtime, "--temp", "0.9")
    assert result.code == 0, result.out + result.err
    assert "\nother.gguf, auto " in result.out


@pytest.mark.parametrize("runtime", ["native", "llamacpp"])
def test_a_certificate_for_a_low_bit_copy(cli: Cli, tmp_path: Path, prompts: Path, runtime: str) -> None:
    target = tiny_llama(tmp_path / "big.gguf", storage="F16")
    law = ["--distribution"] if runtime == "native" else []
    options = (*SMALL, "--prompts", prompts, "--runtime", runtime, "--draft-runtime", runtime, *law)
    result = cli("verify", "-m", target, "-d", "lowbit", "-d", "suffix", *options, "--json")
    assert result.code == 0, result.out + result.err
    value = json.loads(result.out)
    assert value["outcome"] in (("identical",) if runtime == "native" else ("identical", "near-ties"))
    ways = {one["way"]: one for one in value["comparisons"]}
    for way in ("lowbit, chains of 4", "lowbit+suffix, chains of 4", "prediction, chains of 4"):
        assert ways[way]["accepted"] > 0, way
        assert not ways[way]["proves_nothing"]
    if law:
        assert any("lowbit" in json.dumps(test) for test in value["distribution"]["tests"])


def test_json_has_everything(cli: Cli, tiny: Path, prompts: Path) -> None:
    result = cli("verify", "-m", tiny, *SMALL, "--prompts", prompts, "--seeds", "2", "--temp", "0.9", "--json")
    assert result.code == 0
    value = json.loads(result.out)
    assert (value["outcome"], value["failed"], value["partial"]) == ("identical", False, False)
    assert [case["seed"] for case in value["cases"]] == [3, 4, 3, 4]
    assert value["sampling"]["temperature"] == 0.9
    assert value["comparisons"][0]["texts"] == 4


def test_a_real_difference_is_exit_code_1(cli: Cli, tiny: Path, prompts: Path) -> None:
    with planted(MISTAKES[1].verify):
        result = cli("verify", "-m", tiny, *SMALL, "--prompts", prompts, "--temp", "1")
    assert result.code == 1
    assert result.out.splitlines()[-1].startswith("DIFFERENT: ")


def test_an_interrupt_keeps_what_was_verified(
    cli: Cli, tiny: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = cases.answer, []

    def answer(*arguments: object) -> object:
        answers.append(arguments)
        if len(answers) == 4:
            interrupts._handle(signal.SIGINT, None)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("slipstream.measure.certificate.answer", answer)
    result = cli("verify", "-m", tiny, *SMALL, "--prompts", prompts, "--json")
    assert result.code == 130
    value = json.loads(result.out)
    assert value["partial"] is True
    assert [one["texts"] for one in value["comparisons"]] == [1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-d", "none"], "--draft none drafts nothing, so there is nothing to verify; name a drafter."),
        (["-d", "sufix"], "did you mean suffix?"),
        (["-d", "no-such-model.gguf"], "no-such-model.gguf"),
        (["--num-draft-tokens", "0"], "--num-draft-tokens 0 drafts nothing, so there is nothing to verify"),
        (["--count", "0"], "count must be a whole number from 1 to"),
        (["--seeds", "0"], "seeds must be a whole number from 1 to"),
        (["--max-tokens", "0"], "max-tokens must be a whole number from 1 to"),
        (["--top-p", "2"], "--top-p must be a number from 0 to 1"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--ctx", "16"], "and the context holds 16, which leaves no room for an answer"),
    ],
)
def test_what_cannot_be_is_one_sentence(cli: Cli, tiny: Path, arguments: list[str], sentence: str) -> None:
    result = cli("verify", "-m", tiny, *SMALL, *arguments)
    assert result.code in (1, 2)
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_a_model_that_is_not_there(cli: Cli) -> None:
    result = cli("verify", "-m", "no-such-model")
    assert result.code == 1
    assert "no-such-model" in result.err


@pytest.mark.model
@pytest.mark.parametrize("runtime", ["native", "llamacpp"])
def test_a_real_model_with_all_that_there_is(cli: Cli, smollm2: Path, runtime: str) -> None:
    arguments = (
        "--runtime",
        runtime,
        "--count",
        "2",
        "--max-tokens",
        "24",
        "--seed",
        "7",
        "--distribution",
        "--self-test",
    )
    result = cli("verify", "-m", smollm2, "-d", "suffix", *arguments, "--json")
    assert result.code == 0, result.out
    value = json.loads(result.out)
    assert value["target"]["bit_exact_rows"] == (runtime == "native")
    assert value["outcome"] in (("identical",) if runtime == "native" else ("identical", "near-ties"))
    assert value["comparisons"][-1]["accepted"] > 10
    assert value["distribution"]["tests"][0]["cells"] > 1
    assert [one["as_it_should"] for one in value["self_test"]["verifiers"]] == [True] * 6
