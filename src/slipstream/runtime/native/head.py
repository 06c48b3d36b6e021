"""A head on the native runtime: one layer that goes on from the hidden states of a target, in the same memory."""

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.core.protocols import Capabilities, Continuation, Model, Segment, Vocabulary
from slipstream.errors import ModelFileError, UnsupportedModelError
from slipstream.models.gguf import GgufHeader
from slipstream.models.heads import EMBEDDING, HeadFile
from slipstream.runtime.checks import check_sizes
from slipstream.runtime.native.loading import Memory, Plan, Sizes, memory_needed, plan_head
from slipstream.runtime.native.model import NativeModel, NativeRows
from slipstream.runtime.native.modelfile import NotSupported
from slipstream.runtime.threads import default_threads

MAX_HEAD_ROWS = 256
"""Rows in one forward at most: hidden states of three layers lie side by side in its buffers."""
LAYER = 0
"""The only one; what comes out of it is the state from which the next token's row goes on."""


def load_native_head(
    head: HeadFile,
    target: Model,
    target_file: GgufHeader,
    *,
    max_sequences: int = 1,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> "NativeHead":
    """Load a head for a loaded target, whose context it gets.

    target_file:   the target's header
    max_sequences: sessions that can be open at once

    Raises UnsupportedModelError for a target on another runtime and for a head of another target,
    VocabularyMismatchError, ModelFileError for a damaged one, RuntimeUnavailableError if memory is missing.
    """
    head.require_target(target_file)
    if not isinstance(target, NativeModel):
        raise UnsupportedModelError(
            f"{head.header.path} needs hidden states of {target.name}, which only the native runtime gives; "
            "use another draft."
        )
    check_sizes(None, max_sequences, threads, MAX_HEAD_ROWS)
    sizes = Sizes(max_sequences, target.context_length, MAX_HEAD_ROWS, threads or default_threads())
    return NativeHead(head, _planned(head, target_file), sizes, target, progress)


def head_memory(
    head: HeadFile, target_file: GgufHeader, *, context_length: int, threads: int, max_sequences: int = 1
) -> Memory:
    """What `load_native_head` would take. Raises UnsupportedModelError."""
    return memory_needed(_planned(head, target_file), Sizes(max_sequences, context_length, MAX_HEAD_ROWS, threads))


def _planned(head: HeadFile, target_file: GgufHeader) -> Plan:
    try:
        return plan_head(head, target_file)
    except NotSupported as reason:
        raise UnsupportedModelError(
            f"The native runtime cannot run {head.header.path}: {reason}; use another draft."
        ) from None


class NativeHead(NativeModel):
    """Implements `core.protocols.HeadModel`. Its sessions count rows, not tokens of a text."""

    capabilities = Capabilities(bit_exact_rows=True, hidden_states=True)

    def __init__(
        self,
        head: HeadFile,
        planned: Plan,
        sizes: Sizes,
        target: NativeModel,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._target = target
        self._states = planned.fused
        super().__init__(head.header, planned, sizes, progress)
        self.hidden_layers = head.hidden_layers
        self.draft_tokens = head.draft_tokens
        self._table: NativeModel = self if head.has(EMBEDDING) else target
        try:
            self._try(head)
        except BaseException:
            self.close()
            raise

    def forward(
        self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None, hidden: Sequence[int] = ()
    ) -> list[NativeRows]:
        """Rows that go on from zeros, for measuring what a forward costs: several read a target's, one its own."""
        continuations = []
        for one in batch:
            own = len(one.tokens) == 1
            states = np.zeros((len(one.tokens), self.width if own else self._states), np.float32)
            continuations.append(Continuation(one.session, one.tokens, states, own))
        return self.go_on(continuations, [one.outputs for one in batch])

    def go_on(self, batch: Sequence[Continuation], outputs: Sequence[int | None] | None = None) -> list[NativeRows]:
        """One pass over all; `Rows.hidden(row, 0)` is the state from which the next row goes on.

        outputs: as in `Segment`, for each; None is one row of each, its last
        """
        fused: list[int] = []
        first = 0
        for one in batch:
            fused += [] if one.own else range(first, first + len(one.tokens))
            first += len(one.tokens)
        states = [one.states if one.own else np.zeros((len(one.tokens), self.width), np.float32) for one in batch]
        hidden = [one.states for one in batch if not one.own] or [np.zeros((0, self._states), np.float32)]
        embeddings = self._table.embeddings([token for one in batch for token in one.tokens])
        segments = [
            Segment(one.session, one.tokens, outputs=count)
            for one, count in zip(batch, outputs or [1] * len(batch), strict=True)
        ]
        beginnings = embeddings, np.concatenate(states), np.concatenate(hidden), fused
        return self._compute(segments, None, (LAYER,), beginnings)

    def _vocabulary_of(self, header: GgufHeader) -> tuple[Vocabulary, str | None]:
        """The target's."""
        return self._target.vocabulary, None

    def _check_vocabulary(self, header: GgufHeader, planned: Plan) -> None:
        """`HeadFile` has been checked: it may have logits for some tokens only."""

    def _try(self, head: HeadFile) -> None:
        """Raise ModelFileError if numbers among the weights are none: they spoil every row."""
        session = self.open_session()
        numbers = np.random.default_rng(0).standard_normal((2, self._states), np.float32)
        rows = self.go_on([Continuation(session, [0, self.vocabulary.size - 1], numbers, own=False)])[0]
        finite = np.isfinite(rows.logits(1)).all() and np.isfinite(rows.hidden(1, LAYER)).all()
        session.close()
        if not finite:
            raise ModelFileError(
                f"{head.header.path} is no usable head: its weights are not all numbers (infinite, or NaN) and must "
                "be; download or convert it again."
            )
