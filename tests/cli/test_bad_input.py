"""What a user can get wrong is one sentence on stderr and an exit code: never a traceback, never half a file."""

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from slipstream.models import cache_directory
from tests import fake_native
from tests.cli.conftest import Cli, Result, start
from tests.tiny_models import sentencepiece, tiny_llama


def assert_sentence(result: Result, code: int, *parts: str) -> None:
    assert result.code == code
    assert result.out == ""
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("slipstream: ")
    assert result.err.endswith(".\n") or result.err.endswith("?\n")
    assert "Traceback" not in result.err
    for part in parts:
        assert part in result.err


def leftovers() -> list[Path]:
    """Files in our cache but the locks, which are empty and stay (see `models.storage.exclusive`)."""
    return [path for path in cache_directory().rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_no_such_file(cli: Cli, home: Path) -> None:
    path = home / "missing.gguf"
    assert_sentence(cli("run", "-m", path, "hi"), 1, f"no file {path}")


def test_a_directory(cli: Cli, home: Path) -> None:
    (home / "model.gguf").touch()
    assert_sentence(cli("run", "-m", home, "hi"), 1, "is a directory", "holds model.gguf")


def test_an_empty_file(cli: Cli, home: Path) -> None:
    path = home / "empty.gguf"
    path.touch()
    assert_sentence(cli("run", "-m", path, "hi"), 1, str(path), "empty")


def test_not_a_gguf(cli: Cli, home: Path) -> None:
    path = home / "notes.gguf"
    path.write_text("To do: buy milk\n" * 100)
    assert_sentence(cli("run", "-m", path, "hi"), 1, str(path), "GGUF")


def test_a_truncated_file(cli: Cli, home: Path, tiny: Path) -> None:
    path = home / "half.gguf"
    path.write_bytes(tiny.read_bytes()[: tiny.stat().st_size // 2])
    assert_sentence(cli("run", "-m", path, "hi"), 1, str(path))


def test_an_unsupported_architecture(cli: Cli, home: Path, tiny: Path) -> None:
    path = home / "future.gguf"
    path.write_bytes(tiny.read_bytes().replace(b"llama", b"lamia"))
    assert_sentence(cli("run", "-m", path, "hi"), 1, "lamia")


def test_a_draft_model_with_another_vocabulary_drafts_and_says_how(cli: Cli, home: Path, tiny: Path) -> None:
    draft = tiny_llama(home / "other.gguf", vocabulary=sentencepiece())
    result = cli("run", "-m", tiny, "-d", draft, "hi", "--max-tokens", "4")
    assert result.code == 0
    assert "has another vocabulary than" in result.err
    assert "drafts through the text" in result.err


def test_a_prompt_longer_than_the_context_says_both_numbers(cli: Cli, tiny: Path) -> None:
    assert_sentence(
        cli("run", "-m", tiny, "--ctx", "512", "--raw", "x" * 600), 1, "has 600 tokens", "holds 512", "--ctx"
    )


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--temperature", "-1", "from 0 to 100"),
        ("--temp", "nan", "from 0 to 100"),
        ("--top-p", "2", "from 0 to 1"),
        ("--top-p", "0", "more than 0 and at most 1"),
        ("--min-p", "1.5", "from 0 to 1"),
        ("--top-k", "-3", "from 0 to"),
        ("--repetition-penalty", "0", "from 0.01 to 100"),
        ("--presence-penalty", "inf", "from -100 to 100"),
        ("--max-tokens", "0", "1 or more"),
        ("--num-draft-tokens", "65", "from 0 to 64"),
        ("--max-slowdown", "1.5", "from 0 to 1"),
        ("--seed", str(2**64), f"to {2**64 - 1}"),
        ("--stop", "", "not be empty"),
        ("--logit-bias", "5", "ID=VALUE"),
        ("--logit-bias", "5=inf", "from -10000 to 10000"),
        ("--threads", "0", "from 1 to 512"),
        ("--ctx", "0", "from 2 to"),
        ("--ctx", "4097", "choose 2 to 4096"),
        ("--gpu-layers", "some", "auto, all or a whole number"),
        ("--kv-type", "q9", "'q4_0'"),
        ("--flash-attention", "maybe", "'on'"),
        ("--speculation", "maybe", "'off'"),
        ("--runtime", "vulkan", "auto, native or llamacpp"),
        ("--draft-runtime", "vulkan", "auto, native or llamacpp"),
        ("--top-k", "many", "integer"),
    ],
)
def test_impossible_values_name_what_is_possible(cli: Cli, tiny: Path, option: str, value: str, allowed: str) -> None:
    assert_sentence(cli("run", "-m", tiny, "hi", option, value), 2, allowed)


def test_options_are_named_as_they_are_typed(cli: Cli, tiny: Path) -> None:
    assert_sentence(cli("run", "-m", tiny, "hi", "--top-p", "2"), 2, "slipstream: --top-p must be")


@pytest.mark.parametrize("option", ["--runtime", "--draft-runtime"])
def test_an_unknown_runtime_names_the_nearest(cli: Cli, option: str) -> None:
    result = cli("run", "-m", "missing.gguf", "hi", option, "llama.cpp")
    assert_sentence(result, 2, f"slipstream: {option} must be", "did you mean llamacpp?")


def test_a_runtime_that_cannot_run_the_file_says_which_can(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_native.install(monkeypatch, {"tiny.gguf": "its architecture is not known to it"})
    result = cli("run", "-m", tiny, "hi", "--runtime", "native")
    assert_sentence(result, 1, "cannot run tiny.gguf: its architecture is not known to it", "auto or llamacpp")


def test_a_runtime_that_lacks_an_option_says_so(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_native.install(monkeypatch)
    result = cli("run", "-m", tiny, "hi", "--runtime", "native", "--kv-type", "q8_0")
    assert_sentence(result, 2, "q8_0 was asked for", "leave the KV cache at f16")


def test_a_runtime_that_is_not_built_says_what_to_do(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_native.uninstall(monkeypatch)
    assert_sentence(
        cli("run", "-m", tiny, "hi", "--runtime", "native"), 1, "not built", "reinstall slipstream-decoding"
    )


def test_impossible_values_are_refused_before_the_model_is_looked_for(cli: Cli) -> None:
    assert_sentence(cli("run", "-m", "missing.gguf", "hi", "--top-p", "2"), 2, "--top-p")


def test_a_mistyped_drafter_names_the_nearest(cli: Cli, tiny: Path) -> None:
    assert_sentence(cli("run", "-m", tiny, "hi", "-d", "sufix"), 2, "--draft", "did you mean suffix?")


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("none+x", "leave none out"),
        ("suffix+none", "leave none out"),
        ("auto+x", "leave auto out"),
        ("atuo", "did you mean auto?"),
        ("sufix+x", "did you mean suffix?"),
        ("lowbits", "did you mean lowbit?"),
        ("suffix+", "names no model after the plus sign"),
        ("suffix+suffix", "has suffix twice"),
        ("suffix+suffix+x", "has suffix twice"),
    ],
)
def test_drafters_that_cannot_be_combined(cli: Cli, tiny: Path, spec: str, advice: str) -> None:
    assert_sentence(cli("run", "-m", tiny, "hi", "-d", spec), 2, "suffix+MODEL", advice)


def test_any_models_can_be_combined(cli: Cli, tiny: Path) -> None:
    assert_sentence(cli("run", "-m", tiny, "hi", "-d", f"{tiny}+magic"), 1, "no model called 'magic'")


@pytest.mark.parametrize("spec", ["", " "])
def test_an_empty_drafter_says_what_there_is(cli: Cli, tiny: Path, spec: str) -> None:
    told = "auto, none, suffix, recycling, lowbit, layers, head, a model, a head's file, or several"
    assert_sentence(cli("run", "-m", tiny, "hi", "-d", spec), 2, told)


@pytest.mark.parametrize("spec", ["suffix+q8", "suffix+no", "suffix+x"])
def test_what_follows_suffix_is_a_model_s_name(cli: Cli, tiny: Path, spec: str) -> None:
    assert_sentence(cli("run", "-m", tiny, "hi", "-d", spec), 1, f"no model called '{spec[7:]}'")


def test_an_unknown_model_names_the_nearest(cli: Cli) -> None:
    assert_sentence(cli("run", "-m", "smollm-135m", "hi"), 1, "did you mean 'smollm2-135m'")
    assert_sentence(cli("pull", "smollm-135m"), 1, "did you mean 'smollm2-135m'")


def test_an_unknown_option_names_the_nearest(cli: Cli) -> None:
    assert_sentence(cli("run", "--temprature", "1", "hi"), 2, "--temprature", "--temperature")


def test_an_unknown_command_names_the_nearest(cli: Cli) -> None:
    assert_sentence(cli("rum", "hi"), 2, "'rum'", "'run'")


def test_a_model_that_is_not_here_says_how_to_get_it(cli: Cli) -> None:
    assert_sentence(cli("run", "hi"), 1, "slipstream pull smollm2-135m")


def test_no_prompt(cli: Cli, fake: object) -> None:
    assert_sentence(cli("run"), 2, "no prompt")


def test_a_prompt_that_is_no_text(cli: Cli, fake: object) -> None:
    assert_sentence(cli("run", stdin=b"abc\xff"), 2, "not UTF-8", "byte 4")


def test_template_options_without_a_template(cli: Cli, fake: object) -> None:
    assert_sentence(cli("run", "--raw", "--system", "be brief", "hi"), 2, "--system", "--raw")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_switch_that_would_do_nothing(cli: Cli, fake: object, command: str) -> None:
    assert_sentence(cli(command, "--think", stdin="hi"), 2, "no switch for thinking")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_model_without_a_chat_template(cli: Cli, home: Path, command: str) -> None:
    path = tiny_llama(home / "base.gguf", vocabulary=sentencepiece())
    assert_sentence(cli(command, "-m", path, stdin="hi"), 1, "no chat template", "--raw")


def test_raw_needs_no_template_that_works(cli: Cli, home: Path, tiny: Path) -> None:
    path = home / "bad.gguf"
    path.write_bytes(tiny.read_bytes().replace(b"{% for message in messages %}", b"{% for message in messages !}"))
    for command in ("run", "chat"):
        assert_sentence(cli(command, "-m", path, stdin="hi"), 1, "chat template cannot be compiled", "--raw")
    assert cli("run", "-m", path, "--raw", "hi", "--max-tokens", "3").code == 0


def test_no_network_for_the_hub(home: Path) -> None:
    begun = time.monotonic()
    variables = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    process = start(["pull", "hf:acme/Tiny/x.gguf"], env=variables)
    out, err = process.communicate(timeout=60)
    assert_sentence(Result(process.returncode, out.decode(), err.decode()), 1, "hub cannot be reached", "network")
    assert time.monotonic() - begun < 10


def test_no_network(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # nobody listens on the discard port
    for name, value in {
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_RETRIES": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert_sentence(cli("pull", "smollm2-135m"), 1, "cannot be reached", "network")
    assert leftovers() == []


def test_a_full_disk(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(home)._replace(free=1_000_000)
    monkeypatch.setattr("slipstream.models.storage.shutil.disk_usage", lambda _: usage)
    assert_sentence(cli("pull", "smollm2-135m"), 1, "needs", "1 MB are free", "SLIPSTREAM_CACHE_DIR")
    assert leftovers() == []


def test_no_permission(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)  # the superuser may write everywhere, and tests may run as one
    assert_sentence(cli("pull", "smollm2-135m"), 1, "no permission", "SLIPSTREAM_CACHE_DIR")
    assert leftovers() == []
