"""What `slipstream advise --save` found is what run and chat use."""

import json
from pathlib import Path

import pytest

from slipstream.models import profiles
from slipstream.models.fingerprint import fingerprint
from slipstream.models.profiles import Profile
from tests.cli.conftest import Cli
from tests.shipping import ship

RUN = ("hi", "--max-tokens", "4", "--seed", "1", "--threads", "1")


def saved(target: Path, draft: str, **more: object) -> Path:
    profile = Profile(target.name, fingerprint(target), "native", draft, date="2026-01-01", ratio=1.62, **more)  # type: ignore[arg-type]
    return profiles.save(profile)


def test_the_drafter_of_the_profile_drafts_and_that_is_said(cli: Cli, tiny: Path) -> None:
    saved(tiny, f"suffix+{tiny}", draft_runtime="llamacpp", num_draft_tokens=3)
    result = cli("run", "-m", tiny, *RUN, "--json")
    assert result.err == (
        f"Drafts by suffix+{tiny}, as slipstream advise found for {tiny.name} (1.62x when it was measured).\n"
    )
    value = json.loads(result.out)
    assert value["speculation"]["drafter"] == "suffix+model"
    assert value["draft_models"][0]["runtime"] == "llamacpp"
    assert value["text"] == json.loads(cli("run", "-m", tiny, *RUN, "--json", "-d", "none").out)["text"]


@pytest.mark.parametrize("draft", ["suffix+head", "head"])
def test_a_head_that_is_gone_since_is_said_and_suffix_drafts(
    cli: Cli, tiny: Path, home: Path, monkeypatch: pytest.MonkeyPatch, draft: str
) -> None:
    head = ship(monkeypatch, home, tiny)
    saved(tiny, draft)
    result = cli("run", "-m", tiny, *RUN, "--json")
    assert result.err.startswith(f"Drafts by {draft}, as slipstream advise found for {tiny.name} (1.62x")
    assert json.loads(result.out)["speculation"]["drafter"] == draft
    head.unlink()
    result = cli("run", "-m", tiny, *RUN, "--json")
    assert result.err.startswith("Suffix lookup drafts alone, without the head that comes with Slipstream: ")
    assert json.loads(result.out)["speculation"]["drafter"] == "suffix"


def test_none_is_a_profile_too(cli: Cli, tiny: Path) -> None:
    saved(tiny, "none")
    result = cli("run", "-m", tiny, *RUN)
    assert result.err.startswith(f"Drafts by none, as slipstream advise found for {tiny.name}.\n")
    assert "speculation off" in result.err


def test_what_is_asked_for_comes_first(cli: Cli, tiny: Path) -> None:
    saved(tiny, str(tiny))
    for options, drafter in ((("-d", "suffix"), "suffix"), (("--speculation", "off"), "none")):
        result = cli("run", "-m", tiny, *RUN, "--json", *options)
        assert result.err == ""
        assert json.loads(result.out)["speculation"]["drafter"] == drafter


def test_a_profile_of_another_runtime_is_not_used(cli: Cli, tiny: Path) -> None:
    saved(tiny, "none")
    result = cli("run", "-m", tiny, *RUN, "--runtime", "llamacpp", "--json")
    assert json.loads(result.out)["speculation"]["drafter"] == "suffix"


def test_a_draft_model_that_is_gone_is_said_and_suffix_drafts(cli: Cli, tiny: Path) -> None:
    saved(tiny, "/gone.gguf")
    result = cli("run", "-m", tiny, *RUN, "--json")
    assert result.err.startswith("The draft model /gone.gguf that the profile of tiny.gguf names is not there")
    assert json.loads(result.out)["speculation"]["drafter"] == "suffix"


def test_a_damaged_profile_is_named_and_suffix_drafts(cli: Cli, tiny: Path) -> None:
    path = saved(tiny, "none")
    path.write_text("draft = ")
    result = cli("run", "-m", tiny, *RUN, "--json")
    assert result.code == 0
    assert f"The profile {path} is damaged" in result.err
    assert json.loads(result.out)["speculation"]["drafter"] == "suffix"
