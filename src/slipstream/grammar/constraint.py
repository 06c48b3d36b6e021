"""One sequence's state in a grammar."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.protocols import Logits
from slipstream.errors import GrammarError
from slipstream.grammar.library import library, limits, one_line
from slipstream.grammar.vocabulary import GrammarVocabulary


class GrammarConstraint:
    """Implements `core.protocols.Constraint`. Made by `Grammar.constraint`.

    The library keeps an error for ever once it has met one (a limit of its work, mostly). What a draft met must not
    count against the text, so a rollback past an error begins anew and repeats the tokens before it.

    source: a grammar in the library's own form
    reason: why it cannot go on, in the library's words; "" while it can
    """

    def __init__(self, source: str, vocabulary: GrammarVocabulary) -> None:
        self._source = source
        self._vocabulary = vocabulary
        self._end_tokens = vocabulary.end_tokens
        self._bits = np.zeros((vocabulary.size + 31) // 32, np.uint32)
        self._tokens: list[int] = []
        self._failed_at: int | None = None
        """Tokens that the failure came after, the one that caused it included."""
        self.reason = ""
        self._matcher = self._begin()
        self._try_to_begin()

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        return self._failed_at is None and bool(self._matcher.is_accepting())

    def mask(self, row: Logits) -> None:
        if self._ended:
            row.fill(-np.inf)
            return
        allowed = None if self._failed_at is not None else self._allowed()
        if allowed is None or self._failed_at is not None:
            raise GrammarError(
                f"The text could not go on by its grammar ({self.reason}); simplify the grammar or the schema."
            )
        np.copyto(row, -np.inf, where=allowed == 0)

    def advance(self, token: int) -> bool:
        if self._ended:
            return False
        if token in self._end_tokens:  # the library would not take one where nothing else may come
            taken = self.complete
        else:
            taken = self._failed_at is None and self._matcher.try_consume_tokens([token]) == 1
            self._note_failure(len(self._tokens) + 1)
        if taken:
            self._tokens.append(token)
        return taken

    def rollback(self, count: int) -> None:
        kept = len(self._tokens) - count
        consumed = count - (self._ended and count > 0)  # an end token, the last if any, was never the library's
        del self._tokens[kept:]
        if self._failed_at is None:
            self._matcher.rollback(consumed)
        elif self._failed_at > kept:
            self._restart()

    def forced(self) -> Sequence[int]:
        if self._ended or self._failed_at is not None:
            return []
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():  # a look ahead, which plain decoding does not take
            self._restart()
            return []
        return tokens

    def fork(self) -> "GrammarConstraint":
        other = object.__new__(GrammarConstraint)
        other.__dict__.update(self.__dict__)
        other._tokens, other._bits = list(self._tokens), self._bits.copy()
        other._matcher = self._matcher.deep_copy()
        return other

    def __deepcopy__(self, memo: object) -> "GrammarConstraint":
        return self.fork()

    @property
    def _ended(self) -> bool:
        return bool(self._tokens) and self._tokens[-1] in self._end_tokens

    def _begin(self) -> Any:
        return library().LLMatcher(self._vocabulary.tokenizer, self._source, log_level=0, limits=limits())

    def _try_to_begin(self) -> None:
        """Meet what no text can fulfil: tokens that the model lacks, no beginning, no end to what is forced."""
        forced = self._matcher.compute_ff_tokens()
        if self._matcher.try_consume_tokens(forced) and not self._matcher.is_error():
            self._matcher.rollback(len(forced))
        self._note_failure(0)
        self._allowed()

    def _restart(self) -> None:
        self._failed_at, self.reason = None, ""
        self._matcher = self._begin()
        self._matcher.try_consume_tokens([token for token in self._tokens if token not in self._end_tokens])
        self._note_failure(len(self._tokens))

    def _allowed(self) -> NDArray[np.uint8]:
        """[vocab] 1 for tokens that may come next, end tokens among them."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._note_failure(len(self._tokens))
        return np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._vocabulary.size)

    def _note_failure(self, after: int) -> None:
        if self._failed_at is None and self._matcher.is_error():
            self._failed_at, self.reason = after, one_line(self._matcher.get_error())
