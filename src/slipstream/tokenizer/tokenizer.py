"""Text to tokens and back, from what the model's file says."""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from slipstream.errors import UsageError
from slipstream.models.gguf import GgufHeader
from slipstream.models.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from slipstream.tokenizer.alphabet import ALPHABET, byte_name, decoded
from slipstream.tokenizer.merges import BLANK
from slipstream.tokenizer.roles import roles
from slipstream.tokenizer.special import Fragment, SpecialTokens
from slipstream.tokenizer.specification import Specification, empty_name
from slipstream.tokenizer.text import Detokenizer, encoded

if TYPE_CHECKING:
    import tokenizers

LONGEST = 1 << 22
"""Characters of a text. The library gives an expression up that has tried ten million ways to match."""

SHORT = 1 << 12
"""Characters that are tokenised in so little time that other threads may wait for it."""

_NEWLINES = re.compile("(\n+)")


def load_tokenizer(header: GgufHeader) -> "Tokenizer":
    """The tokenizer of a model file. What takes long is done the first time only, and kept in Slipstream's cache.

    A draft model shares the library's part, some 15 MB, with the target whose vocabulary it has.

    Raises UnsupportedModelError for a kind that is not known, ModelFileError for a damaged one.
    """
    from slipstream.tokenizer.building import build  # loads the library, which not every program needs

    specification = Specification.from_header(header)
    key = specification.key()
    known = _LOADED.get(key)
    tokenizer = Tokenizer(header, specification, build(specification) if known is None else known._library)
    _LOADED.setdefault(key, tokenizer)
    return tokenizer


TOKEN_BYTES = 330
"""Memory that a token takes with its merges: of Gemma 3's 262,144 and of SmolLM2's 49,152 (measured 320 to 410)."""


class Tokenizer(Detokenizer):
    """Implements `core.protocols.Vocabulary`; ids and bytes are those that llama.cpp gives for the same file."""

    def __init__(self, header: GgufHeader, specification: Specification, library: "tokenizers.Tokenizer") -> None:
        self.size = len(specification.tokens)
        self.bos = specification.bos
        """The token a fresh text begins with, None where the model's file does not ask for one."""
        self._space_prefix = specification.space_prefix
        self._library = library
        self._tokens = specification.tokens
        self._byte_level = specification.byte_level
        self._newline_tokens = specification.pre is not None and specification.pre.newline_tokens
        given = roles(header, specification, self._find)
        self.end_tokens = given.end_tokens
        """Every token that ends a generation (EOS, end of turn, ...)."""
        self._attributes = given.attributes
        special = given.having(CONTROL, USER_DEFINED, UNKNOWN).tolist()
        self._special = SpecialTokens(
            {token: self.token_name(token) for token in special},
            set(given.having(CONTROL, UNKNOWN).tolist()),
            given.swallowing,
        )
        self._bytes: list[bytes | None] = [None] * self.size

    @property
    def memory(self) -> int:
        """About how many bytes it takes: a large vocabulary as much as a small model."""
        return TOKEN_BYTES * self.size

    @property
    def adds_space(self) -> bool:
        """Whether a text's first word gets a space in front (most SentencePiece vocabularies)."""
        return self._space_prefix

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        """Ids of `text`, the vocabulary's BOS in front if `add_bos` and it has one.

        Raises UsageError for text that is not valid Unicode (half a surrogate pair), or longer than any context.
        """
        if len(text) > LONGEST:
            raise UsageError(f"The text is too long to tokenise ({len(text)} characters); shorten it to {LONGEST}.")
        encoded(text)
        tokens = [self.bos] if add_bos and self.bos is not None else []
        previous: Fragment = 0  # a text's beginning is as good as a special token
        for fragment in self._special.cut(text, parse_special=parse_special):
            if isinstance(fragment, int):
                tokens.append(fragment)
            else:
                prefix = " " if self._space_prefix and isinstance(previous, int) else ""
                tokens += self._ordinary(prefix + fragment)
            previous = fragment
        return tokens

    def least_tokens(self, text: str, *, parse_special: bool) -> int:
        """A number of tokens that `text` has at least: no token stands for more bytes than the longest one."""
        fragments = self._special.cut(text, parse_special=parse_special)
        ordinary = [fragment for fragment in fragments if isinstance(fragment, str)]
        if not self._byte_level:  # a blank that is written out is one byte of a token
            ordinary = [part.replace(BLANK, " ") for part in ordinary]
        size = sum(len(part.encode(errors="replace").translate(None, self._lost)) for part in ordinary)
        return len(fragments) - len(ordinary) + -(-size // self._longest)

    @cached_property
    def _longest(self) -> int:
        """Most bytes of a text that become one token."""
        return max(len(self._token_bytes(token) or self.token_name(token).encode()) for token in range(self.size))

    @cached_property
    def _lost(self) -> bytes:
        """Bytes that are no tokens, and nothing where they stand alone."""
        letters = enumerate(ALPHABET) if self._byte_level else ()
        return bytes(byte for byte, letter in letters if self._find(letter) is None)

    def _ordinary(self, text: str) -> Iterator[int]:
        """Tokens of a text without special tokens."""
        if not self._byte_level:
            text = text.replace(" ", BLANK)
        if not self._newline_tokens:
            return self._merged(text)
        return (token for part in _NEWLINES.split(text) if part for token in self._line_or_newlines(part))

    def _line_or_newlines(self, part: str) -> Iterable[int]:
        token = self._find(part) if part.startswith("\n") else None
        return self._merged(part) if token is None else (token,)

    def _merged(self, text: str) -> Iterator[int]:
        for token in self._encoded(text):
            if token < self.size:
                yield token
            elif not self._byte_level:  # for a byte-level letter that is no token, llama.cpp, too, has nothing
                yield from self._spelled(token)

    def _encoded(self, text: str) -> list[int]:
        """The library's ids; of a long text without keeping other threads from running."""
        if len(text) <= SHORT:
            found: list[int] = self._library.encode(text, add_special_tokens=False).ids
        else:
            found = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return found

    def _spelled(self, character: int) -> Iterator[int]:
        """Tokens for the bytes of a character that is none."""
        text = self._library.id_to_token(character)
        assert text is not None
        for byte in text.encode():
            token = self._find(byte_name(byte))
            assert token is not None
            yield token

    def token_bytes(self, token: int) -> bytes:
        """The bytes the token stands for, perhaps part of a UTF-8 character; empty for control tokens."""
        known = self._bytes[token]
        if known is None:
            known = self._bytes[token] = self._token_bytes(token)
        return known

    def _token_bytes(self, token: int) -> bytes:
        name, attributes = self.token_name(token), int(self._attributes[token])
        if attributes & (1 << CONTROL | 1 << UNKNOWN):
            return b""
        if attributes & 1 << USER_DEFINED:
            return name.encode()
        if attributes & 1 << NORMAL:
            return decoded(name) if self._byte_level else name.replace(BLANK, " ").encode()
        return bytes.fromhex(name[3:5]) if attributes & 1 << BYTE else b""

    def token_name(self, token: int) -> str:
        """The token as the vocabulary spells it, control tokens included (`<|im_end|>`)."""
        return self._tokens[token].decode() or empty_name(token)

    def _find(self, spelling: str) -> int | None:
        token: int | None = self._library.token_to_id(spelling)
        return token if token is not None and token < self.size else None


_LOADED: WeakValueDictionary[str, Tokenizer] = WeakValueDictionary()
"""Tokenizers that are in use, by what they were built from."""
