"""A model on the native runtime: any number of sessions in one forward, trees, bit-exact rows."""

import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.core.protocols import Capabilities, Segment, Vocabulary
from slipstream.errors import ContextLimitError, ModelFileError, RuntimeUnavailableError, UnsupportedModelError
from slipstream.models.gguf import GgufHeader, read_model_header
from slipstream.runtime.checks import check_sizes, context_for
from slipstream.runtime.native import _native
from slipstream.runtime.native.instruction_sets import chosen_instruction_set, slow_build
from slipstream.runtime.native.loading import (
    Memory,
    Plan,
    Sizes,
    cached_bytes,
    check_memory,
    load,
    memory_needed,
    plan,
)
from slipstream.runtime.native.modelfile import NotSupported
from slipstream.runtime.native.session import NativeSession
from slipstream.runtime.native.vocabulary import vocabulary_of
from slipstream.runtime.rows import TableRows
from slipstream.runtime.threads import default_threads

MAX_ROWS = 512
"""Rows in one forward at most, unless asked otherwise."""


def load_native(
    path: str | os.PathLike[str],
    *,
    context_length: int | None = None,
    max_sequences: int = 1,
    threads: int | None = None,
    max_rows: int = MAX_ROWS,
    progress: Callable[[float], None] | None = None,
) -> "NativeModel":
    """Load a GGUF file with the native runtime.

    context_length: tokens each session can hold; None is the trained length, at most 4096
    max_sequences:  sessions that can be open at once
    threads:        None is the physical cores this process may use; the number changes no bit of any result
    max_rows:       most rows in one forward
    progress:       called on this thread with the fraction of the weights that is in place

    `SLIPSTREAM_ISA` in the environment forces an instruction set.

    Raises UsageError for impossible values, UnsupportedModelError for files that are for other runtimes,
    ModelFileError for damaged ones, RuntimeUnavailableError if memory is missing.
    """
    check_sizes(context_length, max_sequences, threads, max_rows)
    header = read_model_header(path)
    try:
        planned = plan(header)
    except NotSupported as reason:
        raise UnsupportedModelError(
            f"The native runtime cannot run {header.path.name}: {reason}; use the llamacpp runtime."
        ) from None
    sizes = Sizes(max_sequences, context_for(header, context_length), max_rows, threads or default_threads())
    return NativeModel(header, planned, sizes, progress)


def memory_of(
    header: GgufHeader, *, context_length: int, threads: int, max_sequences: int = 1, max_rows: int = MAX_ROWS
) -> Memory:
    """What `load_native` would take with these arguments. Raises NotSupported, which `unsupported` says before."""
    return memory_needed(plan(header), Sizes(max_sequences, context_length, max_rows, threads))


def read_behind(header: GgufHeader, tokens: int) -> int:
    """Bytes of the KV cache that a token behind so many others reads. Raises NotSupported."""
    return cached_bytes(plan(header), tokens)


class NativeModel:
    """Implements `core.protocols.Model`.

    Not thread-safe: one thread at a time may use a model and its sessions (forwards compute on several
    threads, and other Python threads run meanwhile). `memory_parts` has the bytes of `weights`,
    `kv_cache` and `buffers`. It survives `os.fork`: the child makes threads of its own.
    """

    runtime = "native"
    capabilities = Capabilities(trees=True, bit_exact_rows=True, hidden_states=True, layer_subsets=True)

    def __init__(
        self, header: GgufHeader, planned: Plan, sizes: Sizes, progress: Callable[[float], None] | None = None
    ) -> None:
        self.name = header.path.name
        self.instruction_set = chosen_instruction_set()
        self.context_length = sizes.context
        self.max_rows = sizes.rows
        self.threads = sizes.threads
        self.layer_count = len(planned.decoder.layers)
        self.width = planned.decoder.width
        self.generation = 0
        self.is_open = False
        self._sequences = sizes.sessions
        needed = memory_needed(planned, sizes)
        check_memory(self.name, needed, sizes)
        self.vocabulary, notice = self._vocabulary_of(header)
        self.notice = " ".join(filter(None, (notice, slow_build()))) or None
        longest = self.context_length
        self.kv_bytes_per_token = cached_bytes(planned, longest) - cached_bytes(planned, longest - 1)
        """What one more token of context takes; layers with a window that is full already take none."""
        self._check_vocabulary(header, planned)
        program = load(header, planned, sizes.threads, progress)
        self.native = self._make(program, sizes)
        self.memory_parts = needed._asdict()
        self.is_open = True

    def open_session(self) -> NativeSession:
        """An empty session. Raises RuntimeUnavailableError when all are in use."""
        self._require_open()
        return self.adopt(self.native.open())

    def adopt(self, number: int) -> NativeSession:
        """A handle for a session of the C++ side, which gives -1 when all are in use."""
        if number < 0:
            raise RuntimeUnavailableError(
                f"All {self._sequences} session(s) of {self.name} are in use; close one, "
                "or load the model with more sequences."
            )
        return NativeSession(self, number)

    def forward(
        self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None, hidden: Sequence[int] = ()
    ) -> list["NativeRows"]:
        """One pass over all segments, one `Rows` each. Sessions do not change until they commit.

        layers: run these only, ascending; their rows can be held, never committed. None is all of them
        hidden: layers whose output `Rows.hidden` gives afterwards

        Raises ContextLimitError if a session's context is full; all sessions are then as they were.
        Ctrl-C ends it within a layer or so, with KeyboardInterrupt.
        """
        assert layers is None or layers, "a forward needs layers"
        return self._compute(batch, layers, hidden)

    def _compute(
        self,
        batch: Sequence[Segment],
        layers: Sequence[int] | None,
        hidden: Sequence[int],
        beginnings: "_native.Beginnings | None" = None,
    ) -> list["NativeRows"]:
        """`forward`, with what rows begin with where the program fuses hidden states."""
        self._require_open()
        self.generation += 1
        segments, places = [], []
        row = output = 0
        for session, tokens, parents, outputs in batch:
            assert isinstance(session, NativeSession), "a session of another runtime"
            assert session.is_open, "the session is closed"
            assert session.belongs_to(self), "a session of another model"
            count = len(tokens)
            outputs = count if outputs is None else outputs
            segments.append((session.number, list(tokens), [] if parents is None else list(parents), outputs))
            places.append((row, output - (count - outputs), count - outputs, outputs))
            row, output = row + count, output + outputs
            used = session.length if layers is None else self.native.used(session.number)
            if used + count > self.context_length:
                raise self._context_full(used, count)
        assert 0 < row <= self.max_rows, f"{row} rows in a forward of at most {self.max_rows}"
        self.native.forward(segments, [] if layers is None else layers, hidden, beginnings)
        table = self.native.logits()
        return [NativeRows(self, table, shift, first, count, start) for start, shift, first, count in places]

    def embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[n, width] rows of the embedding table, as they are in the file."""
        self._require_open()
        return self.native.embeddings(tokens)

    def memory(self) -> int:
        """Bytes: weights, KV cache and buffers, which grow where more rows give logits than was expected."""
        if self.is_open:
            self.memory_parts["buffers"] = self.native.buffer_bytes()
        return sum(self.memory_parts.values())

    def profile(self) -> dict[str, float]:
        """Seconds of the last forward by stage, as its calling thread saw them."""
        self._require_open()
        return self.native.profile()

    def close(self) -> None:
        """Free everything; closing twice is harmless. Views of logits keep their memory alive."""
        if self.is_open:
            self.is_open = False
            self.generation += 1
            del self.native

    def _make(self, program: _native.Program, sizes: Sizes) -> _native.Model:
        try:
            return _native.Model(
                program, self.instruction_set, sizes.threads, sizes.sessions, sizes.context, sizes.rows
            )
        except MemoryError:
            raise RuntimeUnavailableError(
                f"There is not enough memory for the KV cache of {sizes.sessions} sequence(s) of {sizes.context} "
                f"tokens of {self.name}; choose a shorter context or fewer sequences."
            ) from None

    def _vocabulary_of(self, header: GgufHeader) -> tuple[Vocabulary, str | None]:
        """The file's, and a sentence for people if there is something to say."""
        return vocabulary_of(header)

    def _check_vocabulary(self, header: GgufHeader, planned: Plan) -> None:
        if planned.vocabulary != self.vocabulary.size:
            raise ModelFileError(
                f"{header.path} is damaged (a vocabulary of {self.vocabulary.size} tokens and logits of "
                f"{planned.vocabulary}); download or convert it again."
            )

    def _context_full(self, used: int, count: int) -> ContextLimitError:
        return ContextLimitError(
            f"The context is full: it holds {self.context_length} tokens, {used} are in use "
            f"and {count} more are needed; shorten the text or load the model with a longer context."
        )

    def _require_open(self) -> None:
        if not self.is_open:
            raise RuntimeUnavailableError(f"{self.name} has been closed; load it again.")


class NativeRows(TableRows):
    """Rows with hidden states. `start` is the segment's row 0 among all rows of the forward."""

    __slots__ = ("_native", "_start")

    def __init__(
        self, model: NativeModel, table: NDArray[np.float32], shift: int, first: int, count: int, start: int
    ) -> None:
        super().__init__(model, table, shift, first, count)
        self._native = model.native
        self._start = start

    def hidden(self, row: int, layer: int) -> NDArray[np.float32]:
        """[width] float32: the residual stream after `layer`, which the forward must have been asked for."""
        self.require_valid()
        assert 0 <= row < self._stop, f"no row {row} among the {self._stop} of this segment"
        view: NDArray[np.float32] = self._native.hidden_state(layer)[self._start + row]
        return view
