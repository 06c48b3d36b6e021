import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import huggingface_hub.errors
import pytest
from huggingface_hub.utils import logging as hub_logging

from slipstream.errors import DownloadError, SlipstreamError, StorageError, UnknownModelError
from slipstream.models import hub, pull

NAME = "hf:acme/Tiny/x.gguf"


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that is there, whatever this machine is connected to."""
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: None)


def offline(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*_: object, tqdm_class: object = None, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)


def library_error(name: str) -> Exception:
    kind: type[Exception] = getattr(huggingface_hub.errors, name)
    error = kind.__new__(kind)
    error.args = ("details of the library",)
    return error


@pytest.mark.parametrize(
    ("error", "becomes", "says"),
    [
        ("LocalEntryNotFoundError", DownloadError, "cannot be reached"),
        ("GatedRepoError", DownloadError, "accept its licence"),
        ("RepositoryNotFoundError", UnknownModelError, "no repository 'acme/Tiny'"),
        ("EntryNotFoundError", UnknownModelError, "did you mean 'hf:acme/Tiny/y.gguf'"),
        ("HFValidationError", UnknownModelError, "hf:owner/repo/file.gguf"),
        ("HfHubHTTPError", DownloadError, "cannot be reached"),
        (OSError(errno.ENOSPC, "No space left on device"), StorageError, "disk is full"),
        (PermissionError(errno.EACCES, "Permission denied"), StorageError, "HF_HOME"),
        (ConnectionResetError(), DownloadError, "cannot be reached"),
        (RuntimeError("new in some version"), DownloadError, "cannot be reached"),
    ],
)
def test_what_the_library_raises_is_one_sentence(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: str | Exception,
    becomes: type[SlipstreamError],
    says: str,
) -> None:
    offline(monkeypatch, library_error(error) if isinstance(error, str) else error)
    names = ["README.md", "y.gguf"]
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_: names)
    with pytest.raises(becomes, match=says) as caught:
        pull(NAME)
    assert "\n" not in str(caught.value)


def http_error(status: int) -> Exception:
    error = library_error("HfHubHTTPError")
    error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("error", [ConnectionRefusedError(), TimeoutError(), http_error(503)])
def test_a_hub_that_does_not_answer_is_asked_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    asked: list[float] = []

    def silent(_: str, *, timeout: float) -> None:
        asked.append(timeout)
        raise error

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", silent)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("tries again and again"))
    with pytest.raises(DownloadError, match="cannot be reached"):
        pull(NAME)
    assert asked == [hub.SECONDS_TO_ANSWER]


def test_what_the_hub_answers_is_left_to_the_download(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise http_error(401)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refuses)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, tqdm_class=None, **__: "/there/x.gguf")
    assert pull(NAME) == Path("/there/x.gguf")


def test_the_library_s_log_is_silent_for_the_download_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hub_logging.get_verbosity()
    during: list[int] = []

    def fails(*_: object, tqdm_class: object = None, **__: object) -> str:
        during.append(hub_logging.get_verbosity())
        raise ConnectionResetError

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)
    with pytest.raises(DownloadError):
        pull(NAME)
    assert during == [hub_logging.ERROR]
    assert hub_logging.get_verbosity() == before


def test_progress_and_the_cache_reach_the_library(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetches(repository: str, file: str, *, cache_dir: Path, tqdm_class: Any) -> str:
        with tqdm_class(total=100, initial=10, desc="x", unit="B") as bar:
            bar.update(40)
            bar.set_postfix_str("fast", refresh=False)
            bar.update(50)
        return str(cache_dir / repository / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetches)
    reports: list[tuple[int, int | None, str]] = []
    path = pull(NAME, lambda *report: reports.append(report))
    assert path == home / ".cache" / "huggingface" / "hub" / "acme/Tiny" / "x.gguf"
    assert reports == [(50, 100, "fetching x.gguf"), (100, 100, "fetching x.gguf")]


def test_all_parts_of_a_split_model_are_fetched(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetches(repository: str, file: str, *, cache_dir: Path, tqdm_class: object) -> str:
        fetched.append(f"{repository}/{file}")
        return f"/there/{file}"

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetches)
    assert pull("hf:acme/Big/Q8/x-00001-of-00003.gguf") == Path("/there/Q8/x-00001-of-00003.gguf")
    assert fetched == [f"acme/Big/Q8/x-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def test_a_part_that_the_hub_lacks_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetches(repository: str, file: str, *, cache_dir: Path, tqdm_class: object) -> str:
        if "-00002-" in file:
            raise library_error("EntryNotFoundError")
        return f"/there/{file}"

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetches)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_: [])
    with pytest.raises(UnknownModelError, match="x-00002-of-00002"):
        pull("hf:acme/Big/x-00001-of-00002.gguf")


def test_an_interrupt_is_not_an_error_of_the_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pull(NAME)


def test_two_bars_for_one_download_report_the_one_ahead() -> None:
    reports: list[int] = []
    kind = hub._progress_bar(lambda done, total, what: reports.append(done), "x")
    transfer, disk = kind(total=100), kind(total=100)
    transfer.update(60)
    disk.update(10)
    assert reports == [60, 60]
