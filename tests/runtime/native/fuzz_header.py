"""Damaged model files against the native runtime: each is refused with a sentence, or runs.

    fuzz_header.py [--files 10000] [--seed 1]

Header, metadata and tensor table of tiny models are damaged at random, mostly one field at a time, so that
the damage comes through to the code behind the first checks. `scripts/fuzz` runs it with everything in C++ under
sanitizers; a crash leaves the file that caused it behind. The tokenizer is left out: it is llama.cpp's, which
has its own fuzzing, and would take nearly all of the time.
"""

import argparse
import random
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

if __name__ == "__main__":  # a script: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from slipstream.core.protocols import Segment
from slipstream.errors import SlipstreamError
from slipstream.models.gguf import GgufHeader
from slipstream.models.gguf_types import ARRAY, SCALARS, STRING, TENSOR_TYPES
from slipstream.runtime.native import load_native
from slipstream.runtime.native.loading import FORMATS
from tests.tiny_models import VARIANTS, Shape, tiny_decoder, tiny_llama

NUMBERS = [
    0,
    1,
    2,
    3,
    5,
    31,
    32,
    33,
    63,
    64,
    96,
    128,
    256,
    257,
    1 << 16,
    1 << 20,
    (1 << 24) - 32,
    1 << 24,
    (1 << 24) + 1,
]
NUMBERS += [(1 << bits) + more for bits in (31, 32, 62, 63, 64) for more in (-32, -1, 0, 1, 32)]
REALS = [0.0, -0.0, 1e-45, 1e-30, 1.0, -1.0, 2.0, 1e20, 1e29, 1e38, float("inf"), float("-inf"), float("nan")]

SHAPES = {
    "F32": Shape(width=32, heads=1, feed_forward=32, layers=1),
    "F16": Shape(width=32, heads=4, key_value_heads=2, feed_forward=64, layers=2),
    "BF16": Shape(width=64, heads=1, head_size=64, feed_forward=32, layers=1),
    "Q4_0": Shape(width=32, heads=2, feed_forward=64, layers=2),
    "Q4_1": Shape(width=64, heads=2, key_value_heads=1, feed_forward=96, layers=1),
    "Q8_0": Shape(width=32, heads=3, key_value_heads=1, feed_forward=32, layers=1),
    "Q5_0": Shape(width=32, heads=1, feed_forward=32, layers=1),
    "Q5_1": Shape(width=64, heads=2, feed_forward=32, layers=1),
    "IQ4_NL": Shape(width=32, heads=2, key_value_heads=1, feed_forward=32, layers=1),
    **dict.fromkeys(
        ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"), Shape(width=256, head_size=128, feed_forward=256, layers=1)
    ),
}

OTHERS = {name: Shape(width=32, heads=2, key_value_heads=1, feed_forward=32, layers=3) for name in VARIANTS}
"""Of the other architectures; a llama of these sizes is one more."""


# ---- Where things are in a file ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """A number in the file; `layout` is that of `struct`."""

    start: int
    layout: str

    def read(self, content: bytes | bytearray) -> int | float:
        number: int | float = struct.unpack_from(self.layout, content, self.start)[0]
        return number

    def write(self, content: bytearray, number: int | float) -> None:
        size = struct.calcsize(self.layout)
        if self.layout in ("<f", "<d"):
            struct.pack_into(self.layout, content, self.start, number)
        else:
            content[self.start : self.start + size] = (int(number) % (1 << 8 * size)).to_bytes(size, "little")


@dataclass
class Tensor:
    """Places of one entry of the tensor table."""

    name: tuple[int, int]
    count: Field
    dimensions: list[Field]
    kind: Field
    offset: Field


@dataclass
class Anatomy:
    """Places of everything in a good file but the vocabulary."""

    content: bytes
    counts: list[Field] = field(default_factory=list)
    lengths: list[Field] = field(default_factory=list)
    kinds: list[Field] = field(default_factory=list)
    integers: list[Field] = field(default_factory=list)
    reals: list[Field] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of the header without the vocabulary."""
    data: int = 0

    _position: int = 0

    def __post_init__(self) -> None:
        self.counts = [self._field("<I", 4), self._field("<Q"), self._field("<Q")]
        self.spans.append((0, self._position))
        tensors, entries = (int(count.read(self.content)) for count in self.counts[1:])
        for _ in range(entries):
            self._entry()
        start = self._position
        for _ in range(tensors):
            self._tensor()
        self.spans.append((start, self._position))
        self.data = -(-self._position // 32) * 32

    def _field(self, layout: str, skip: int = 0) -> Field:
        found = Field(self._position + skip, layout)
        self._position = found.start + struct.calcsize(layout)
        return found

    def _text(self) -> tuple[int, int]:
        self.lengths.append(self._field("<Q"))
        start = self._position
        self._position += int(self.lengths[-1].read(self.content))
        return start, self._position

    def _entry(self) -> None:
        start = self._position
        key_start, key_end = self._text()
        key = self.content[key_start:key_end]
        kind = self._field("<I")
        self.kinds.append(kind)
        fields = (self.lengths, self.integers, self.reals)
        before = [len(places) for places in fields]
        self._value(int(kind.read(self.content)))
        if key.startswith(b"tokenizer."):  # stepped over: nothing here reads it
            self.spans.append((start, key_end + 4))
            for places, count in zip(fields, before, strict=True):
                del places[count:]
        else:
            self.spans.append((start, self._position))

    def _value(self, kind: int) -> None:
        if kind == STRING:
            self._text()
        elif kind == ARRAY:
            element, count = self._field("<I"), self._field("<Q")
            for _ in range(int(count.read(self.content))):
                self._value(int(element.read(self.content)))
        else:
            dtype = SCALARS[kind]
            layout = {"f": "<fd", "u": "<BHIQ", "i": "<bhiq", "b": "<?"}[dtype.kind]
            size = {1: 0, 2: 1, 4: 2, 8: 3}[dtype.itemsize] if dtype.kind in "ui" else dtype.itemsize // 8
            number = self._field("<" + layout[1 + size])
            (self.reals if dtype.kind == "f" else self.integers).append(number)

    def _tensor(self) -> None:
        name = self._text()
        count = self._field("<I")
        dimensions = [self._field("<Q") for _ in range(int(count.read(self.content)))]
        self.tensors.append(Tensor(name, count, dimensions, self._field("<I"), self._field("<Q")))


# ---- Damage --------------------------------------------------------------------------------------------------------


class Damage:
    """Random changes to one file."""

    def __init__(self, anatomy: Anatomy, chance: random.Random) -> None:
        self.anatomy = anatomy
        self.chance = chance
        self.content = bytearray(anatomy.content)

    def result(self) -> bytes:
        """The file after one to three changes."""
        changes: list[Callable[[], None]] = [self.size, self.number, self.real, self.dimension, self.place, self.kind]
        changes += [self.type, self.length, self.names, self.bits, self.weights, self.metadata, self.count]
        for _ in range(self.chance.choice([1, 1, 1, 2, 3])):
            self.chance.choice(changes)()
        if self.chance.random() < 0.1:  # last, as places are those of the good file
            self.chance.choice([self.cut, self.insert, self.remove])()
        return bytes(self.content)

    def size(self) -> None:
        """A size in the metadata that fits its neighbours better than most numbers."""
        one = self.chance.choice(self.anatomy.integers)
        one.write(self.content, self.chance.choice([1, 2, 3, 4, 8, 16, 32, 64, 96, 128, 256, 512]))

    def number(self) -> None:
        self._change(self.chance.choice(self.anatomy.integers))

    def real(self) -> None:
        self.chance.choice(self.anatomy.reals).write(self.content, self.chance.choice(REALS))

    def dimension(self) -> None:
        self._change(self.chance.choice(self.chance.choice(self.anatomy.tensors).dimensions))

    def place(self) -> None:
        """A tensor elsewhere: over another, beyond the end, out of line."""
        one, other = self.chance.choices(self.anatomy.tensors, k=2)
        if self.chance.random() < 0.5:
            self._change(one.offset)
        else:
            one.offset.write(self.content, other.offset.read(self.anatomy.content) + self.chance.choice([0, 0, 32, 64]))

    def kind(self) -> None:
        """Another tensor type."""
        known = [*TENSOR_TYPES, *FORMATS.values(), *(0, 1, 2, 3, 8, 30) * 5, 4, 5, 77, 1 << 31]
        self.chance.choice(self.anatomy.tensors).kind.write(self.content, self.chance.choice(known))

    def type(self) -> None:
        """Another type of a metadata value."""
        self.chance.choice(self.anatomy.kinds).write(self.content, self.chance.randrange(14))

    def length(self) -> None:
        self._change(self.chance.choice(self.anatomy.lengths))

    def count(self) -> None:
        fields = self.anatomy.counts + [tensor.count for tensor in self.anatomy.tensors]
        self._change(self.chance.choice(fields))

    def names(self) -> None:
        """A tensor under another's name, or a name with another letter."""
        (start, end), (other, stop) = (self.chance.choice(self.anatomy.tensors).name for _ in range(2))
        if end - start == stop - other:
            self.content[start:end] = self.anatomy.content[other:stop]
        else:
            self.content[self.chance.randrange(start, end)] = self.chance.choice(b"abk.0129w\0\xff")

    def bits(self) -> None:
        for _ in range(self.chance.choice([1, 1, 2, 8])):
            start, end = self.chance.choice(self.anatomy.spans)
            self.content[self.chance.randrange(start, end)] ^= 1 << self.chance.randrange(8)

    def weights(self) -> None:
        """Infinities and NaN among weights and scales."""
        for _ in range(self.chance.choice([1, 10, 1000])):
            place = self.chance.randrange(self.anatomy.data, len(self.anatomy.content) - 1) & ~1
            self.content[place : place + 2] = self.chance.choice([b"\x00\x7c", b"\xff\xff", b"\x80\x7f", b"\x01\x00"])

    def metadata(self) -> None:
        """A key that is spelled differently is a value that is missing."""
        start, end = self.chance.choice(self.anatomy.spans[1:-1])
        self.content[self.chance.randrange(start + 8, end)] = self.chance.randrange(256)

    def cut(self) -> None:
        del self.content[self.chance.randrange(len(self.content)) :]

    def insert(self) -> None:
        place = self.chance.choice(self.anatomy.spans)[0]
        self.content[place:place] = self.chance.randbytes(self.chance.choice([1, 4, 8, 32]))

    def remove(self) -> None:
        place = self.chance.choice(self.anatomy.spans)[0]
        del self.content[place : place + self.chance.choice([1, 4, 8, 32])]

    def _change(self, one: Field) -> None:
        now = int(one.read(self.anatomy.content))
        near = [now - 1, now + 1, now + 32, now - 32, 2 * now, now // 2, 32 * now, -now]
        one.write(self.content, self.chance.choice(NUMBERS + near * 2))


# ---- What becomes of it --------------------------------------------------------------------------------------------


class AnyVocabulary:
    """As many tokens as the file has rows of logits."""

    def __init__(self, header: GgufHeader) -> None:
        shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        shape = shapes.get("output.weight") or shapes.get("token_embd.weight") or ()
        self.size = shape[1] if len(shape) > 1 else 1


def run(path: Path, threads: int) -> None:
    """Load and use a file as a generation would."""
    model = load_native(path, context_length=32, max_sequences=2, max_rows=16, threads=threads)
    session = model.open_session()
    last = model.vocabulary.size - 1
    model.forward([Segment(session, [0, last, last // 2, 0, last])], hidden=[0])
    session.commit(range(5))
    rows = model.forward([Segment(session, [0, 1 % (last + 1), last], [-1, -1, 0])])[0]
    rows.logits(2).max()  # may be NaN: numbers are the author's, if they are in their places
    session.commit([0, 2])
    session.fork(3).close()
    model.close()


@dataclass
class Outcome:
    """What became of the files."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    """Seconds, and the file's number."""


def fuzz(files: int, seed: int, directory: Path) -> Outcome:
    """Damage and run so many files."""
    anatomies = [
        Anatomy(tiny_llama(directory / f"{storage}.gguf", shape=shape, storage=storage, tied=tied).read_bytes())
        for storage, shape in SHAPES.items()
        for tied in (False, True)
    ]
    anatomies += [
        Anatomy(tiny_decoder(directory / f"{name}.gguf", name, shape=shape, storage="Q8_0").read_bytes())
        for name, shape in OTHERS.items()
    ]
    outcome = Outcome()
    path = directory / "damaged.gguf"
    with _strict():
        for number in range(files):
            chance = random.Random(f"{seed} {number}")  # so that one file can be made again
            path.write_bytes(Damage(chance.choice(anatomies), chance).result())
            start = time.perf_counter()
            _judge(path, 2 if number % 16 == 0 else 1, number, outcome)
            outcome.slowest = max(outcome.slowest, (time.perf_counter() - start, number))
    return outcome


def _judge(path: Path, threads: int, number: int, outcome: Outcome) -> None:
    try:
        run(path, threads)
    except SlipstreamError as error:
        outcome.counts[type(error).__name__] += 1
        if "\n" in str(error) or not str(error).endswith("."):
            outcome.failures.append(f"file {number}: not a sentence: {error}")
    except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
        outcome.failures.append(f"file {number}: {traceback.format_exc()}")
    else:
        outcome.counts["accepted"] += 1


@contextmanager
def _strict() -> Iterator[None]:
    """Warnings are errors, and tokenizers are not read."""
    patched = mock.patch("slipstream.runtime.native.model.vocabulary_of", lambda header: (AnyVocabulary(header), None))
    with patched, warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def main() -> int:
    """Run from the command line: 0 if every file was refused properly or ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000, help="how many damaged files (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other files (%(default)s)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="slipstream-fuzz-"))
    print(f"{options.files} files; after a crash see {directory}/damaged.gguf", flush=True)  # noqa: T201
    start = time.perf_counter()
    outcome = fuzz(options.files, options.seed, directory)
    for name, count in outcome.counts.most_common():
        print(f"{count:7} {name}")  # noqa: T201
    for failure in outcome.failures[:20]:
        print(failure)  # noqa: T201
    seconds, (slowest, number) = time.perf_counter() - start, outcome.slowest
    print(f"{len(outcome.failures)} failures, {seconds:.0f} s, slowest {slowest:.1f} s (file {number})")  # noqa: T201
    for leftover in directory.iterdir():
        leftover.unlink()
    directory.rmdir()
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
