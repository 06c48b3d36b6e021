import os
import struct
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slipstream.core.params import SamplingParams
from slipstream.errors import ModelFileError, UnsupportedModelError
from slipstream.models import PackedStrings, SamplingDefaults, gguf, read_header, read_model_header
from tests.models import gguf_writer as writer
from tests.models.gguf_writer import ARRAY, BOOL, F32, F64, I8, I32, I64, STRING, U8, U64, Typed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def refusal(path: Path, error: type[Exception] = ModelFileError) -> str:
    with pytest.raises(error) as caught:
        read_model_header(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_reads_what_the_writer_wrote(file: Path) -> None:
    header = read_model_header(writer.write_model(file))
    assert header.version == 3
    assert (header.architecture, header.name, header.licence) == ("llama", "Tiny", "apache-2.0")
    assert (header.context_length, header.quantisation) == (64, "Q8_0")
    assert header.chat_template == writer.MODEL_METADATA["tokenizer.chat_template"]
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, PackedStrings)
    assert tokens.texts() == writer.TOKENS


def test_tensors_have_place_and_size(file: Path) -> None:
    header = read_header(writer.write_model(file))
    embedding, norm = header.tensors
    assert (embedding.name, embedding.type.name, embedding.shape) == ("token_embd.weight", "Q8_0", (32, 8))
    assert (embedding.nbytes, norm.nbytes, header.tensor_bytes) == (8 * 34, 32 * 4, 8 * 34 + 128)
    assert embedding.offset == header.data_offset
    assert norm.offset == header.data_offset + 288
    assert header.data_offset % 32 == 0
    assert header.file_size == norm.offset + norm.nbytes == file.stat().st_size


def test_every_value_type_comes_back(file: Path) -> None:
    metadata = {
        "u8": Typed(200, U8),
        "i8": Typed(-3, I8),
        "u64": Typed(1 << 63, U64),
        "i64": Typed(-(1 << 60), I64),
        "f64": Typed(1e300, F64),
        "yes": True,
        "text": "naïve",
        "floats": Typed([1.5, -2.0], ARRAY, F32),
        "flags": Typed([True, False], ARRAY, BOOL),
        "none": Typed([], ARRAY, STRING),
    }
    file.write_bytes(writer.gguf_bytes(metadata))
    read = read_header(file).metadata
    for key in ("u8", "i8", "u64", "i64", "f64", "yes", "text"):
        expected = metadata[key].value if isinstance(metadata[key], Typed) else metadata[key]
        assert read[key] == expected
        assert type(read[key]) is type(expected)
    assert np.array_equal(read["floats"], [1.5, -2.0])
    assert np.array_equal(read["flags"], [True, False])
    assert read["none"] == PackedStrings.pack([])


def test_version_2_and_other_alignments_are_read(file: Path) -> None:
    metadata = writer.MODEL_METADATA | {"general.alignment": 128}
    tensors = [("w", (32, 8), 8, 128)]
    file.write_bytes(writer.gguf_bytes(metadata, tensors, bytes(128 + 272), version=2, alignment=128))
    header = read_model_header(file)
    assert header.version == 2
    assert header.tensors[0].offset == header.data_offset + 128
    assert header.data_offset % 128 == 0


def test_sampling_defaults_of_the_file(file: Path) -> None:
    header = read_header(
        writer.write_model(
            file,
            general__sampling__temp=0.6,
            general__sampling__top_k=20,
            general__sampling__top_p=0.95,
            general__sampling__min_p=0.0,
            general__sampling__penalty_repeat=1.05,
        )
    )
    assert header.sampling_defaults == SamplingDefaults(0.6, 20, 0.95, 0.0, 1.05)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "warm", True])
def test_impossible_recommendations_are_left_out(file: Path, value: object) -> None:
    assert read_header(writer.write_model(file, general__sampling__temp=value)).sampling_defaults == (
        SamplingDefaults()
    )


@pytest.mark.parametrize("key", ["temp", "top_k", "top_p", "min_p", "penalty_repeat"])
@pytest.mark.parametrize(
    "value", [Typed(-1, I32), -1.0, 0, 0.0, 1e-5, 0.5, 1.0, 1.5, 99, 101.0, 1e30, float("nan"), float("inf")]
)
def test_whatever_a_file_recommends_can_be_used(file: Path, key: str, value: object) -> None:
    defaults = read_header(writer.write_model(file, **{f"general__sampling__{key}": value})).sampling_defaults
    SamplingParams(**{name: number for name, number in asdict(defaults).items() if number is not None})


def test_greedy_is_a_recommendation_and_no_top_p_is_none(file: Path) -> None:
    path = writer.write_model(file, general__sampling__temp=0.0, general__sampling__top_p=0.0)
    assert read_header(path).sampling_defaults == SamplingDefaults(temperature=0.0)


@pytest.mark.parametrize(
    ("key", "number", "allowed"),
    [
        ("block_count", 0, "from 1 to 512"),
        ("block_count", 513, "from 1 to 512"),
        ("block_count", 2**32 - 1, "from 1 to 512"),
        ("embedding_length", 0, "1 or more"),
    ],
)
def test_sizes_that_would_end_the_process_are_refused(file: Path, key: str, number: int, allowed: str) -> None:
    writer.write_model(file, **{f"llama__{key}": number})
    message = refusal(file, UnsupportedModelError)
    assert f"llama.{key} is {number}" in message
    assert allowed in message


@pytest.mark.parametrize("sizes", [{"llama__block_count": 512, "llama__embedding_length": 1}, {"llama__head_count": 0}])
def test_sizes_that_can_be_are_not_refused(file: Path, sizes: dict[str, int]) -> None:
    read_model_header(writer.write_model(file, **sizes))


def test_licence_of_another_name_and_of_a_list(file: Path) -> None:
    named = writer.write_model(file, general__license="other", **{"general__license.name": "llama3.2"})
    assert read_header(named).licence == "llama3.2"
    assert read_header(writer.write_model(file, general__license=["mit", "bsd"])).licence == "mit, bsd"
    assert read_header(writer.write_model(file, general__license=None)).licence is None


def test_quantisation_without_a_file_type_is_what_most_bytes_are(file: Path) -> None:
    assert read_header(writer.write_model(file, general__file_type=None)).quantisation == "Q8_0"


def test_a_name_is_found_where_the_file_gives_none(file: Path) -> None:
    assert read_header(writer.write_model(file, general__name=None)).name == "model"


# What is wrong with the file, in one sentence.


def test_no_such_file(tmp_path: Path) -> None:
    assert "There is no file" in refusal(tmp_path / "missing.gguf")


def test_a_directory(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in refusal(tmp_path / "pipe.gguf")


def test_a_name_with_a_zero_byte() -> None:
    assert "not a file name" in refusal(Path("a\0b.gguf"))


def test_a_file_that_may_not_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    writer.write_model(file)
    monkeypatch.setattr(Path, "open", denied)
    assert "cannot be read: Permission denied" in refusal(file)


def test_tensors_have_names_of_their_own(file: Path) -> None:
    tensors = [(name, (32,), 0, place) for name, place in zip("aba", (0, 128, 256), strict=True)]
    file.write_bytes(writer.gguf_bytes(writer.MODEL_METADATA, tensors, bytes(448)))
    assert "is damaged (the tensor 'a' appears 2 times)" in refusal(file)


@pytest.mark.parametrize(
    ("places", "overlap"),
    [
        ([0, 32, 160], True),  # the second begins inside the first
        ([0, 0, 128], True),
        ([128, 0, 96], True),  # the third reaches into the first
        ([128, 256, 0], False),  # in any order
        ([0, 128, 256], False),
        ([0, 160, 320], False),  # with holes
    ],
)
def test_tensors_lie_apart(file: Path, places: list[int], overlap: bool) -> None:
    tensors = [(name, (32,), 0, place) for name, place in zip("abc", places, strict=True)]
    file.write_bytes(writer.gguf_bytes(writer.MODEL_METADATA, tensors, bytes(448)))
    if overlap:
        message = refusal(file)
        assert "is damaged (the tensors '" in message
        assert "overlap); download it again." in message
    else:
        assert {tensor.name for tensor in read_header(file).tensors} == set("abc")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"GG", "not a GGUF file"),
        (b"hello world, hello", "not a GGUF file"),
        (b"version https://git-lfs.example/spec/v1\noid", "Git LFS pointer"),
        (b"PK\x03\x04aaaaaaaa", "zip archive"),
        (b"tjgg\x01\0\0\0", "older GGML file"),
        (b'\x20\0\0\0\0\0\0\0{"a":', "safetensors"),
        (b"<!doctype html><html>", "web page"),
        (b"GGUF", "ends inside its header"),
        (b"GGUF\x03\0\0\0\x01\0", "ends inside its header"),
    ],
)
def test_something_else(file: Path, content: bytes, says: str) -> None:
    file.write_bytes(content)
    assert says in refusal(file)


@pytest.mark.parametrize(
    ("version", "says"), [(1, "obsolete"), (0x03000000, "big-endian"), (4, "version 4"), (0, "version 0")]
)
def test_other_versions(file: Path, version: int, says: str) -> None:
    file.write_bytes(writer.gguf_bytes({}, version=version))
    assert says in refusal(file, UnsupportedModelError)


def test_a_header_cut_anywhere_is_truncated(file: Path) -> None:
    whole = writer.model_bytes()
    writer.write_model(file)
    header_size = read_header(file).data_offset
    for length in range(4, header_size, 7):
        file.write_bytes(whole[:length])
        assert "truncated" in refusal(file)


def test_tensor_data_that_ends_early(file: Path) -> None:
    file.write_bytes(writer.model_bytes()[:-1])
    message = refusal(file)
    assert "is truncated: its tensors need" in message
    assert str(len(writer.model_bytes())) in message


def counts(tensors: int, entries: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, entries)


@pytest.mark.parametrize(
    "content",
    [
        counts(1 << 62, 0),
        counts(0, 1 << 62),
        counts(0, 1) + struct.pack("<Q", 1 << 62),
        counts(0, 1) + writer.string("k") + struct.pack("<IQ", STRING, (1 << 64) - 1),
        counts(0, 1) + writer.string("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 61),
        counts(0, 1) + writer.string("k") + struct.pack("<IIQ", ARRAY, F64, 1 << 61),
        counts(0, 1) + writer.string("k") + struct.pack("<IIQQ", ARRAY, STRING, 2, (1 << 64) - 1),
        counts(0, 1) + writer.string("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1),
        counts(0, 1) + writer.string("k") + struct.pack("<I", 99),
        counts(1, 0) + writer.string("w") + struct.pack("<I", 1 << 31),
        counts(1, 0) + writer.tensor("w", ((1 << 63), (1 << 63)), 0, 0),
        counts(1, 0) + writer.tensor("w", (31,), 8, 0),
        counts(1, 0) + writer.tensor("w", (0, 4), 0, 0),
        counts(1, 0) + writer.tensor("w", (4,), 0, 7),
        writer.gguf_bytes({"general.alignment": 3}),
        writer.gguf_bytes({"general.alignment": "32"}),
        counts(0, 2) + writer.entry("k", 1) * 2,
    ],
)
def test_absurd_counts_cost_nothing(file: Path, content: bytes) -> None:
    file.write_bytes(content + bytes(64))
    start = time.perf_counter()
    refusal(file)
    assert time.perf_counter() - start < 1


def test_a_sparse_file_cannot_make_a_header_endless(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "READ_SIZES", (1 << 12, 1 << 16))
    file.write_bytes(counts(0, 1) + writer.string("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 30))
    with file.open("r+b") as handle:
        handle.truncate(1 << 40)
    assert "impossibly long header" in refusal(file)


def test_a_header_longer_than_the_first_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "READ_SIZES", (64, 1 << 20))
    assert read_header(writer.write_model(file)).name == "Tiny"


def test_an_unknown_tensor_type(file: Path) -> None:
    file.write_bytes(writer.gguf_bytes(writer.MODEL_METADATA, [("w", (32,), 77, 0)], bytes(999)))
    assert "type 77" in refusal(file, UnsupportedModelError)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"general__type": "mmproj"}, "vision projector"),
        ({"general__architecture": "clip"}, "vision projector"),
        ({"general__type": "adapter"}, "LoRA adapter"),
        ({"general__type": "imatrix"}, "importance matrix"),
        ({"split__count": 3, "split__no": 1}, "part 2 of a model split into 3 files"),
        ({"general__architecture": None}, "does not say which architecture"),
    ],
)
def test_good_files_that_are_no_language_models(file: Path, changes: dict[str, object], says: str) -> None:
    writer.write_model(file, **changes)
    assert says in refusal(file, UnsupportedModelError)
    read_header(file)


def test_a_split_count_of_one_is_a_whole_model(file: Path) -> None:
    read_model_header(writer.write_model(file, split__count=1, split__no=0))


def test_a_vocabulary_alone(file: Path) -> None:
    file.write_bytes(writer.gguf_bytes(writer.MODEL_METADATA))
    assert "without weights" in refusal(file, UnsupportedModelError)


# Hostile files: never another exception, never a hang.

WHOLE = writer.model_bytes()
fuzz = settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])


def survives(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    try:
        header = read_model_header(file)
    except ModelFileError:
        return
    assert isinstance(header.sampling_defaults, SamplingDefaults)
    assert isinstance(header.licence, str | None)
    assert isinstance(header.name, str)
    assert isinstance(header.quantisation, str)


@fuzz
@given(edits=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes(file: Path, edits: list[tuple[int, int]]) -> None:
    content = bytearray(WHOLE)
    for position, value in edits:
        content[position] = value
    survives(file, bytes(content))


@fuzz
@given(
    position=st.integers(8, len(WHOLE) - 8),
    number=st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([2**64 - 1, 2**63, 2**32, 2**31 - 1, 0])),
)
def test_changed_numbers(file: Path, position: int, number: int) -> None:
    survives(file, WHOLE[:position] + struct.pack("<Q", number) + WHOLE[position + 8 :])


@fuzz
@given(start=st.integers(0, len(WHOLE)), length=st.integers(0, 64), inserted=st.binary(max_size=64))
@example(start=0, length=0, inserted=b"")
def test_cut_and_inserted_bytes(file: Path, start: int, length: int, inserted: bytes) -> None:
    survives(file, WHOLE[:start] + inserted + WHOLE[start + length :])


@fuzz
@given(tail=st.binary(max_size=200))
def test_random_bytes_after_the_magic(file: Path, tail: bytes) -> None:
    survives(file, b"GGUF\x03\0\0\0" + tail)


def test_a_vocabulary_of_262144_opens_in_well_under_a_second(file: Path) -> None:
    tokens = [f"token{number}" for number in range(262144)]
    metadata = writer.MODEL_METADATA | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": Typed([0.0] * len(tokens), ARRAY, F32),
        "tokenizer.ggml.token_type": Typed([1] * len(tokens), ARRAY, I32),
    }
    file.write_bytes(writer.gguf_bytes(metadata, writer.MODEL_TENSORS, writer.MODEL_DATA))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        header = read_model_header(file)
        times.append(time.perf_counter() - start)
    read = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(read, PackedStrings)
    assert (len(read), read[-1]) == (262144, b"token262143")
    # About 50 ms on an idle core; the bound leaves room for a busy machine.
    assert min(times) < 0.3


@pytest.mark.model
def test_agrees_with_the_gguf_package_on_a_real_file(smollm2: Path) -> None:
    reader = pytest.importorskip("gguf").GGUFReader(smollm2)
    header = read_model_header(smollm2)
    theirs = [
        (t.name, t.tensor_type.name, tuple(map(int, t.shape)), int(t.data_offset), int(t.n_bytes))
        for t in reader.tensors
    ]
    ours = [(t.name, t.type.name, t.shape, t.offset, t.nbytes) for t in header.tensors]
    assert ours == theirs
    assert set(header.metadata) == {key for key in reader.fields if not key.startswith("GGUF.")}
    for key, value in header.metadata.items():
        contents = reader.fields[key].contents()
        if isinstance(value, PackedStrings):
            assert value.texts() == contents
        elif isinstance(value, np.ndarray):
            assert value.tolist() == contents
        else:
            assert value == contents


def test_type_tables_agree_with_the_gguf_package() -> None:
    constants = pytest.importorskip("gguf.constants")
    for kind, (block, nbytes) in constants.GGML_QUANT_SIZES.items():
        assert gguf.TENSOR_TYPES.get(kind.value, (kind.name, block, nbytes)) == (kind.name, block, nbytes)
    assert len(gguf.TENSOR_TYPES) >= 32
    for number, name in gguf.FILE_TYPES.items():
        theirs = constants.LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
        assert theirs.removesuffix("_MOE") == name
