import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.corpus.ring import MAGIC, Record, Ring, scope_key
from slipstream.errors import StorageError

MINE, YOURS = scope_key("me"), scope_key("you")


def text(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.uint32)


def lists(records: list[Record]) -> list[list[int]]:
    return [record.tokens.tolist() for record in records]


def segments(ring: Ring) -> list[Path]:
    return sorted(ring.folder.glob("*.tokens"))


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return Ring(tmp_path / "corpus" / "vocabulary")


def test_what_was_written_is_read_by_the_next_program(ring: Ring) -> None:
    ring.append([Record(MINE, text(1, 2, 3)), Record(YOURS, text(4, 5))])
    ring.append([Record(MINE, text(6))])
    again = Ring(ring.folder)
    assert lists(again.texts()) == [[1, 2, 3], [4, 5], [6]]
    assert lists(again.texts(MINE)) == [[1, 2, 3], [6]]
    assert lists(again.news().records) == [[1, 2, 3], [4, 5], [6]]
    assert lists(again.news().records) == []


def test_programs_learn_of_what_others_write(ring: Ring) -> None:
    other = Ring(ring.folder)
    ring.append([Record(MINE, text(1))])
    assert lists(other.append([Record(MINE, text(2))]).records) == [[1]]
    assert lists(ring.news().records) == [[2]]
    assert lists(other.news().records) == []


def test_it_is_private(ring: Ring) -> None:
    ring.append([Record(MINE, text(1))])
    assert stat.S_IMODE(ring.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(ring.folder.parent.stat().st_mode) == 0o700
    for path in ring.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_name_of_a_scope_is_nowhere(ring: Ring) -> None:
    ring.append([Record(scope_key("secret-key"), text(1))])
    assert not any(b"secret" in path.read_bytes() for path in ring.folder.iterdir())


def test_it_is_bounded(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "c", most_tokens=4096)
    for number in range(200):
        ring.append([Record(MINE, np.full(100, number, np.uint32))])
        assert ring.size() <= 4 * 4096
    kept = [record.tokens[0] for record in ring.texts()]
    assert kept == list(range(kept[0], 200))
    assert len(kept) > 30


def test_a_text_longer_than_a_segment_is_several(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "c", most_tokens=4096)
    ring.append([Record(MINE, np.arange(1000, dtype=np.uint32))])
    assert np.concatenate([one.tokens for one in ring.texts()]).tolist() == list(range(1000))


def test_an_empty_ring_has_nothing_and_makes_no_folder(ring: Ring) -> None:
    assert ring.texts() == []
    assert ring.news().records == []
    assert ring.clear() == ring.size() == 0
    assert not ring.folder.exists()


@settings(max_examples=60, deadline=None)
@given(kept=st.integers(0, 10_000))
def test_half_a_record_is_passed_over_and_cut_off(tmp_path_factory: pytest.TempPathFactory, kept: int) -> None:
    ring = Ring(tmp_path_factory.mktemp("ring") / "c")
    ring.append([Record(MINE, text(1, 2, 3))])
    [path] = segments(ring)
    whole = path.stat().st_size
    ring.append([Record(MINE, text(4, 5, 6, 7))])
    data = path.read_bytes()
    path.write_bytes(data[: whole + kept % (len(data) - whole)])
    after = Ring(ring.folder)
    assert lists(after.texts()) == [[1, 2, 3]]
    after.append([Record(MINE, text(8))])
    assert lists(Ring(ring.folder).texts()) == [[1, 2, 3], [8]]
    assert after.warnings == []


@pytest.mark.parametrize("size", range(len(MAGIC)))
def test_half_a_segment_s_beginning_is_none(ring: Ring, size: int) -> None:
    ring.append([Record(MINE, text(1))])
    [path] = segments(ring)
    path.write_bytes(MAGIC[:size])
    after = Ring(ring.folder)
    assert after.texts() == []
    after.append([Record(MINE, text(2))])
    assert lists(Ring(ring.folder).texts()) == [[2]]


def test_a_power_cut_leaves_zeros_and_they_are_cut_off(ring: Ring) -> None:
    ring.append([Record(MINE, text(1))])
    [path] = segments(ring)
    path.write_bytes(path.read_bytes() + bytes(500))
    after = Ring(ring.folder)
    after.append([Record(MINE, text(2))])
    assert lists(Ring(ring.folder).texts()) == [[1], [2]]
    assert after.warnings == []


@pytest.mark.parametrize("place", [0, len(MAGIC) + 2, len(MAGIC) + 20, len(MAGIC) + 30])
def test_a_damaged_file_is_set_aside_with_a_sentence(ring: Ring, place: int) -> None:
    for number in range(3):
        ring.append([Record(MINE, text(number, number))])
    [path] = segments(ring)
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
    after = Ring(ring.folder)
    assert lists(after.news().records) == []
    [sentence] = after.warnings
    assert "was damaged" in sentence
    assert path.with_name(f"{path.name}.damaged").read_bytes() == data
    after.append([Record(MINE, text(7))])
    assert lists(Ring(ring.folder).texts()) == [[7]]
    after.clear()
    assert not list(ring.folder.glob("*damaged*"))


def test_clearing_is_noticed_by_other_programs(ring: Ring) -> None:
    ring.append([Record(MINE, text(1))])
    other = Ring(ring.folder)
    other.news()
    assert ring.clear() > 0
    assert other.news() == (True, [])
    ring.append([Record(MINE, text(2))])
    cleared, records = other.news()
    assert (cleared, lists(records)) == (False, [[2]])


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be written") as caught:
        Ring(tmp_path / "file" / "c").append([Record(MINE, text(1))])
    assert "another folder with --corpus" in str(caught.value)
    assert "--corpus off" in str(caught.value)
    assert "SLIPSTREAM_CACHE_DIR" not in str(caught.value), "it lies where --corpus says"


def test_killed_in_the_middle_of_writing_two_hundred_times(tmp_path: Path) -> None:
    script = Path(__file__).with_name("crash.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path / "c", "200"], check=True, capture_output=True, text=True, timeout=250
    )
    killed, torn, lost = map(int, done.stdout.split())
    assert (killed, lost) == (200, 0)
    assert torn > 0, "a test without half a record shows nothing"
    ring = Ring(tmp_path / "c")
    texts = ring.texts()
    assert all((one.tokens == one.tokens[0]).all() for one in texts)
    ring.append([Record(MINE, text(5))])
    assert ring.texts()[-1].tokens.tolist() == [5]
    assert ring.warnings == []


def test_two_processes_at_once(tmp_path: Path) -> None:
    script = Path(__file__).with_name("crash.py")
    writers = [subprocess.Popen([sys.executable, script, tmp_path / "c", name]) for name in ("first", "second")]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    texts = Ring(tmp_path / "c").texts()
    for name in ("first", "second"):
        mine = [one.tokens.tolist() for one in texts if one.scope == scope_key(name)]
        assert mine == [[number] * 50 for number in range(200)]
