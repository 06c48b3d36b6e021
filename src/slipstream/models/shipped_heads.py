"""Heads that come with Slipstream: which there are, and for which targets (shipped/NOTICE.md: how they were made)."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from slipstream.errors import ModelFileError
from slipstream.models.fingerprint import fingerprint
from slipstream.models.gguf import GgufHeader
from slipstream.models.heads import HeadFile, read_head

TARGET_FINGERPRINT = "slipstream.head.target_fingerprint"


@dataclass(frozen=True, slots=True)
class ShippedHead:
    """A head in the package.

    file:        its name in `models/shipped`
    target:      what the catalogue calls the model that it drafts for
    fingerprint: of that model's file (`models.fingerprint`): it is known by its bytes, whatever its path or name
    licence:     of the head, as its file states it
    """

    file: str
    target: str
    fingerprint: str
    licence: str

    @property
    def path(self) -> Path:
        return Path(str(files("slipstream.models") / "shipped" / self.file))

    def read(self, target: GgufHeader) -> HeadFile:
        """Its header, for the target that it was made for. Raises SlipstreamError where it is missing or damaged."""
        path = self.path
        if not path.is_file():
            raise ModelFileError(f"{path} is not there; install Slipstream again, which brings this head.")
        head = read_head(path)
        if head.header.text(TARGET_FINGERPRINT) != self.fingerprint:
            raise ModelFileError(
                f"{path} is not the head for {self.target} that Slipstream brings: its {TARGET_FINGERPRINT} is another "
                "model's; install Slipstream again."
            )
        head.require_target(target)
        return head


SHIPPED: tuple[ShippedHead, ...] = (
    ShippedHead(
        file="smollm2-135m-head.gguf",
        target="smollm2-135m",
        fingerprint="fffdb58f58a66cf11b8d749f3e47beac",
        licence="apache-2.0",
    ),
)


def shipped_head(target: GgufHeader) -> HeadFile | None:
    """The head that comes with Slipstream for a target, None where there is none. Raises what `ShippedHead.read` does.

    Where the file that the target's header came from cannot be read again, ModelFileError.
    """
    known = fingerprint(target.path)
    shipped = next((one for one in SHIPPED if one.fingerprint == known), None)
    return None if shipped is None else shipped.read(target)
