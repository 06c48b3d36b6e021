"""What `slipstream advise --save` found for a target, kept as a small TOML file that a person may read and edit.

One file for each target and runtime, in `profiles` of the configuration directory. A target is known by its bytes,
not by its place, so that a moved or renamed file keeps its profile and another file with the same name gets none.
"""

import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipstream.errors import ProfileError, StorageError
from slipstream.models.draft_spec import split_draft
from slipstream.models.fingerprint import fingerprint
from slipstream.models.paths import config_directory
from slipstream.models.storage import DENIED, FULL, publish, staging

DRAFTERS = ("auto", "none", "suffix", "recycling", "lowbit", "layers", "head")
"""What drafts without a file of the user's."""
REMEDY = "run `slipstream advise --save` again, or delete the file"


@dataclass(frozen=True, slots=True)
class Profile:
    """How to speculate for one target.

    target:           the target's file name, for people
    fingerprint:      of the target's file (`models.fingerprint`)
    runtime:          the target's runtime while it was measured
    draft:            what `--draft` takes: "none", "suffix", a file, "suffix+" and a file
    draft_runtime:    of the draft model, "auto" without one
    num_draft_tokens: most tokens that are drafted at a time; None leaves it to the policy
    ratio, low, high: measured speed-up over plain decoding and its 95 % interval; 1 for "none"
    kinds:            the speed-up for each kind of prompt
    date:             when it was measured, ISO 8601, UTC
    version:          of Slipstream
    machine:          the processor it was measured on
    """

    target: str
    fingerprint: str
    runtime: str
    draft: str
    draft_runtime: str = "auto"
    num_draft_tokens: int | None = None
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    kinds: Mapping[str, float] = field(default_factory=dict)
    date: str = ""
    version: str = ""
    machine: str = ""

    @property
    def draft_files(self) -> list[Path]:
        """The draft models' files; none where no model drafts."""
        return [Path(part) for part in split_draft(self.draft) if part.partition(":")[0] not in DRAFTERS]

    @property
    def missing(self) -> str | None:
        """A sentence if the draft model's file is gone, None if all is there."""
        gone = [file for file in self.draft_files if not file.is_file()]
        if not gone:
            return None
        return (
            f"The draft model {gone[0]} that the profile of {self.target} names is not there any more; "
            f"the default drafts instead. Run `slipstream advise --save` again to choose anew."
        )


def profiles_directory() -> Path:
    """Where profiles lie. May not exist yet."""
    return config_directory() / "profiles"


def find(path: str | os.PathLike[str], runtime: str | None = None) -> Profile | None:
    """The profile of the target at `path`, measured on `runtime` ("native", "llamacpp"; None: on any, the newest).

    None if it has none. Raises ProfileError, one sentence that names the file, for a damaged one, and ModelFileError
    if the target cannot be read.
    """
    directory = profiles_directory()
    if not directory.is_dir():
        return None
    ending = f"-{fingerprint(Path(path))}.{runtime or '*'}.toml"
    found = [read(file) for file in sorted(directory.glob(f"*{ending}"))]
    return max(found, key=lambda profile: profile.date, default=None)


def save(profile: Profile) -> Path:
    """Write the profile, in place of an earlier one of the same target and runtime; returns its path.

    Raises StorageError.
    """
    directory = profiles_directory()
    name = re.sub(r"[^\w.-]+", "-", profile.target.removesuffix(".gguf"))[:80]
    ending = f"-{profile.fingerprint}.{profile.runtime}.toml"
    destination = directory / (name + ending)
    try:
        text = written(profile).encode()
    except UnicodeEncodeError:
        raise StorageError(
            f"The name of {profile.draft!r} is not UTF-8, which a profile cannot hold; rename the file."
        ) from None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with staging(directory, name) as place:
            (place / "profile").write_bytes(text)
            publish(place / "profile", destination)
        for older in directory.glob(f"*{ending}"):
            if older != destination:  # the target had another name then
                older.unlink()
    except OSError as error:
        raise StorageError(_unwritable(error, directory)) from error
    return destination


def read(file: Path) -> Profile:
    """One profile. Raises ProfileError; keys that this version does not know are left out."""
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"The profile {file} cannot be read ({error.strerror or error}); {REMEDY}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"The profile {file} is damaged ({error}); {REMEDY}.") from None
    return _checked(file, given)


def written(profile: Profile) -> str:
    """The profile as TOML."""
    lines = [
        "# Written by `slipstream advise --save`: how run and chat speculate for this target where --draft does not",
        "# say otherwise. Delete the file to have the default again.",
        *(f"{name} = {_value(value)}" for name, value in _given(profile) if not isinstance(value, Mapping)),
        *(["", "[kinds]"] if profile.kinds else []),
        *(f"{_value(kind)} = {_value(float(ratio))}" for kind, ratio in profile.kinds.items()),
    ]
    return "\n".join(lines) + "\n"


def today() -> str:
    """Now, as profiles state it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _given(profile: Profile) -> list[tuple[str, Any]]:
    pairs = [(one.name, getattr(profile, one.name)) for one in fields_of(Profile)]
    return [(name, value) for name, value in pairs if value is not None]


def _value(value: str | int | float) -> str:
    """A TOML value; strings are basic strings (TOML 1.0: quotes, backslashes and controls are escaped)."""
    if not isinstance(value, str):
        return repr(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub("[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'


KINDS_OF_VALUES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("target", "fingerprint", "runtime", "draft", "draft_runtime", "date", "version", "machine"), str),
    **dict.fromkeys(("ratio", "low", "high"), (int, float)),
    "num_draft_tokens": int,
    "kinds": dict,
}


def _checked(file: Path, given: Mapping[str, Any]) -> Profile:
    known = {name: value for name, value in given.items() if name in KINDS_OF_VALUES}
    if lacking := [name for name in ("target", "fingerprint", "runtime", "draft") if not known.get(name)]:
        raise ProfileError(f"The profile {file} does not state {', '.join(lacking)}; {REMEDY}.")
    for name, value in known.items():
        if not isinstance(value, KINDS_OF_VALUES[name]) or isinstance(value, bool):
            raise ProfileError(f"The profile {file} has {name} = {value!r}, which cannot be; {REMEDY}.")
    numbers = {name: known[name] for name in ("ratio", "low", "high") if name in known} | known.get("kinds", {})
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ProfileError(f"The profile {file} has {name} = {number!r}, which is no speed-up; {REMEDY}.")
    if not 0 <= known.get("num_draft_tokens", 0) <= 64:
        raise ProfileError(f"The profile {file} has num_draft_tokens outside 0 to 64; {REMEDY}.")
    return Profile(**known)


def _unwritable(error: OSError, directory: Path) -> str:
    if error.errno in FULL:
        return f"The profile cannot be saved: the disk is full at {directory}; free some space and try again."
    if error.errno in DENIED:
        return (
            f"The profile cannot be saved: there is no permission to write to {directory}; "
            "set SLIPSTREAM_CONFIG_DIR to another place."
        )
    return (
        f"The profile cannot be saved in {directory} ({error.strerror or error}); "
        "set SLIPSTREAM_CONFIG_DIR to a usable directory."
    )
