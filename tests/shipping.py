"""Heads that come with Slipstream, for tests: tiny ones in place of what the package has."""

from pathlib import Path

import pytest

from slipstream.models import shipped_heads
from slipstream.models.fingerprint import fingerprint
from slipstream.models.shipped_heads import TARGET_FINGERPRINT, ShippedHead
from tests.tiny_heads import HeadShape, tiny_head


def ship(monkeypatch: pytest.MonkeyPatch, folder: Path, target: Path, shape: HeadShape | None = None) -> Path:
    """Let a tiny head for `target` be the one that comes with Slipstream; returns its path."""
    known = fingerprint(target)
    path = tiny_head(folder / "tiny-head.gguf", target, shape or HeadShape(), extra={TARGET_FINGERPRINT: known})
    ship_file(monkeypatch, path, target)
    return path


def ship_file(monkeypatch: pytest.MonkeyPatch, path: Path, target: Path) -> None:
    """The same with a head that is there, or is not."""
    monkeypatch.setattr(ShippedHead, "path", property(lambda one: path.with_name(one.file)))
    shipped = ShippedHead(path.name, "tiny", fingerprint(target), "apache-2.0")
    monkeypatch.setattr(shipped_heads, "SHIPPED", (shipped,))
