"""A model on llama.cpp: several sessions, one batch, logits as views."""

import ctypes
import os
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.core.protocols import Capabilities, Segment
from slipstream.errors import ContextLimitError, RuntimeUnavailableError, UsageError
from slipstream.models.gguf import GgufHeader, read_model_header
from slipstream.runtime.llamacpp import binding, context
from slipstream.runtime.llamacpp.batch import Batch, Chain
from slipstream.runtime.llamacpp.options import Options
from slipstream.runtime.llamacpp.session import LlamaCppSession
from slipstream.runtime.llamacpp.vocabulary import LlamaCppVocabulary
from slipstream.runtime.rows import TableRows

NO_SLOT, ABORTED = 1, 2
"""Results of `llama_decode` besides 0 (good) and negative ones (failed)."""


def load_llamacpp(
    path: str | os.PathLike[str],
    *,
    context_length: int | None = None,
    max_sequences: int = 1,
    threads: int | None = None,
    batch_threads: int | None = None,
    gpu_layers: int | str = "auto",
    flash_attention: str = "auto",
    kv_type_k: str = "f16",
    kv_type_v: str = "f16",
    max_rows: int = 512,
) -> "LlamaCppModel":
    """Load a GGUF file with llama.cpp.

    context_length: tokens each session can hold; None is the trained length, at most 4096
    max_sequences:  sessions that can be open at once; each has a full context reserved
    threads:        for forwards of one row; None is the physical cores this process may use
    batch_threads:  for forwards of more rows (verification, prompts); None is `threads`
    gpu_layers:     layers on the GPU, or `all`; `auto` is all where there is a GPU and none elsewhere
    flash_attention: auto, on or off; quantised values in the cache need it
    kv_type_k, kv_type_v: f32, f16, bf16, q8_0 or q4_0
    max_rows:       most rows in one forward

    Raises UsageError for impossible values, ModelFileError and UnsupportedModelError for files that
    cannot be run, RuntimeUnavailableError if the library, memory or a device is missing.
    """
    options = Options(
        context_length=context_length,
        max_sequences=max_sequences,
        threads=threads,
        batch_threads=batch_threads,
        gpu_layers=gpu_layers,
        flash_attention=flash_attention,
        kv_type_k=kv_type_k,
        kv_type_v=kv_type_v,
        max_rows=max_rows,
    )
    header = read_model_header(path)
    context.check_header(header)
    return LlamaCppModel(header, options)


class LlamaCppModel:
    """Implements `core.protocols.Model`.

    Not thread-safe: one thread at a time may use a model and its sessions (the library itself computes
    on several threads, and other Python threads run meanwhile). `memory_parts` has the bytes of
    `weights`, `kv_cache` and `buffers`; `notice` is a sentence for people about what this model cannot do.
    """

    runtime = "llamacpp"

    def __init__(self, header: GgufHeader, options: Options) -> None:
        self.name = header.path.name
        self.context_length = options.context_for(header)
        self.generation = 0
        self._llama = binding.library()
        self._handles = context.load(self._llama, header, options, self.context_length)
        self.is_open = True
        self._process = os.getpid()
        self._free = weakref.finalize(self, context.free, self._llama, self._handles)
        self._get_logits = binding.address_function(self._llama, "llama_get_logits")
        self._memory = self._llama.llama_get_memory(self._handles.context)
        self.max_rows: int = self._llama.llama_n_batch(self._handles.context)
        self.vocabulary = LlamaCppVocabulary(self._llama.llama_model_get_vocab(self._handles.model))
        self.memory_parts = self._handles.memory
        positions = self.context_length + self.max_rows
        self._batch = Batch(self._llama, self.max_rows, options.max_sequences, positions)
        self._tables: dict[tuple[int, int], NDArray[np.float32]] = {}
        self._idle = list(range(options.max_sequences))[::-1]
        self._sequences = options.max_sequences
        try:
            self.capabilities = Capabilities(rollback=self._probe_rollback())
        except BaseException:
            self.close()
            raise
        self.notice = None if self.capabilities.rollback else self._explain_no_rollback()

    def open_session(self) -> LlamaCppSession:
        """An empty session. Raises RuntimeUnavailableError when all are in use."""
        self._require_open()
        if not self._idle:
            raise RuntimeUnavailableError(
                f"All {self._sequences} session(s) of {self.name} are in use; close one, "
                "or load the model with more sequences."
            )
        return LlamaCppSession(self, self._idle.pop())

    def forward(
        self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None, hidden: Sequence[int] = ()
    ) -> list[TableRows]:
        """One pass over all segments, one `Rows` each. Sessions do not change until they commit.

        Raises ContextLimitError if a session's context is full, UsageError for more than `max_rows`
        rows, RuntimeUnavailableError if the library fails; all sessions are then as they were.
        """
        self._require_open()
        assert layers is None, "the llama.cpp runtime has no layer subsets"
        assert not hidden, "the llama.cpp runtime has no hidden states"
        self._check_rows(batch)
        chains = [self._begin(segment) for segment in batch]
        assert len({chain.sequence for chain in chains}) == len(chains), "one segment for each session"
        for segment in batch:
            self._session_of(segment).computing(segment.tokens)
        self._decode(chains)
        for segment in batch:
            self._session_of(segment).computed(segment.tokens)
        return self._rows(chains)

    def memory(self) -> int:
        """Bytes: weights, KV cache and buffers."""
        return sum(self.memory_parts.values())

    def close(self) -> None:
        """Free context and weights; closing twice is harmless. Views of logits must not be used afterwards."""
        self.is_open = False
        self.generation += 1
        self._tables.clear()
        self.vocabulary.close()
        self._free()

    # What sessions need of the library's cache. --------------------------------------------------

    def keep_first(self, sequence: int, length: int) -> bool:
        """Take positions from `length` on out of the cache; False if the model cannot, and nothing changed."""
        return bool(self._llama.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def copy_sequence(self, source: int, destination: int) -> None:
        """Let an empty sequence hold what another holds."""
        self._llama.llama_memory_seq_cp(self._memory, source, destination, -1, -1)

    def replay(self, sequence: int, tokens: Sequence[int]) -> None:
        """Clear a sequence and compute these tokens again."""
        self._clear(sequence)
        for start in range(0, len(tokens), self.max_rows):
            self._decode([Chain(sequence, start, tokens[start : start + self.max_rows], 0)])

    def close_session(self, session: LlamaCppSession) -> None:
        self._clear(session.sequence)
        self._idle.append(session.sequence)

    def require_rollback(self) -> None:
        """Raise RuntimeUnavailableError if the model cannot take tokens back."""
        if not self.capabilities.rollback:
            raise RuntimeUnavailableError(f"{self.notice} Start again with an empty session instead.")

    def _clear(self, sequence: int) -> None:
        if not self._llama.llama_memory_seq_rm(self._memory, sequence, -1, -1):
            raise RuntimeUnavailableError(f"llama.cpp could not clear a sequence of {self.name}; load the model again.")

    # One forward. --------------------------------------------------------------------------------

    def _begin(self, segment: Segment) -> Chain:
        """Make the segment's session ready for its rows, which must be a chain."""
        tokens, parents = segment.tokens, segment.parents
        if parents is not None:
            assert list(parents) == list(range(-1, len(tokens) - 1)), (
                "llama.cpp computes chains only: row n's parent must be row n - 1 (see Capabilities.trees)"
            )
        session = self._session_of(segment)
        session.begin(tokens)
        outputs = len(tokens) if segment.outputs is None else min(segment.outputs, len(tokens))
        return Chain(session.sequence, session.length, tokens, outputs)

    def _session_of(self, segment: Segment) -> LlamaCppSession:
        session = segment.session
        assert isinstance(session, LlamaCppSession), "a session of another runtime"
        assert session.belongs_to(self), "a session of another model"
        return session

    def _check_rows(self, batch: Sequence[Segment]) -> None:
        rows = sum(len(segment.tokens) for segment in batch)
        if rows > self.max_rows:
            raise UsageError(
                f"{rows} rows in one forward are more than the {self.max_rows} that {self.name} was loaded for; "
                "cut the text into chunks or load the model with a larger max_rows."
            )

    def _decode(self, chains: Sequence[Chain]) -> None:
        """Compute these rows. Raises if the library does not; what its cache then holds is for sessions to settle."""
        self.generation += 1
        self._batch.fill(chains)
        if not self._batch.size:
            return
        result = self._llama.llama_decode(self._handles.context, self._batch.struct)
        if result:
            raise self._decode_error(result)

    def _decode_error(self, result: int) -> ContextLimitError | RuntimeUnavailableError:
        rows = self._batch.size
        if result == NO_SLOT:
            return ContextLimitError(
                f"The KV cache of {self.name} has no room for {rows} more tokens (it holds {self.context_length} for "
                f"each of {self._sequences} session(s)); close a session or load the model with a longer context."
            )
        if result == ABORTED:
            return RuntimeUnavailableError(f"llama.cpp stopped computing {rows} rows of {self.name}; try again.")
        return RuntimeUnavailableError(
            f"llama.cpp failed to compute {rows} rows of {self.name} (code {result}: {binding.log.reason()})."
        )

    def _rows(self, chains: Sequence[Chain]) -> list[TableRows]:
        table = self._table(self._batch.outputs)
        rows, start = [], 0
        for chain in chains:
            first = len(chain.tokens) - chain.outputs
            rows.append(TableRows(self, table, start - first, first, chain.outputs))
            start += chain.outputs
        return rows

    def _table(self, outputs: int) -> NDArray[np.float32]:
        """[outputs, vocab] float32 view of the library's logits: rows that asked for them, in batch order."""
        if not outputs:
            return np.empty((0, self.vocabulary.size), np.float32)
        # This call also waits for the device, so that a forward's time is a forward's time.
        address: int = self._get_logits(self._handles.context)
        table = self._tables.get((address, outputs))
        if table is None:
            shape = (outputs, self.vocabulary.size)
            memory = (ctypes.c_float * (shape[0] * shape[1])).from_address(address)
            table = np.frombuffer(memoryview(memory), np.float32).reshape(shape)
            self._tables[address, outputs] = table
            table.flags.writeable = False
        return table

    # Rollback. -----------------------------------------------------------------------------------

    def _probe_rollback(self) -> bool:
        """Compute two tokens and try to take one back. The first forward also pages the weights in."""
        self._decode([Chain(0, 0, [0, 0], 0)])
        can = self.keep_first(0, 1)
        self._clear(0)
        return can

    def _explain_no_rollback(self) -> str:
        model = self._handles.model
        hybrid = self._llama.llama_model_is_hybrid(model)
        kind = "hybrid (partly recurrent)" if hybrid else "recurrent"
        return f"{self.name} is a {kind} model and cannot take tokens back, so it decodes plainly."

    def _require_open(self) -> None:
        if not self.is_open:
            raise RuntimeUnavailableError(f"{self.name} has been closed; load it again.")
        if os.getpid() != self._process:  # the library's threads stayed behind, and it would wait for them for ever
            raise RuntimeUnavailableError(f"{self.name} was loaded before a fork; load it again in this process.")
