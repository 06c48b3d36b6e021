"""Damaged model files against the native runtime: each is refused with a sentence, or runs.

    fuzz_header.py [--files 10000] [--seed 1]

Header, metadata and tensor table of tiny models are damaged at random, mostly one field at a time, so that the damage
comes through to the code behind the first checks. `scripts/fuzz` runs it with everything in C++ under sanitizers; a
crash leaves the file that caused it behind. One file in ten is read with its own tokenizer, which is damaged with the
rest; for the others any vocabulary does. llama.cpp's tokenizer, which may be asked after ours, has its own fuzzing.

It fails where a file meets anything but a proper refusal, and where so few files run that most of the code was not met.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from unittest import mock

if __name__ == "__main__":  # a script: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from slipstream.core.protocols import Segment
from slipstream.errors import SlipstreamError, UsageError
from slipstream.models.gguf import GgufHeader, read_model_header
from slipstream.models.gguf_types import ARRAY, SCALARS, STRING, TENSOR_TYPES
from slipstream.runtime.native import NativeModel, load_native
from slipstream.runtime.native.loading import FORMATS
from slipstream.runtime.native.session import NativeSession
from slipstream.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_models import VARIANTS, Shape, sentencepiece, tiny_decoder, tiny_llama

LEAST_ACCEPTED = 0.02
"""Share of the files that must run: with fewer, something refuses what it should not. Usual are 15 %."""

TOKENIZED = 10
"""One file in so many is read with its own tokenizer."""

CONTEXT, LONG_CONTEXT = 32, 512
"""Tokens of a session; the second is more than layers with a window keep."""

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
    """Places of everything in a good file; of the tokenizer's keys only where it is to be damaged, too."""

    content: bytes
    with_tokenizer: bool = False
    counts: list[Field] = field(default_factory=list)
    lengths: list[Field] = field(default_factory=list)
    kinds: list[Field] = field(default_factory=list)
    integers: list[Field] = field(default_factory=list)
    reals: list[Field] = field(default_factory=list)
    texts: list[tuple[int, int]] = field(default_factory=list)
    """String values, elements of arrays among them."""
    tensors: list[Tensor] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of the header: its beginning, its entries, its tensor table."""
    end: int = 0
    """Of the header; `data` is where weights begin."""
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
        self.end = self._position
        self.data = self.end + padding(self.end)

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
        fields: tuple[list[Field], list[Field], list[Field], list[tuple[int, int]]]
        fields = (self.lengths, self.integers, self.reals, self.texts)
        before = [len(places) for places in fields]
        self._value(int(kind.read(self.content)))
        if key.startswith(b"tokenizer.") and not self.with_tokenizer:  # stepped over: nothing reads it
            self.spans.append((start, key_end + 4))
            for places, count in zip(fields, before, strict=True):
                del places[count:]
        else:
            self.spans.append((start, self._position))

    def _value(self, kind: int) -> None:
        if kind == STRING:
            self.texts.append(self._text())
        elif kind == ARRAY:
            element, count = self._field("<I"), self._field("<Q")
            self.lengths.append(count)
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


def padding(end: int) -> int:
    """Bytes between a header that ends there and the weights."""
    return -end % 32


# ---- Good models ---------------------------------------------------------------------------------------------------


class AnyVocabulary:
    """As many tokens as the file has rows of logits."""

    def __init__(self, header: GgufHeader) -> None:
        shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        shape = shapes.get("output.weight") or shapes.get("token_embd.weight") or ()
        self.size = shape[1] if len(shape) > 1 else 1


@dataclass(frozen=True)
class Specimen:
    """A good model, and how a damaged copy of it is used.

    files:      one, or the parts of a split model
    vocabulary: how the tokenizer is read
    """

    files: Sequence[Anatomy]
    context: int = CONTEXT
    vocabulary: Callable[[GgufHeader], AnyVocabulary | Tokenizer] = AnyVocabulary

    def written(self, directory: Path, contents: Sequence[bytes]) -> Path:
        """Write its files with these contents; the path of the first."""
        names = ["damaged.gguf"]
        if (count := len(contents)) > 1:
            names = [f"damaged-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
        for name, content in zip(names, contents, strict=True):
            (directory / name).write_bytes(content)
        return directory / names[0]


def specimens(directory: Path) -> list[Specimen]:
    """Of all formats and architectures, a split one, and one whose sessions read more than its windows keep."""
    files = [
        tiny_llama(directory / f"{storage}.gguf", shape=shape, storage=storage, tied=tied).read_bytes()
        for storage, shape in SHAPES.items()
        for tied in (False, True)
    ]
    files += [
        tiny_decoder(directory / f"{name}.gguf", name, shape=shape, storage="Q8_0").read_bytes()
        for name, shape in OTHERS.items()
    ]
    windowed = tiny_decoder(directory / "windowed.gguf", "gemma3", shape=OTHERS["gemma3"], storage="Q4_0")
    tiny_llama(directory / "split.gguf", shape=SHAPES["Q4_0"], storage="Q4_0", split=11)
    parts = sorted(directory.glob("split-*.gguf"))
    assert len(parts) == 2
    return [
        *(Specimen([Anatomy(content)]) for content in files),
        Specimen([Anatomy(windowed.read_bytes())], context=LONG_CONTEXT),
        Specimen([Anatomy(part.read_bytes()) for part in parts]),
    ]


def tokenized_specimens(directory: Path) -> list[Specimen]:
    """Models that are read with their own tokenizers, of both kinds."""
    files = [
        tiny_llama(directory / "bytes.gguf", shape=SHAPES["Q8_0"], storage="Q8_0"),
        tiny_llama(directory / "pieces.gguf", vocabulary=sentencepiece(), shape=SHAPES["Q4_0"], storage="Q4_0"),
        tiny_decoder(directory / "other.gguf", "gemma3", vocabulary=sentencepiece(), shape=OTHERS["gemma3"]),
    ]
    return [Specimen([Anatomy(file.read_bytes(), with_tokenizer=True)], vocabulary=load_tokenizer) for file in files]


# ---- Damage --------------------------------------------------------------------------------------------------------


class Damage:
    """Random changes to one file."""

    def __init__(self, anatomy: Anatomy, chance: random.Random) -> None:
        self.anatomy = anatomy
        self.chance = chance
        self.content = bytearray(anatomy.content)

    def result(self) -> bytes:
        """The file after one to three changes."""
        changes: list[Callable[[], None]] = [self.size, self.number, self.dimension, self.place, self.kind, self.type]
        changes += [self.length, self.names, self.bits, self.weights, self.metadata, self.count]
        changes += [self.real] * bool(self.anatomy.reals) + [self.text] * self.anatomy.with_tokenizer
        if self.chance.random() < 0.05:
            changes = []  # what is to come, alone
        for _ in range(self.chance.choice([1, 1, 1, 2, 3]) if changes else 0):
            self.chance.choice(changes)()
        if not changes or self.chance.random() < 0.1:  # last, as places are those of the good file
            self.chance.choice([self.cut, self.insert, self.remove, self.dimensions, self.dimensions])()
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

    def text(self) -> None:
        """A string value that is another's, or has another byte: a token that is there twice, an unknown kind."""
        (start, end), (other, stop) = self.chance.choices(self.anatomy.texts, k=2)
        if end - start == stop - other and self.chance.random() < 0.5:
            self.content[start:end] = self.anatomy.content[other:stop]
        elif end > start:
            self.content[self.chance.randrange(start, end)] = self.chance.randrange(256)

    def dimensions(self) -> None:
        """Another number of dimensions and as many sizes; what follows moves, as a good file would have it."""
        one = self.chance.choice(self.anatomy.tensors)
        sizes = [int(size.read(self.anatomy.content)) for size in one.dimensions]
        first, *rest = sizes
        more = [[*sizes, 1], [*sizes, 1, 1], [1, *sizes], [*sizes, 2], [first // 2, 2, *rest], [*sizes, 1, 1, 1]]
        fewer = [sizes[:-1], rest, [prod(sizes)], [first // 2], []]
        made = self.chance.choice(more + fewer)
        header = self.content[: self.anatomy.end]
        header[one.count.start : one.kind.start] = struct.pack(f"<I{len(made)}Q", len(made), *made)
        self.content = header + bytes(padding(len(header))) + self.content[self.anatomy.data :]

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


def run(path: Path, threads: int, specimen: Specimen) -> None:
    """Load and use a file as a generation would."""
    trained = read_model_header(path).context_length
    context = None if trained is not None and trained < specimen.context else specimen.context
    with mock.patch(
        "slipstream.runtime.native.model.vocabulary_of", lambda header: (specimen.vocabulary(header), None)
    ):
        model = load_native(path, context_length=context, max_sequences=2, max_rows=16, threads=threads)
    session = model.open_session()
    last = model.vocabulary.size - 1
    model.forward([Segment(session, [0, last, last // 2, 0, last])], hidden=[0])
    session.commit(range(5))
    rows = model.forward([Segment(session, [0, 1 % (last + 1), last], [-1, -1, 0])])[0]
    rows.logits(2).max()  # may be NaN: numbers are the author's, if they are in their places
    session.commit([0, 2])
    session.fork(3).close()
    if isinstance(model.vocabulary, Tokenizer):
        read_text(model, session)
    if specimen.context == LONG_CONTEXT:
        read_on(model, session)
    model.close()


def read_text(model: NativeModel, session: NativeSession) -> None:
    """Text to tokens and back."""
    vocabulary = model.vocabulary
    tokens = vocabulary.tokenize("The <s>thin\n\n ring<|im_end|>, ändert 7", add_bos=True, parse_special=True)
    model.forward([Segment(session, [*tokens[:15], 0])])
    for token in range(vocabulary.size):
        vocabulary.token_bytes(token)
        vocabulary.token_name(token)
    vocabulary.detokenize([*tokens, *vocabulary.end_tokens])


def read_on(model: NativeModel, session: NativeSession) -> None:
    """Two sessions read 300 tokens each, and take some back."""
    sessions = [session, session.fork(session.length)]
    for step in range(40):
        model.forward([Segment(one, [step % model.vocabulary.size] * 8, outputs=0) for one in sessions])
        for one in sessions:
            one.commit(range(8 - step % 2))
    for one in sessions:
        one.truncate(one.reachable(one.length - 50))
        model.forward([Segment(one, [0] * 16, outputs=1)])
        one.truncate(one.reachable(5))


@dataclass
class Outcome:
    """What became of the files."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    """Seconds, and the file's number."""

    @property
    def accepted(self) -> float:
        """Share of the files that ran."""
        return self.counts["accepted"] / max(self.counts.total() + len(self.failures), 1)


def fuzz(files: int, seed: int, directory: Path) -> Outcome:
    """Damage and run so many files."""
    usual, tokenized = specimens(directory), tokenized_specimens(directory)
    outcome = Outcome()
    with _strict():
        for number in range(files):
            chance = random.Random(f"{seed} {number}")  # so that one file can be made again
            specimen = chance.choice(tokenized if number % TOKENIZED == 0 else usual)
            contents = [file.content for file in specimen.files]
            damaged = chance.randrange(len(contents))
            contents[damaged] = Damage(specimen.files[damaged], chance).result()
            path = specimen.written(directory, contents)
            start = time.perf_counter()
            _judge(path, 2 if number % 16 == 0 else 1, specimen, number, outcome)
            outcome.slowest = max(outcome.slowest, (time.perf_counter() - start, number))
    return outcome


def _judge(path: Path, threads: int, specimen: Specimen, number: int, outcome: Outcome) -> None:
    try:
        run(path, threads, specimen)
    except UsageError as error:
        outcome.failures.append(f"file {number}: no file is the user's mistake: {error}")
    except SlipstreamError as error:
        if "\n" in str(error) or not str(error).endswith("."):
            outcome.failures.append(f"file {number}: not a sentence: {error}")
        else:
            outcome.counts[type(error).__name__] += 1
    except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
        outcome.failures.append(f"file {number}: {traceback.format_exc()}")
    else:
        outcome.counts["accepted"] += 1


@contextmanager
def _strict() -> Iterator[None]:
    """Warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line: 0 if every file was refused properly or ran, and enough of them ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000, help="how many damaged files (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other files (%(default)s)")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="slipstream-fuzz-"))
    print(f"{options.files} files; after a crash see {directory}/damaged*.gguf", flush=True)  # noqa: T201
    start = time.perf_counter()
    outcome = fuzz(options.files, options.seed, directory)
    for name, count in outcome.counts.most_common():
        print(f"{count:7} {name}")  # noqa: T201
    for failure in outcome.failures[:20]:
        print(failure)  # noqa: T201
    seconds, (slowest, number) = time.perf_counter() - start, outcome.slowest
    print(f"{len(outcome.failures)} failures, {seconds:.0f} s, slowest {slowest:.1f} s (file {number})")  # noqa: T201
    if few := outcome.accepted < LEAST_ACCEPTED:
        print(f"Only {outcome.accepted:.1%} of the files ran; {LEAST_ACCEPTED:.0%} must.")  # noqa: T201
    for leftover in directory.iterdir():
        leftover.unlink()
    directory.rmdir()
    return 1 if outcome.failures or few else 0


if __name__ == "__main__":
    sys.exit(main())
