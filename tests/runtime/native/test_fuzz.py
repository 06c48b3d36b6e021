"""A few damaged files; `scripts/fuzz` runs ten thousand with C++ under sanitizers."""

import random
from pathlib import Path

import pytest

from slipstream.errors import ModelFileError
from slipstream.models.gguf import read_header
from slipstream.runtime.native import load_native
from slipstream.runtime.native.instruction_sets import VARIABLE
from tests.runtime.native import fuzz_header
from tests.runtime.native.fuzz_header import (
    LEAST_ACCEPTED,
    LONG_CONTEXT,
    Anatomy,
    Damage,
    Specimen,
    fuzz,
    main,
    read_on,
    run,
    specimens,
    tokenized_specimens,
)
from tests.runtime.native.helpers import feed
from tests.tiny_models import tiny_llama


def test_damaged_files_are_refused_or_run(tmp_path: Path) -> None:
    outcome = fuzz(200, 7, tmp_path)
    assert outcome.failures == []
    assert sum(outcome.counts.values()) == 200
    # Damage that only ever met the first check, or never did any, would show nothing.
    assert {"ModelFileError", "UnsupportedModelError", "accepted"} <= set(outcome.counts)
    assert min(outcome.counts["ModelFileError"], outcome.counts["accepted"]) > 20
    assert outcome.accepted > 3 * LEAST_ACCEPTED


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[Specimen]:
    directory = tmp_path_factory.mktemp("good")
    return specimens(directory) + tokenized_specimens(directory)


def test_undamaged_files_run(good: list[Specimen], tmp_path: Path) -> None:
    for specimen in good:
        run(specimen.written(tmp_path, [file.content for file in specimen.files]), 1, specimen)


def test_windows_leave_blocks_behind(good: list[Specimen], tmp_path: Path) -> None:
    (windowed,) = (specimen for specimen in good if specimen.context == LONG_CONTEXT)
    path = windowed.written(tmp_path, [windowed.files[0].content])
    model = load_native(path, context_length=LONG_CONTEXT, max_sequences=2, max_rows=16, threads=1)
    session = model.open_session()
    feed(model, session, range(7))
    read_on(model, session)
    assert session.length == 0, "it could not go back to 5 tokens"
    model.close()


@pytest.fixture
def anatomy(tmp_path: Path) -> Anatomy:
    return Anatomy(tiny_llama(tmp_path / "it.gguf").read_bytes())


def test_it_knows_where_things_are(anatomy: Anatomy) -> None:
    content = anatomy.content
    assert [int(count.read(content)) for count in anatomy.counts] == [3, len(anatomy.tensors), len(anatomy.spans) - 2]
    names = [content[slice(*tensor.name)].decode() for tensor in anatomy.tensors]
    assert names[:2] == ["token_embd.weight", "output_norm.weight"]
    assert [int(size.read(content)) for size in anatomy.tensors[0].dimensions] == [64, 271]
    assert anatomy.tensors[-1].offset.read(content) + anatomy.data < len(content)


def test_another_number_of_dimensions_moves_what_follows(anatomy: Anatomy, tmp_path: Path) -> None:
    before, shapes = read_header(tmp_path / "it.gguf"), set()
    path = tmp_path / "damaged.gguf"
    for seed in range(60):
        damage = Damage(anatomy, random.Random(seed))
        damage.dimensions()
        path.write_bytes(damage.content)
        try:
            header = read_header(path)
        except ModelFileError:  # five dimensions, or larger than before
            continue
        changed = [one for one, good in zip(header.tensors, before.tensors, strict=True) if one.shape != good.shape]
        assert len(changed) <= 1, "all others are as they were"
        assert damage.content[header.data_offset :] == anatomy.content[anatomy.data :]
        shapes |= {one.shape for one in changed}
    assert {len(shape) for shape in shapes} == {0, 1, 2, 3, 4}


def test_an_instruction_set_that_is_not_there_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "abacus")
    assert main(["--files", "3"]) == 1
    assert "SLIPSTREAM_ISA=abacus is not an instruction set" in capsys.readouterr().out


def test_some_files_must_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> None:
        raise ModelFileError("No.")

    monkeypatch.setattr(fuzz_header, "run", refuse)
    assert main(["--files", "60"]) == 1
    assert "0 failures" in (printed := capsys.readouterr().out)
    assert "Only 0.0% of the files ran; 2% must." in printed
