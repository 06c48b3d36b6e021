import errno
import json
import os
from pathlib import Path

import pytest

from slipstream.core.stats import RoundRecord
from slipstream.errors import StorageError, UsageError
from slipstream.measure.records import Failure, Round, Writer, hash_ids, read_bench
from tests.measure.answers import HEADER, answer, draft_round, full_bench


def written(path: Path) -> Path:
    bench = full_bench()
    with Writer(path) as writer:
        writer.begin(bench.header)
        for one in bench.answers:
            writer.add(one)
        writer.add(Failure("It broke.", "suffix", "chat-1"))
        writer.end(stopped=False)
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    bench = read_bench(written(tmp_path / "bench.jsonl"))
    assert [one.as_dict() for one in bench.answers] == [one.as_dict() for one in full_bench().answers]
    assert bench.answers[1].rounds[1].verify == pytest.approx(0.012)
    assert bench.failures == [Failure("It broke.", "suffix", "chat-1")]
    assert bench.header["target"] == HEADER["target"]
    assert bench.configurations == ["off", "suffix", "model:draft.gguf,n=4"]
    assert bench.kinds == ["chat", "code"]
    assert bench.complete
    assert not bench.notes


def test_a_round_is_a_list_whose_fields_the_header_names(tmp_path: Path) -> None:
    lines = written(tmp_path / "bench.jsonl").read_text().splitlines()
    header, _, suffix = (json.loads(line) for line in lines[:3])
    assert dict(zip(header["round_fields"], suffix["answer"]["rounds"][0], strict=True)) == {
        "context": 10, "drafted": 4, "tested": 4, "accepted": 4, "committed": 5, "steps": 4, "drafter": "suffix",
        "draft": 1000, "verify": 12000, "sample": 1000, "other": 100,
    }  # fmt: skip


def test_a_round_keeps_what_the_engine_recorded() -> None:
    seconds = {"draft": 0.001, "verify": 0.002, "sample": 0.003, "other": 0.004}
    record = RoundRecord(context=7, steps=3, drafted=5, tested=2, accepted=1, committed=2, drafter="x", seconds=seconds)
    assert Round.of(record) == Round(7, 5, 2, 1, 2, 3, "x", 0.001, 0.002, 0.003, 0.004)
    assert Round.of(record).seconds == pytest.approx(0.01)


def test_each_record_is_in_the_file_as_soon_as_it_is_added(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    with Writer(path) as writer:
        writer.begin(HEADER)
        writer.add(answer(rounds=[draft_round(2, 1)]))
        found = read_bench(path)
        assert found.answers == [answer(rounds=[draft_round(2, 1)])]
        assert not found.complete


def test_a_last_line_that_was_cut_short_is_said_and_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "bench.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:50])
    found = read_bench(path)
    assert [one.prompt for one in found.answers] == ["chat-0"] * 3
    assert found.notes == [f"The last line of {path} was cut short and is left out."]


def test_a_run_that_the_user_ended_is_not_complete(tmp_path: Path) -> None:
    with Writer(tmp_path / "bench.jsonl") as writer:
        writer.begin(HEADER)
        writer.end(stopped=True)
    assert not read_bench(tmp_path / "bench.jsonl").complete


DAMAGE = [
    "{nonsense",
    "{}",
    '{"answer": 7}',
    '{"answer": {"tokens": 3}}',
    '{"answer": {"tokens": 0, "seconds": 1}}',
    '{"answer": {"tokens": 1, "seconds": 1, "rounds": [[1, 2]]}}',
    '{"answer": {"tokens": 1, "seconds": 1, "kind": 3}}',
    '{"answer": {"tokens": 1, "seconds": Infinity}}',
    '{"answer": {"tokens": 1, "seconds": 1, "looping": "often"}}',
    '{"answer": {"tokens": 1, "seconds": 1, "repeat": "first"}}',
    '{"answer": {"tokens": 1, "seconds": 1, "rounds": [[0, 1, 1, 1, 1, 1, "x", 1, 1, NaN, 1]]}}',
    f'{{"answer": {{"tokens": 1{"0" * 400}, "seconds": 1}}}}',
    '{"answer": {"tokens": 1, "seconds": 1, "rounds": [[0, 1, 1000000000, 1, 1, 1, "x", 1, 1, 1, 1]]}}',
    '{"answer": {"tokens": 1, "seconds": 1, "rounds": [[0, 1, 1, 2, 1, 1, "x", 1, 1, 1, 1]]}}',
    '{"failure": {"sentence": 5}}',
    '{"failure": {"sentence": "It broke.", "configuration": 5}}',
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_in_the_middle_names_its_line(tmp_path: Path, damage: str) -> None:
    path = written(tmp_path / "bench.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], damage.encode() + b"\n", *lines[2:]]))
    with pytest.raises(UsageError, match=r"Line 3 of .* is damaged"):
        read_bench(path)


@pytest.mark.parametrize(
    "header",
    [
        {"target": None},
        {"machine": "big"},
        {"sampling": {"top_p": [1]}},
        {"costs": {"1": "x"}},
        {"costs": {"two": 1}},
        {"costs": {"1": float("inf")}},
        {"configurations": None},
        {"configurations": [1]},
        {"kinds": 5},
        {"kinds": [None]},
    ],
)
def test_a_damaged_first_line(tmp_path: Path, header: dict[str, object]) -> None:
    path = written(tmp_path / "bench.jsonl")
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps(json.loads(first) | header) + "\n", *others]))
    with pytest.raises(UsageError, match=r"Line 1 of .* is damaged"):
        read_bench(path)


def test_names_of_files_that_are_not_utf_8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.gguf")
    with Writer(tmp_path / "bench.jsonl") as writer:
        writer.begin({**HEADER, "configurations": [{"name": name}]})
        writer.add(answer(name))
    assert read_bench(tmp_path / "bench.jsonl").configurations == [name]


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not JSON", '{"format": "other"}'])
def test_files_of_another_kind(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(UsageError, match="is not a file that slipstream bench --out wrote"):
        read_bench(tmp_path / "other")


def test_another_version_of_the_format(tmp_path: Path) -> None:
    (tmp_path / "later").write_text('{"format": "slipstream-bench", "version": 2}\n')
    with pytest.raises(UsageError, match="has version 2 of the format"):
        read_bench(tmp_path / "later")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        read_bench(tmp_path / "missing")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be written: No such file or directory; .* --out"):
        Writer(tmp_path / "missing" / "bench.jsonl")


def test_an_older_file_stays_until_there_is_something_to_write(tmp_path: Path) -> None:
    path = written(tmp_path / "bench.jsonl")
    before = path.read_bytes()
    Writer(path).close()
    assert path.read_bytes() == before
    with Writer(path) as writer:
        writer.begin(HEADER)
    assert read_bench(path).answers == []
    Writer(tmp_path / "new.jsonl")  # Ctrl-C while models load closes nothing
    assert not (tmp_path / "new.jsonl").exists()


def test_a_full_device() -> None:
    writer = Writer(Path("/dev/full"))
    with pytest.raises(StorageError, match="cannot be written any more: the disk is full; what it holds can be read"):
        writer.begin(HEADER)
    writer.close()


def test_a_disk_that_fills_in_the_middle_of_a_line_keeps_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bench.jsonl"
    with Writer(path) as writer:
        writer.begin(HEADER)
        file = writer._file

        class Filling:
            """Takes 20 bytes, and then no more."""

            room = 20

            def write(self, data: bytes) -> int:
                if not self.room:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                taken, self.room = self.room, 0
                return file.write(data[:taken])

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

        monkeypatch.setattr(writer, "_file", Filling())
        with pytest.raises(StorageError, match="the disk is full"):
            writer.add(answer())
    found = read_bench(path)
    assert (found.answers, found.notes) == ([], [])


def test_hashes_tell_ids_apart() -> None:
    assert hash_ids([1, 23]) == hash_ids([1, 23]) != hash_ids([12, 3])
