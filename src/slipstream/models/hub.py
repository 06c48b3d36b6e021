"""Models on the Hugging Face hub, through its own library and its own cache."""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import (
    DownloadError,
    SlipstreamError,
    StorageError,
    UnknownModelError,
    UnsupportedModelError,
)
from slipstream.models import split, storage
from slipstream.models.catalog import unknown_sentence
from slipstream.models.paths import huggingface_directory

# Enough for one small answer; the library itself tries again and again for half a minute.
SECONDS_TO_ANSWER = 5.0


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of one repository."""

    repository: str
    file_name: str

    @classmethod
    def parse(cls, name: str) -> "HubFile":
        """Read `hf:owner/repo/file.gguf` (or `.../folder/file.gguf`); else UnknownModelError."""
        pieces = name.removeprefix("hf:").split("/")
        if len(pieces) < 3 or not all(pieces) or ".." in pieces or not name.lower().endswith(".gguf"):
            raise UnknownModelError(f"{name!r} does not name a file on the hub; write hf:owner/repo/file.gguf.")
        file = cls("/".join(pieces[:2]), "/".join(pieces[2:]))
        if split.is_later_part(Path(file.file_name)):
            raise UnsupportedModelError(
                f"{name} is not the first part of its model; name the part that ends in "
                f"-00001-of-{name[-10:-5]}.gguf, and the others are fetched with it."
            )
        return file

    @property
    def name(self) -> str:
        """What a user types."""
        return f"hf:{self.repository}/{self.file_name}"

    @property
    def parts(self) -> list["HubFile"]:
        """The files of the whole model; this one alone where the model is not split."""
        *folders, base = self.file_name.split("/")
        return [HubFile(self.repository, "/".join([*folders, part])) for part in split.part_names(base)]


def cached_in_hub(name: str) -> Path | None:
    """Where `hf:owner/repo/file.gguf` already lies in the hub's cache with all its parts, or None. Uses no network."""
    file = HubFile.parse(name)
    try:
        found = [_cached(part) for part in file.parts]
    except (ValueError, OSError) as error:
        raise UnknownModelError(f"{name!r} does not name a file on the hub; write hf:owner/repo/file.gguf.") from error
    return found[0] if None not in found else None


def _cached(file: HubFile) -> Path | None:
    import huggingface_hub  # takes 0.15 s, so only who needs it pays

    found = huggingface_hub.try_to_load_from_cache(file.repository, file.file_name, cache_dir=huggingface_directory())
    return Path(found) if isinstance(found, str) else None


def pull_from_hub(name: str, progress: Callable[[int, int | None, str], None]) -> Path:
    """Fetch `hf:owner/repo/file.gguf` into the hub's cache unless it is there; return its path.

    Of a split model, whose first part is named, all parts are fetched. Raises UnknownModelError (no such repository or
    file), DownloadError or StorageError. The hub's library resumes its own partial downloads and gives them no name a
    model could be found by.
    """
    if path := cached_in_hub(name):
        return path
    file = HubFile.parse(name)
    with _quiet():
        _require_answer(name, file)
        first, *_ = [_download(part, progress) for part in file.parts]
    return first


def _download(file: HubFile, progress: Callable[[int, int | None, str], None]) -> Path:
    import huggingface_hub

    options: dict[str, Any] = {"cache_dir": huggingface_directory()}
    # Its first versions draw their own bar and take no other.
    if "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        options["tqdm_class"] = _progress_bar(progress, f"fetching {file.file_name}")
    try:
        return Path(huggingface_hub.hf_hub_download(file.repository, file.file_name, **options))
    except Exception as error:
        # The library raises its own, its HTTP client's and the system's errors, and has changed the first two between
        # versions; every one of them means that the file did not arrive.
        raise _explain(error, file) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's log of what it tries again: the one sentence at the end is ours."""
    from huggingface_hub import utils

    before = utils.logging.get_verbosity()
    utils.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        utils.logging.set_verbosity(before)


def _require_answer(name: str, file: HubFile) -> None:
    """Ask once whether the hub is there. Raises DownloadError if not; what it answers is for the download."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        url = huggingface_hub.hf_hub_url(file.repository, file.file_name)
        huggingface_hub.get_hf_file_metadata(url, timeout=SECONDS_TO_ANSWER)
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        response = getattr(error, "response", None)
        if getattr(response, "status_code", 0) >= 500:
            raise _unreachable(name) from error
    except Exception as error:  # as many kinds as in `_download`
        raise _unreachable(name) from error


def _explain(error: Exception, file: HubFile) -> SlipstreamError:
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):
        return _unreachable(file.name)
    if isinstance(error, errors.GatedRepoError):
        return DownloadError(
            f"{file.repository} asks you to accept its licence: do so on its page, run `hf auth login`, and try again."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return UnknownModelError(f"The hub has no repository {file.repository!r} (or it is private: `hf auth login`).")
    if isinstance(error, errors.EntryNotFoundError):
        return UnknownModelError(_missing_file(file))
    if isinstance(error, errors.HFValidationError):
        return UnknownModelError(f"{file.name!r} does not name a file on the hub; write hf:owner/repo/file.gguf.")
    if isinstance(error, OSError) and error.errno in storage.FULL | storage.DENIED:
        return StorageError(
            storage.storage_sentence(error.errno, huggingface_directory(), "", "set HF_HOME to another directory")
        )
    return _unreachable(file.name)


def _unreachable(name: str) -> DownloadError:
    return DownloadError(f"The hub cannot be reached to fetch {name}; check the network and try again.")


def _missing_file(file: HubFile) -> str:
    """Name the nearest model file of the repository."""
    import huggingface_hub

    try:
        names = huggingface_hub.HfApi().list_repo_files(file.repository)
    except Exception:  # noqa: BLE001 - only a suggestion hangs on it; errors are as many as in `_download`
        names = []
    known = [f"hf:{file.repository}/{name}" for name in names if name.endswith(".gguf")]
    return unknown_sentence(file.name, known)


class _Bar:
    """Stands where the hub's library expects a tqdm bar, and reports instead of drawing."""

    # Set by the subclass that `_progress_bar` makes for one download.
    report: Callable[[int, int | None], None]

    def __init__(self, *_: Any, total: int | None = None, initial: int = 0, **__: Any) -> None:
        self.total = total
        self.n = initial

    def update(self, n: float | None = 1) -> None:
        self.n += int(n or 0)
        type(self).report(self.n, self.total)

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        # set_postfix_str, refresh, close, ...: what a drawn bar has and a report does not need.
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _progress_bar(progress: Callable[[int, int | None, str], None], what: str) -> type[_Bar]:
    """A bar class for one download. Some transports open two bars for it; the one that is ahead counts."""
    furthest = 0

    def report(done: int, total: int | None) -> None:
        nonlocal furthest
        furthest = max(furthest, done)
        progress(furthest, total, what)

    return type("Bar", (_Bar,), {"report": staticmethod(report)})
