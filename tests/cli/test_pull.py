from pathlib import Path

import pytest

from slipstream.models import CATALOG, models_directory
from tests.cli.conftest import Cli


@pytest.fixture
def arrives(monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A download that puts a file of the right size in place."""
    entry = CATALOG["smollm2-135m"]
    path = models_directory() / entry.file_name

    def pull(name: str, progress: object) -> Path:
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.truncate(entry.size)
        return path

    monkeypatch.setattr("slipstream.models.pull", pull)
    return path


def test_one_line_says_where_it_is_and_under_which_licence(cli: Cli, arrives: Path) -> None:
    result = cli("pull", "smollm2-135m")
    assert result.code == 0
    assert result.out == f"smollm2-135m is ready: {arrives} (98 MB, licence: apache-2.0)\n"
    assert result.err == "Apache License 2.0.\n"


def test_what_is_here_is_not_fetched_again(cli: Cli, arrives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("pull", "smollm2-135m")
    monkeypatch.setattr("slipstream.models.pull", lambda *_: pytest.fail("fetched again"))
    assert "is here already" in cli("pull", "SmolLM2-135M").out
