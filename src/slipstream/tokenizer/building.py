"""From a specification to a tokenizer of the `tokenizers` library."""

import re
from collections.abc import Mapping

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as InSequence

from slipstream.models.vocabulary import BYTE
from slipstream.tokenizer.alphabet import ALPHABET, INDISPENSABLE, UTF8_BYTES, byte_name
from slipstream.tokenizer.cache import kept
from slipstream.tokenizer.merges import merges_of
from slipstream.tokenizer.recipe import Recipe
from slipstream.tokenizer.specification import Specification

_BYTE_NAME = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def build(specification: Specification) -> Tokenizer:
    """The tokenizer, which knows nothing of special tokens and of spaces that stand for others (`Tokenizer` does).

    Its ids from the vocabulary's size on are characters that are no tokens (`Recipe.characters`).

    Raises ModelFileError for a vocabulary that cannot be right, UnsupportedModelError where its meaning is not clear.
    """
    texts = specification.texts()
    vocabulary = {text: token for token, text in enumerate(texts)}
    if len(vocabulary) < len(texts):
        raise specification.damaged("its vocabulary has a token twice")
    recipe = kept(specification.key(), len(texts), lambda: make_recipe(specification, vocabulary))
    texts += recipe.characters
    vocabulary |= {text: len(vocabulary) + place for place, text in enumerate(recipe.characters)}
    left, right = (map(texts.__getitem__, side) for side in recipe.merges.T.tolist())
    merges = list(zip(left, right, strict=True))  # a comprehension over pairs takes four times as long
    pre = specification.pre
    byte_level = specification.byte_level
    model = BPE(vocabulary, merges, byte_fallback=not byte_level, ignore_merges=pre is not None and pre.ignore_merges)
    tokenizer = Tokenizer(model)
    if pre is not None:
        steps: list[PreTokenizer] = [Split(Regex(it), "isolated") for it in pre.expressions()]
        if byte_level:
            steps.append(ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = InSequence(steps)
    return tokenizer


def make_recipe(specification: Specification, vocabulary: Mapping[str, int]) -> Recipe:
    """Check the vocabulary and work out its merges, which takes seconds for a large one.

    vocabulary: ids by spelling
    """
    _require_bytes(specification, vocabulary)
    merges = merges_of(specification, vocabulary)
    ids = dict(vocabulary)
    if specification.byte_level:
        for byte in UTF8_BYTES:
            ids.setdefault(ALPHABET[byte], len(ids))
    pairs = [[ids.setdefault(part, len(ids)) for part in merge] for merge in merges]
    return Recipe.of(list(ids)[len(vocabulary) :], pairs)


def _require_bytes(specification: Specification, vocabulary: Mapping[str, int]) -> None:
    """Every text must have tokens, or nearly, and a token that is a byte must say which."""
    for byte in INDISPENSABLE if specification.byte_level else UTF8_BYTES:
        if (ALPHABET[byte] if specification.byte_level else byte_name(byte)) not in vocabulary:
            raise specification.damaged(f"it has no token for the byte {byte_name(byte)}")
    for text, kind in zip(vocabulary, specification.types.tolist(), strict=True):
        if kind == BYTE and not _BYTE_NAME.fullmatch(text):
            raise specification.damaged(f"the token {text[:80]!r} is called a byte")
