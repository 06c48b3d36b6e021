"""GPT-2's alphabet: each byte has a printable character, and byte-level tokens are spelled with them."""

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTABLE]

ALPHABET = "".join(chr(byte if byte in _PRINTABLE else 256 + _HIDDEN.index(byte)) for byte in range(256))
"""The character of each byte; the space's is Ġ."""
_BYTES = {letter: bytes([byte]) for byte, letter in enumerate(ALPHABET)}

UTF8_BYTES = (*range(0xC0), *range(0xC2, 0xF5))
"""Bytes that occur in UTF-8."""
INDISPENSABLE = (0x0A, *range(0x20, 0x7F))
"""Bytes that every byte-level vocabulary has; many lack control characters, or the first bytes of rare ones."""


def decoded(spelling: str) -> bytes:
    """The bytes of a token. A character of no byte comes out as in llama.cpp: named, in brackets."""
    return b"".join(_BYTES.get(letter) or _unknown(letter, spelling) for letter in spelling)


def _unknown(letter: str, spelling: str) -> bytes:
    return f"[UNK_BYTE_0x{letter.encode().hex()}{spelling}]".encode()


def byte_name(byte: int) -> str:
    """How vocabularies that are not byte-level spell the token of a byte: `<0x0A>`."""
    return f"<0x{byte:02X}>"
