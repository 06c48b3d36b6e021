"""Write tiny GGUF files, byte by byte and independently of our reader, so that tests need no weights."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
LAYOUT = dict(zip(range(13), "BbHhIif?..Qqd", strict=True))


class Typed(NamedTuple):
    """A metadata value with an explicit GGUF type; `element` is the type of an array's elements."""

    value: Any
    kind: int
    element: int = U32


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> Typed:
    """The type llama.cpp's converter would choose."""
    match value:
        case Typed():
            return value
        case bool():
            return Typed(value, BOOL)
        case int():
            return Typed(value, U32)
        case float():
            return Typed(value, F32)
        case str() | bytes():
            return Typed(value, STRING)
        case _:
            return Typed(value, ARRAY, typed(value[0]).kind)


def payload(value: Any, kind: int) -> bytes:
    return string(value) if kind == STRING else struct.pack("<" + LAYOUT[kind], value)


def entry(key: str, value: Any) -> bytes:
    value, kind, element = typed(value)
    head = string(key) + struct.pack("<I", kind)
    if kind != ARRAY:
        return head + payload(value, kind)
    return head + struct.pack("<IQ", element, len(value)) + b"".join(payload(item, element) for item in value)


def tensor(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dimensions + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Sequence[tuple[str, Sequence[int], int, int]] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file; `tensors` are (name, shape, type number, offset in `data`)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(entry(key, value) for key, value in metadata.items())
    head += b"".join(tensor(*info) for info in tensors)
    return head + bytes(-len(head) % alignment) + data


TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "ab", "é", "x" * 300]
MODEL_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.license": "apache-2.0",
    "general.file_type": 7,
    "llama.context_length": 64,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": Typed([2, 3, 3, 1, 1, 1, 1, 1], ARRAY, I32),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
}
"""A complete model's metadata; tests change what they are about."""

MODEL_TENSORS = [("token_embd.weight", (32, 8), 8, 0), ("output_norm.weight", (32,), 0, 288)]
MODEL_DATA = bytes(288 + 128)


def model_bytes(**changes: Any) -> bytes:
    """A complete tiny model; `general__name="x"` sets general.name, None leaves a key out."""
    renamed = {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {key: value for key, value in (MODEL_METADATA | renamed).items() if value is not None}
    return gguf_bytes(metadata, MODEL_TENSORS, MODEL_DATA)


def write_model(path: Path, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model_bytes(**changes))
    return path
