"""The registry of heads that come with Slipstream, and their files."""

import json
from pathlib import Path

import pytest

from slipstream.models import CATALOG, read_header
from slipstream.models.fingerprint import fingerprint
from slipstream.models.heads import read_head
from slipstream.models.shipped_heads import SHIPPED, TARGET_FINGERPRINT, ShippedHead

MOST_BYTES = 12_000_000


def test_every_head_drafts_for_a_model_of_the_catalogue_and_has_its_notice() -> None:
    for one in SHIPPED:
        assert one.licence == CATALOG[one.target].licence
        notice = one.path.with_name("NOTICE.md").read_text(encoding="utf-8")
        assert f"| `{one.file}` |" in notice
        assert f"`{one.target}`" in notice
    assert len({one.fingerprint for one in SHIPPED}) == len({one.file for one in SHIPPED}) == len(SHIPPED)


def test_no_file_lies_beside_them_that_is_not_in_the_registry() -> None:
    there = {path.name for path in SHIPPED[0].path.parent.iterdir()}
    assert there - {one.file for one in SHIPPED} == {"NOTICE.md"}


@pytest.mark.model
def test_the_fingerprint_is_that_of_the_real_model(smollm2: Path) -> None:
    assert SHIPPED[0].fingerprint == fingerprint(smollm2)


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda one: one.file)
def test_its_file_says_whose_it_is_and_how_it_was_made(shipped: ShippedHead) -> None:
    assert shipped.path.stat().st_size <= MOST_BYTES
    header = read_head(shipped.path).header
    assert header.text(TARGET_FINGERPRINT) == shipped.fingerprint
    assert header.licence == shipped.licence
    assert not any(key.startswith("tokenizer.") for key in header.metadata), "--no-tokenizer"
    recipe = json.loads(header.text("slipstream.head.recipe") or "")
    assert recipe["fingerprint"] == shipped.fingerprint
    assert recipe["prompts"] == "shipped"
    assert "PSF-2.0" in recipe["note"], "where its prompts come from"
    assert recipe["held_out"]
    assert read_header(shipped.path).text("general.type") == "model"
