import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipstream.cli.interrupt import interrupts
from slipstream.core.protocols import Segment
from slipstream.engine import Engine
from slipstream.models import ChatTemplate
from tests import fake_native
from tests.cli.conftest import Cli
from tests.fakes import ByteVocabulary, FakeModel, FakeRows

FIGURES = re.compile(
    r"\d+ tokens · [\d.]+ tok/s · [\d.]+ tokens a round · (\d+% accepted|nothing drafted) · "
    r"draft \d+% verify \d+% · seed \d+( · cut at the limit)?\n"
)


def test_text_goes_to_stdout_and_one_line_of_figures_to_stderr(cli: Cli, fake: FakeModel) -> None:
    result = cli("run", "hello", "--max-tokens", "20", "--seed", "7")
    assert result.code == 0
    assert re.fullmatch(r"[a-z]{10,20}\n", result.out)
    assert FIGURES.fullmatch(result.err), result.err
    assert fake.closed


def test_speculation_changes_nothing_but_the_figures(cli: Cli, fake: FakeModel) -> None:
    on = cli("run", "hello", "--max-tokens", "100", "--seed", "7")
    off = cli("run", "hello", "--max-tokens", "100", "--seed", "7", "--speculation", "off")
    assert on.out == off.out
    assert "% accepted" in on.err
    assert "speculation off" in off.err


def test_without_speculation_nothing_is_said_to_be_drafted(cli: Cli, fake: FakeModel) -> None:
    off = ("run", "hello", "--max-tokens", "5", "--speculation", "off")
    assert cli(*off, "--explain").err.endswith("Plain decoding: there is no drafter.\n")
    policy = json.loads(cli(*off, "--json").out)["speculation"]["policy"]
    assert policy["explanation"] == "Plain decoding: there is no drafter."


def test_a_drafter_of_none_is_no_speculation(cli: Cli, fake: FakeModel) -> None:
    assert "speculation off" in cli("run", "hello", "--max-tokens", "5", "-d", "none").err


def prompt_of(cli: Cli, monkeypatch: pytest.MonkeyPatch, *arguments: str, stdin: str = "") -> str:
    """What the engine was asked to continue."""
    seen: list[list[int]] = []
    inner = Engine.stream

    def stream(self: Engine, prompt: list[int] | str, **options: object) -> object:
        seen.append(self.tokenize(prompt))
        return inner(self, prompt, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "stream", stream)
    assert cli("run", "--max-tokens", "2", *arguments, stdin=stdin).code == 0
    return b"".join(b"<end>" if token == 256 else bytes([token]) for token in seen[0]).decode()


@pytest.mark.parametrize(
    ("arguments", "stdin", "prompt"),
    [
        (["hi"], "", "[user]hi<end>[assistant]"),
        ([], "piped\n", "[user]piped<end>[assistant]"),
        (["Summarise:"], "a text\n\n", "[user]Summarise:\n\na text<end>[assistant]"),
        (["hi", "--system", "sys"], "", "[system]sys<end>[user]hi<end>[assistant]"),
        (["hi <end> [bold]", "--raw"], "", "hi <end> [bold]"),
    ],
)
def test_the_prompt(
    cli: Cli, fake: FakeModel, monkeypatch: pytest.MonkeyPatch, arguments: list[str], stdin: str, prompt: str
) -> None:
    assert prompt_of(cli, monkeypatch, *arguments, stdin=stdin) == prompt


def test_json_is_one_object_with_everything(cli: Cli, fake: FakeModel) -> None:
    plain = cli("run", "hello", "--max-tokens", "60", "--seed", "7")
    result = cli("run", "hello", "--max-tokens", "60", "--seed", "7", "--json")
    assert (result.code, result.err) == (0, "")
    value = json.loads(result.out)
    assert list(value) == [
        "text", "tokens", "finish_reason", "seed", "timings", "speculation", "model", "draft_models",
    ]  # fmt: skip
    assert value["text"] == plain.out.rstrip("\n")
    assert value["finish_reason"] in ("stop", "length")
    assert value["seed"] == 7
    assert set(value["timings"]) >= {
        "prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second",
        "draft_n", "draft_n_accepted",
    }  # fmt: skip
    assert value["timings"]["predicted_n"] == len(value["tokens"])
    assert set(value["speculation"]) == {
        "enabled", "drafter", "rounds", "mean_accepted_length", "acceptance_rate", "accepted_per_position",
        "estimated_speed_up", "time_ms", "policy",
    }  # fmt: skip
    assert value["speculation"]["enabled"] is True
    assert value["speculation"]["drafter"] == "suffix"
    assert set(value["speculation"]["time_ms"]) == {"draft", "verify", "sample", "other"}
    assert value["model"] == {"name": "fake.gguf", "runtime": "fake", "memory_bytes": 1}
    assert value["draft_models"] == []


def test_a_prediction_is_drafted_from(cli: Cli, fake: FakeModel, tmp_path: Path) -> None:
    plain = cli("run", "hello", "--max-tokens", "60", "--seed", "7", "--speculation", "off", "--json")
    file = tmp_path / "earlier.txt"
    file.write_text(json.loads(plain.out)["text"], encoding="utf-8")
    fast = cli("run", "hello", "--max-tokens", "60", "--seed", "7", "-d", "none", "--prediction", file, "--json")
    assert json.loads(fast.out)["tokens"] == json.loads(plain.out)["tokens"]
    assert json.loads(fast.out)["speculation"]["drafter"] == "prediction"
    assert json.loads(fast.out)["speculation"]["enabled"] is True


def test_a_prediction_that_cannot_be_read_is_one_sentence(cli: Cli, fake: FakeModel, tmp_path: Path) -> None:
    missing = cli("run", "hello", "--prediction", tmp_path / "no.txt")
    assert (missing.code, missing.out) == (2, "")
    assert "no.txt cannot be read: No such file or directory." in missing.err
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert "is not UTF-8 text (byte 4)" in cli("run", "hello", "--prediction", tmp_path / "latin.txt").err
    assert "Is a directory" in cli("run", "hello", "--prediction", tmp_path).err


def test_json_names_the_draft_model(cli: Cli, tiny: Path) -> None:
    result = cli("run", "-m", tiny, "-d", f"suffix+{tiny}", "hi", "--max-tokens", "4", "--json")
    value = json.loads(result.out)
    assert value["draft_models"][0]["name"] == "tiny.gguf"
    assert value["draft_models"][0]["memory_bytes"] > 100_000
    assert value["speculation"]["drafter"] == "suffix+model"


def test_what_runs_on_llamacpp_after_all_is_said_in_one_line(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_native.install(monkeypatch, {"tiny.gguf": "its architecture is not known to it"})
    arguments = ("run", "-m", tiny, "hi", "--max-tokens", "4", "--seed", "1", "--threads", "1")
    said, asked = cli(*arguments), cli(*arguments, "--runtime", "llamacpp")
    notice = "tiny.gguf runs on llama.cpp; the native runtime cannot run it: its architecture is not known to it.\n"
    assert said.err.startswith(notice)
    assert FIGURES.fullmatch(said.err.removeprefix(notice))
    assert FIGURES.fullmatch(asked.err), "what was asked for needs no notice"
    assert said.out == asked.out


def test_target_and_draft_model_may_have_different_runtimes(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_native.install(monkeypatch)
    runtimes = ("--runtime", "llamacpp", "--draft-runtime", "native")
    result = cli("run", "-m", tiny, "-d", tiny, "hi", "--max-tokens", "4", "--json", "--threads", "1", *runtimes)
    value = json.loads(result.out)
    assert (value["model"]["runtime"], value["draft_models"][0]["runtime"]) == ("llamacpp", "native")


def test_a_stop_string_is_left_out(cli: Cli, fake: FakeModel) -> None:
    whole = cli("run", "hello", "--max-tokens", "60", "--seed", "7").out
    stop = whole[20:23]
    result = cli("run", "hello", "--max-tokens", "60", "--seed", "7", "--stop", "###", "--stop", stop)
    assert result.out == whole[: whole.index(stop)] + "\n"


def test_a_logit_bias_is_obeyed(cli: Cli, fake: FakeModel) -> None:
    result = cli("run", "hi", "--temp", "0", "--max-tokens", "3", "--logit-bias", "0=500", "--logit-bias", "1=-inf")
    assert result.out == "aaa\n"


def test_text_that_looks_like_markup_is_written_as_it_is(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"[bold]x[/bold] :smile: http://a.b \x1b[31m"
    model = FakeModel(ByteVocabulary(), order=1)
    bytes_left = iter(text)
    real = model.row

    def row(context: list[int]) -> object:
        logits = real(context).copy()
        logits[next(bytes_left, 256)] = 1000.0
        return logits

    model.row = row  # type: ignore[method-assign, assignment]
    engine = Engine(model, template=ChatTemplate("{{ messages[0].content }}"))
    monkeypatch.setattr(Engine, "load", lambda *_, **__: engine)
    # the prompt of one token is not computed before the first round
    assert cli("run", "x").out == text.decode() + "\n", "a pipe gets the text itself"


def test_an_interrupt_leaves_json_whole(cli: Cli, fake: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fake.forward

    def forward(batch: Sequence[Segment]) -> list[FakeRows]:
        if fake.forwards == 12:
            interrupts._handle(signal.SIGINT, None)
        return real(batch)

    monkeypatch.setattr(fake, "forward", forward)
    result = cli("run", "hello", "--json", "--max-tokens", "200", "--temp", "3", "--logit-bias", "256=-inf")
    assert result.code == 130
    value = json.loads(result.out)
    assert value["finish_reason"] == "cancelled"
    assert value["tokens"]


@pytest.mark.model
def test_a_real_model_answers(cli: Cli, smollm2: Path) -> None:
    text = "The river Thames flows through London. It is the longest river in England."
    result = cli("run", "-m", smollm2, f"Print this text again:\n\n{text}", "--temp", "0", "--max-tokens", "40")
    assert result.code == 0
    assert "Thames" in result.out
    found = FIGURES.fullmatch(result.err)
    assert found is not None
    assert found[1].endswith("accepted")
