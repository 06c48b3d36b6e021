import json
from pathlib import Path

import pytest

from slipstream.policy import Store


def test_what_is_written_is_read_by_the_same_key_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    store.write("costs", "a key with / and spaces", {"x": [1, 2.5]})
    assert store.read("costs", "a key with / and spaces")["x"] == [1, 2.5]
    assert store.read("costs", "another") == {}
    assert store.read("learned", "a key with / and spaces") == {}


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 99}', b"[" * 100_000])
def test_damage_counts_as_absence(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    store.write("costs", "key", {"x": 1})
    [file] = tmp_path.iterdir()
    file.write_bytes(damage)
    assert store.read("costs", "key") == {}
    store.write("costs", "key", {"x": 2})
    assert store.read("costs", "key")["x"] == 2


def test_a_file_of_another_key_is_not_taken_for_this_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("costs", "key", {"x": 1})
    [file] = tmp_path.iterdir()
    file.write_text(json.dumps({"format": 1, "key": "other", "x": 1}))
    assert store.read("costs", "key") == {}


def test_what_cannot_be_written_is_no_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file")
    store.write("costs", "key", {"x": 1})
    assert store.read("costs", "key") == {}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_folder_keeps_nothing() -> None:
    store = Store(None)
    store.write("costs", "key", {"x": 1})
    assert store.read("costs", "key") == {}
