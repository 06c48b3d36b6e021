import gc
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.corpus import LOCAL, Corpus, Record, Ring, scope_key
from slipstream.corpus import corpus as module
from slipstream.corpus.index import Match

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Corpus]:
    one = Corpus(tmp_path / "c", 100)
    yield one
    one.close()


def found(corpus: Corpus, scope: str = LOCAL, tail: list[int] = TEXT[:5]) -> list[Match]:
    index = corpus.index(scope)
    corpus.flush()
    return index.matches(tail, 2)


def test_what_was_added_is_found_now_and_by_the_next_program(corpus: Corpus) -> None:
    corpus.add(LOCAL, TEXT)
    assert found(corpus) == [Match([6, 7], 5)]
    corpus.close()
    again = Corpus(corpus.folder, 100)
    assert found(again) == [Match([6, 7], 5)]
    again.close()


def test_scopes_do_not_see_each_other(corpus: Corpus) -> None:
    corpus.add("one", TEXT)
    assert found(corpus, "two") == []
    assert found(corpus) == []
    assert found(corpus, "one") == [Match([6, 7], 5)]
    corpus.add("two", [*TEXT[:5], 50, 51, 52])
    assert found(corpus, "two") == [Match([50, 51], 5)]
    assert found(corpus, "one") == [Match([6, 7], 5)]


def test_a_text_that_begins_like_the_last_is_not_kept_twice(corpus: Corpus) -> None:
    corpus.index(LOCAL)
    first = list(range(40))
    corpus.add(LOCAL, first)
    corpus.add(LOCAL, [*first, *range(60, 80)])
    corpus.add(LOCAL, [*first, *range(60, 80)])
    corpus.flush()
    assert sum(len(one.tokens) for one in Ring(corpus.folder).texts()) < 80
    assert found(corpus, tail=[37, 38, 39, 60, 61]) == [Match([62, 63], 5)]


def test_two_programs_find_each_other_s_texts(corpus: Corpus) -> None:
    other = Corpus(corpus.folder, 100)
    assert found(other) == found(corpus) == []
    corpus.add(LOCAL, TEXT)
    corpus.flush()
    assert found(other) == [Match([6, 7], 5)]
    other.close()


def test_clearing_reaches_running_programs(corpus: Corpus) -> None:
    corpus.add(LOCAL, TEXT)
    assert found(corpus)
    Ring(corpus.folder).clear()
    assert found(corpus) == []
    corpus.add(LOCAL, TEXT)
    assert found(corpus) == [Match([6, 7], 5)]


def test_memory_of_all_scopes_together_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SCOPES", 3)
    corpus = Corpus(tmp_path / "c", 100)
    for number in range(10):
        corpus.add(str(number), [number, *TEXT])
        corpus.index(str(number))
    corpus.flush()
    assert corpus.memory() < 4 * 40_000
    assert found(corpus, "0") == [Match([6, 7], 5)], "what was given up is read again"
    corpus.close()


def test_a_damaged_file_is_said_once(corpus: Corpus, caplog: pytest.LogCaptureFixture) -> None:
    corpus.add(LOCAL, TEXT)
    corpus.add(LOCAL, TEXT[::-1])
    corpus.close()
    [path] = corpus.folder.glob("*.tokens")
    path.write_bytes(b"?" + path.read_bytes()[1:])
    again = Corpus(corpus.folder, 100)
    with caplog.at_level(logging.WARNING):
        assert found(again) == []
        assert found(again) == []
    assert [record.getMessage() for record in caplog.records if "was damaged" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    again.close()


def test_where_nothing_can_be_written_memory_serves_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("x")
    corpus = Corpus(tmp_path / "file" / "c", 100)
    corpus.index(LOCAL)
    with caplog.at_level(logging.WARNING):
        corpus.add(LOCAL, TEXT)
        corpus.add(LOCAL, TEXT[::-1])
        assert found(corpus) == [Match([6, 7], 5)]
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("Texts are not kept for later drafts.")
    corpus.close()


def test_closing_ends_the_thread_and_twice_is_harmless(corpus: Corpus) -> None:
    corpus.add(LOCAL, TEXT)
    corpus.close()
    corpus.close()
    assert not any(thread.name == "corpus" for thread in threading.enumerate())


def test_the_bill_is_what_the_process_grows_by(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "c")
    chance = np.random.default_rng(3)
    ring.append([Record(scope_key(LOCAL), chance.integers(0, 49000, 65536).astype(np.uint32)) for _ in range(128)])
    corpus = Corpus(tmp_path / "c", 49152)
    expected = corpus.memory()
    gc.collect()
    before = resident()
    corpus.index(LOCAL)
    corpus.flush()
    gc.collect()
    grown = resident() - before
    assert corpus.memory() == pytest.approx(grown, rel=0.1)
    assert expected == pytest.approx(grown, rel=0.1), "the bill is right before the first text"
    corpus.close()


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
