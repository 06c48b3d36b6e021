"""A model's vocabulary as the grammar library wants it: made once per model, a fraction of a second."""

from collections.abc import Sequence

from slipstream.core.protocols import Vocabulary
from slipstream.errors import UnsupportedModelError
from slipstream.grammar.library import library


class GrammarVocabulary:
    """All tokens as bytes in a prefix tree, and the tokenizer, which spells what a grammar forces.

    Control tokens (those without bytes) and end tokens never match text. A grammar names them in angle brackets:
    `<|python_tag|>` as it is, and `[TOOL_CALLS]` as `<TOOL_CALLS>`.

    Raises UnsupportedModelError for a vocabulary without end tokens: a text that is complete could not end.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.end_tokens:
            raise UnsupportedModelError("This model has no end token, so it cannot be held to a grammar.")
        self.size = vocabulary.size
        self.end_tokens = vocabulary.end_tokens
        self.tokenizer = library().LLTokenizer(_Wrapper(vocabulary), eos_token=sorted(vocabulary.end_tokens))


class _Wrapper:
    """What the library's tokenizer asks of ours; it looks for these names.

    Called with text, it gives the text's tokens as they are inside a longer one.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        spelt = [vocabulary.token_bytes(token) for token in range(vocabulary.size)]
        self.eos_token_id = min(vocabulary.end_tokens)
        self.special_token_ids = [token for token, text in enumerate(spelt) if not text]
        self.special_token_ids += [token for token in vocabulary.end_tokens if spelt[token]]
        for token in self.special_token_ids:
            spelt[token] = special_name(vocabulary.token_name(token) or f"|{token}|").encode()
        self.tokens = spelt
        self._tokenize = vocabulary.tokenize
        self._newline = self._tokenize("\n", add_bos=False, parse_special=False)

    def __call__(self, text: str) -> Sequence[int]:
        # behind a line break, because some vocabularies put a space before a text's first word
        tokens = self._tokenize("\n" + text, add_bos=False, parse_special=False)
        if tokens[: len(self._newline)] == self._newline:
            return tokens[len(self._newline) :]
        return self._tokenize(text, add_bos=False, parse_special=False)


def special_name(name: str) -> str:
    """How a grammar names a control token: `<|im_end|>` as it is, `[TOOL_CALLS]` as `<TOOL_CALLS>`."""
    return name if name.startswith("<") and name.endswith(">") else f"<{name.strip('[]')}>"
