"""Weights in memory are the file's, and products are the arithmetic that docs/native.md states."""

from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipstream.runtime.native import _native, instruction_sets
from slipstream.runtime.native.loading import FORMATS

GROUP = 32
GROUPS = {
    "F32": (32, 128),
    "F16": (32, 64),
    "BF16": (32, 64),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "IQ4_NL": (32, 18),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Numbers in a group and the bytes that it has in a file."""

SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2)}
SCALES |= {"Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "IQ4_NL": (0,), "Q6_K": (208,)}
"""Where a group has its scale and minimum in half precision."""

QUANTISED = tuple(SCALES)
LARGEST = {"Q4_1": (15, 1), "Q5_1": (31, 1), "Q2_K": (3 * 15, 15), "Q4_K": (15 * 63, 63), "Q5_K": (31 * 63, 63)}
"""Of formats with a minimum: by what scale and minimum of a group are multiplied at most."""

ROUNDINGS = {"Q2_K": 4, "Q3_K": 3, "Q6_K": 3}
"""Of sums for each 32 inputs, where there are more than two."""

ROUNDING = 2.0**-24

repeatable = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
shapes = st.tuples(st.integers(1, 50), st.integers(1, 5))
"""Rows of a matrix, mostly not a multiple of 16, and groups in each."""


def random_matrix(storage: str, rows: int, groups: int, seed: int) -> NDArray[np.uint8]:
    """[rows, bytes] of anything that a file may hold, but infinities and NaN."""
    chance = np.random.default_rng(seed)
    raw = chance.integers(0, 256, (rows, groups, GROUPS[storage][1]), np.uint8)
    halves = raw.view(np.uint16)
    match storage:
        case "F32":
            high = raw.view(np.uint32)
            high[(high >> 23 & 255) > 190] &= 0x9FFFFFFF  # neither infinite nor so large that a product would be
        case "BF16":
            halves[(halves >> 7 & 255) > 190] &= 0x9FFF
        case "F16":
            halves[halves >> 10 & 31 == 31] &= 0x83FF  # to subnormals
        case _:
            scales = halves[:, :, scale_places(storage)]
            scales[scales >> 10 & 31 == 31] &= 0x83FF
            halves[:, :, scale_places(storage)] = scales
    return raw.reshape(rows, -1)


def scale_places(storage: str) -> list[int]:
    """Among the pairs of bytes of a group."""
    return [place // 2 for place in SCALES[storage]]


def dequantised(storage: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[rows, columns] by the `gguf` package."""
    numbers: NDArray[np.float32] = gguf.quants.dequantize(
        raw.view({"F32": np.float32, "F16": np.float16}.get(storage, np.uint8)), gguf.GGMLQuantizationType[storage]
    )
    return numbers


def loaded(path: Path, storage: str, raw: NDArray[np.uint8], before: int = 0) -> _native.Weights:
    """One tensor, `before` bytes into a file."""
    path.write_bytes(bytes(before) + raw.tobytes())
    inputs, group_bytes = GROUPS[storage]
    columns = raw.shape[1] // group_bytes * inputs
    return _native.load_weights([str(path)], [("it", FORMATS[storage], raw.shape[0], columns, 0, before)], 1, None)


def product(weights: _native.Weights, isa: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """[rows of x, rows of the matrix]."""
    return np.array(_native.multiply(weights, 0, isa, x.ravel().tolist(), len(x)), np.float32).reshape(len(x), -1)


@pytest.mark.parametrize("storage", FORMATS)
@settings(repeatable, max_examples=40)
@given(shape=shapes, seed=st.integers(0, 1 << 32), before=st.integers(0, 99))
def test_the_values_are_the_files(tmp_path: Path, storage: str, shape: tuple[int, int], seed: int, before: int) -> None:
    raw = random_matrix(storage, *shape, seed)
    weights = loaded(tmp_path / "weights", storage, raw, before)
    ours = np.array([_native.row_of(weights, 0, row) for row in range(len(raw))], np.float32)
    assert ours.tobytes() == dequantised(storage, raw).astype(np.float32).tobytes()


def test_every_half_is_read_as_it_is(tmp_path: Path) -> None:
    """All 63,488 finite numbers, subnormals and both zeros included."""
    every = np.arange(1 << 16, dtype=np.uint16)
    finite = every[every >> 10 & 31 != 31].reshape(-1, 512)
    weights = loaded(tmp_path / "weights", "F16", finite.view(np.uint8))
    ours = np.array([_native.row_of(weights, 0, row) for row in range(len(finite))], np.float32)
    assert ours.tobytes() == finite.view(np.float16).astype(np.float32).tobytes()


# ---- Products -------------------------------------------------------------------------------------------------------


def quantised_activations(x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Codes [rows, groups, 32] and scales [rows, groups]: the largest of 32 becomes 127, halves go to the even."""
    groups = x.reshape(len(x), -1, GROUP)
    largest = np.abs(groups).max(axis=2)
    inverse = np.where(largest > 0, np.float32(127) / np.where(largest > 0, largest, np.float32(1)), np.float32(0))
    return np.rint(groups * inverse[:, :, None]).astype(np.float64), largest / np.float32(127)


def expected_product(
    storage: str, raw: NDArray[np.uint8], x: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[rows of x, rows of the matrix]: the products, and how far rounding of sums may move each."""
    values = dequantised(storage, raw).astype(np.float64)
    if storage in QUANTISED:
        codes, scales = quantised_activations(x)
        x = (codes * scales[:, :, None].astype(np.float64)).reshape(x.shape)
        steps = ROUNDINGS.get(storage, 2) * x.shape[1] // GROUP + 8
    else:
        steps = 2 * x.shape[1]
    return x @ values.T, steps * ROUNDING * (np.abs(x) @ magnitudes(storage, raw, values).T)


def magnitudes(storage: str, raw: NDArray[np.uint8], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sizes of what is added up: code times scale and a minimum are added apart."""
    if storage not in LARGEST:
        return np.abs(values)
    inputs, group_bytes = GROUPS[storage]
    halves = raw.reshape(len(raw), -1, group_bytes).view(np.float16)[:, :, scale_places(storage)]
    return np.repeat(np.abs(halves.astype(np.float64)) @ LARGEST[storage], inputs, axis=1)


def random_rows(rows: int, columns: int, seed: int) -> NDArray[np.float32]:
    """Rows of many sizes, some with a group of nothing but zeros."""
    chance = np.random.default_rng([seed, 1])
    x = chance.standard_normal((rows, columns)) * 10.0 ** chance.uniform(-6, 4, (rows, 1))
    x[chance.random(rows) < 0.2, :GROUP] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("storage", FORMATS)
@settings(repeatable, max_examples=25)
@given(shape=shapes, rows=st.integers(1, 20), seed=st.integers(0, 1 << 32))
def test_products(tmp_path: Path, storage: str, isa: str, shape: tuple[int, int], rows: int, seed: int) -> None:
    raw = random_matrix(storage, *shape, seed)
    x = random_rows(rows, shape[1] * GROUPS[storage][0], seed)
    weights = loaded(tmp_path / "weights", storage, raw)
    expected, tolerance = expected_product(storage, raw, x)
    found = product(weights, isa, x)
    assert (np.abs(found - expected) <= tolerance + 1e-37).all()
    alone = np.concatenate([product(weights, isa, row[None]) for row in x])
    assert found.tobytes() == alone.tobytes()


def constant_group(storage: str, code: int, scales: int) -> bytes:
    """Always the same code, and in a super-block the same byte wherever its scales and minima are; scale 1, minimum 1
    in a super-block, which subtracts it, and else -2.
    """
    one, minimum = np.float16(1).tobytes(), np.float16(-2).tobytes()
    nibbles, pairs = bytes([code % 16 * 17]), bytes([code % 4 * 85])
    match storage:
        case "Q8_0":
            return one + np.full(GROUP, code, np.int8).tobytes()
        case "Q4_0" | "IQ4_NL":
            return one + nibbles * 16
        case "Q4_1":
            return one + minimum + nibbles * 16
        case "Q5_0":
            return one + bytes([code // 16 * 255] * 4) + nibbles * 16
        case "Q5_1":
            return one + minimum + bytes([code // 16 * 255] * 4) + nibbles * 16
        case "Q2_K":
            return bytes([scales] * 16) + pairs * 64 + one + one
        case "Q3_K":
            return bytes([code // 4 * 255] * 32) + pairs * 64 + bytes([scales] * 12) + one
        case "Q4_K":
            return one + one + bytes([scales] * 12) + nibbles * 128
        case "Q5_K":
            return one + one + bytes([scales] * 12) + bytes([code // 16 * 255] * 32) + nibbles * 128
        case _:
            return nibbles * 128 + bytes([code // 16 * 85] * 64) + bytes([scales] * 16) + one


EXTREMES = [
    ("Q8_0", -128, 0, -128),
    ("Q8_0", 127, 0, 127),
    ("Q4_0", 0, 0, -8),
    ("Q4_0", 15, 0, 7),
    ("Q4_1", 0, 0, -2),
    ("Q4_1", 15, 0, 13),
    ("Q5_0", 0, 0, -16),
    ("Q5_0", 31, 0, 15),
    ("Q5_1", 0, 0, -2),
    ("Q5_1", 31, 0, 29),
    ("IQ4_NL", 0, 0, -127),
    ("IQ4_NL", 15, 0, 113),
    ("Q2_K", 0, 255, -15),
    ("Q2_K", 3, 255, 3 * 15 - 15),
    ("Q3_K", 0, 0, -4 * -32),
    ("Q3_K", 7, 0, 3 * -32),
    ("Q3_K", 0, 255, -4 * 31),
    ("Q3_K", 7, 255, 3 * 31),
    ("Q4_K", 0, 255, -63),
    ("Q4_K", 15, 255, 15 * 63 - 63),
    ("Q5_K", 0, 255, -63),
    ("Q5_K", 31, 255, 31 * 63 - 63),
    ("Q6_K", 0, 128, -32 * -128),
    ("Q6_K", 63, 128, 31 * -128),
    ("Q6_K", 0, 127, -32 * 127),
    ("Q6_K", 63, 127, 31 * 127),
]
"""Format, code, byte of the scales, value."""


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize(("storage", "code", "scales", "value"), EXTREMES)
@pytest.mark.parametrize("signs", ["all plus", "all minus", "in turn"])
def test_the_largest_codes_do_not_overflow(
    tmp_path: Path, storage: str, code: int, scales: int, value: int, isa: str, signs: str
) -> None:
    """Every sum here is a whole number that float32 holds, so the product is exact."""
    columns = 9 * GROUP if GROUPS[storage][0] == GROUP else GROUPS[storage][0]
    raw = np.frombuffer(constant_group(storage, code, scales) * (columns // GROUPS[storage][0]), np.uint8)
    weights = loaded(tmp_path / "weights", storage, np.tile(raw, (17, 1)))
    pattern = {"all plus": [1, 1], "all minus": [-1, -1], "in turn": [1, -1]}[signs]
    x = np.tile(np.array(pattern, np.float32) * 127, (5, columns // 2))
    assert (product(weights, isa, x) == value * x.sum(axis=1)[:, None]).all()


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("storage", QUANTISED)
def test_every_code_is_multiplied_by_its_own_activation(tmp_path: Path, storage: str, isa: str) -> None:
    """A one in one place, zeros elsewhere: the product is that weight."""
    raw = random_matrix(storage, 33, 2, 5)
    halves = raw.reshape(33, 2, -1).view(np.float16)
    halves[:, :, scale_places(storage)] = [1.0, 0.5][: len(SCALES[storage])]
    weights = loaded(tmp_path / "weights", storage, raw)
    found = product(weights, isa, 127 * np.eye(2 * GROUPS[storage][0], dtype=np.float32))
    assert (found == 127 * dequantised(storage, raw).T).all()


def test_activations_are_rounded_to_the_even(tmp_path: Path) -> None:
    """The largest of a group is 127, so x is its own code, and 0.5 and 2.5 lie in the middle."""
    raw = np.frombuffer(constant_group("Q8_0", 1, 0), np.uint8)[None]
    weights = loaded(tmp_path / "weights", "Q8_0", raw)
    for isa in instruction_sets():
        for x, code in ((0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-2.5, -2), (0.51, 1)):
            row = np.zeros((1, GROUP), np.float32)
            row[0, :2] = 127, x
            assert product(weights, isa, row)[0, 0] == 127 + code


def test_tensors_lie_beside_each_other(tmp_path: Path) -> None:
    """Several of all types in one file, loaded by three threads, in pieces of blocks."""
    path, places, content = tmp_path / "weights", [], b""
    raws = {storage: random_matrix(storage, 37, 3, 9) for storage in FORMATS}
    for storage, raw in raws.items():
        places.append((storage, FORMATS[storage], 37, 3 * GROUPS[storage][0], 0, len(content)))
        content += raw.tobytes()
    path.write_bytes(content)
    weights = _native.load_weights([str(path)], places, 3, None)
    assert weights.bytes >= _native.weight_bytes(places)
    for index, (storage, raw) in enumerate(raws.items()):
        ours = np.array([_native.row_of(weights, index, row) for row in range(37)], np.float32)
        assert ours.tobytes() == dequantised(storage, raw).astype(np.float32).tobytes()


def test_a_matrix_larger_than_the_pieces_that_threads_read(tmp_path: Path) -> None:
    raw = random_matrix("Q4_0", 5000, 64, 3)  # 5.7 MB; pieces are of 1 MiB
    weights = loaded(tmp_path / "weights", "Q4_0", raw)
    expected = dequantised("Q4_0", raw)
    for row in (0, 15, 16, 900, 911, 912, 2500, 4991, 4992, 4999):
        assert np.array(_native.row_of(weights, 0, row), np.float32).tobytes() == expected[row].tobytes()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (("it", 16, 1, 256, 0, 0), "it has a type"),
        (("it", 12, 1, 128, 0, 0), "it has rows that are no multiple of 256"),
        (("it", 0, 0, 32, 0, 0), "it has an impossible shape"),
        (("it", 0, -1, 32, 0, 0), "it has an impossible shape"),
        (("it", 0, 1, 1 << 40, 0, 0), "it has an impossible shape"),
        (("it", 0, 1, 31, 0, 0), "it has rows that are no multiple of 32"),
        (("it", 0, 1, 32, 0, -1), "it lies beyond the end of the file"),
        (("it", 0, 1, 32, 0, 1), "it lies beyond the end of the file"),
        (("it", 0, 1 << 29, 1 << 29, 0, 0), "it lies beyond the end of the file"),
    ],
)
def test_impossible_tensors_are_refused(tmp_path: Path, place: tuple[str, int, int, int, int, int], says: str) -> None:
    (tmp_path / "weights").write_bytes(bytes(128))
    with pytest.raises(_native.BadFile, match=says):
        _native.load_weights([str(tmp_path / "weights")], [place], 1, None)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(_native.BadFile, match="it cannot be read"):
        _native.load_weights([str(tmp_path / "none")], [], 1, None)
    with pytest.raises(_native.BadFile, match="it is not a regular file"):
        _native.load_weights([str(tmp_path)], [], 1, None)
