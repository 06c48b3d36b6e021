"""The vocabulary of a loaded model: text to token ids and back."""

import ctypes
from functools import cached_property
from typing import Any

import numpy as np

from slipstream.errors import RuntimeUnavailableError, UsageError
from slipstream.runtime.llamacpp.binding import library
from slipstream.tokenizer import Detokenizer, encoded

NO_VOCABULARY = 0
"""`LLAMA_VOCAB_TYPE_NONE`."""

_LONGEST_PIECE = 256


class LlamaCppVocabulary(Detokenizer):
    """Implements `core.protocols.Vocabulary` with the library's tokenizer. Lives as long as its model."""

    def __init__(self, pointer: Any) -> None:
        self._llama = library()
        self._address: Any = pointer
        self.size: int = self._llama.llama_vocab_n_tokens(pointer)
        self._bytes: list[bytes | None] = [None] * self.size

    @property
    def _pointer(self) -> Any:
        if self._address is None:
            raise RuntimeUnavailableError("The model of this vocabulary has been closed; load it again.")
        return self._address

    def close(self) -> None:
        """The model is gone; its vocabulary went with it."""
        self._address = None

    @cached_property
    def bos(self) -> int | None:
        """The token a fresh text begins with, None where the model's file does not ask for one."""
        if not self._llama.llama_vocab_get_add_bos(self._pointer):
            return None
        token = int(self._llama.llama_vocab_bos(self._pointer))
        return token if token >= 0 else None

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Every token that the library takes for the end of a generation (EOS, end of turn, ...)."""
        is_end, vocabulary = self._llama.llama_vocab_is_eog, self._pointer
        return frozenset(token for token in range(self.size) if is_end(vocabulary, token))

    @cached_property
    def adds_space(self) -> bool:
        """Whether a text's first word gets a space in front (most SentencePiece vocabularies)."""
        tokens = self.tokenize("a", add_bos=False, parse_special=False)
        return b"".join(map(self.token_bytes, tokens)).startswith(b" ")

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        """Ids of `text`, the vocabulary's BOS in front if `add_bos` and it has one.

        Raises UsageError for text that is not valid Unicode (half a surrogate pair).
        """
        start = [self.bos] if add_bos and self.bos is not None else []
        return start + self._tokens(encoded(text), parse_special)

    def _tokens(self, data: bytes, parse_special: bool) -> list[int]:
        if not data:
            return []
        room = len(data) + 8  # a token is at least a byte; some vocabularies add a space or two
        while True:
            buffer = np.empty(room, np.int32)
            pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            count = self._llama.llama_tokenize(self._pointer, data, len(data), pointer, room, False, parse_special)
            if count >= 0:
                tokens: list[int] = buffer[:count].tolist()
                return tokens
            if -count <= room:
                raise UsageError(f"The text is too long to tokenise ({len(data)} bytes); shorten it.")
            room = -count

    def token_bytes(self, token: int) -> bytes:
        """The bytes the token stands for, perhaps part of a UTF-8 character; empty for control tokens."""
        known = self._bytes[token]
        if known is None:
            known = self._bytes[token] = self._token_bytes(token)
        return known

    def _token_bytes(self, token: int) -> bytes:
        """Ask the library, which answers with minus the size it needs where the buffer is too small."""
        to_piece, size = self._llama.llama_token_to_piece, _LONGEST_PIECE
        piece = ctypes.create_string_buffer(size)  # of its own, because several threads may ask
        # lstrip 0 keeps leading spaces: inside a text they are part of it (`detokenize` says where not).
        count = to_piece(self._pointer, token, piece, size, 0, False)
        if count < 0:
            piece = ctypes.create_string_buffer(-count)
            count = to_piece(self._pointer, token, piece, -count, 0, False)
        return piece.raw[:count]

    def token_name(self, token: int) -> str:
        """The token as the vocabulary spells it, control tokens included (`<|im_end|>`)."""
        spelling: bytes | None = self._llama.llama_vocab_get_text(self._pointer, token)
        return (spelling or b"").decode(errors="replace")
