"""The corpus of an engine: a ring on disk, and an index in memory for every scope that is in use.

Reading, entering and writing are done on a thread of its own, so that no round waits for a disk or for another process.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread

import numpy as np

from slipstream.corpus.index import CHUNK, LONG, CorpusIndex
from slipstream.corpus.ring import MOST_TOKENS, TOKEN_BYTES, News, Record, Ring, Tokens, scope_key
from slipstream.errors import SlipstreamError

LOCAL = ""
"""The scope of whoever uses this machine: chats, what `slipstream corpus add` reads, a server without keys."""
SHORTEST = 8
"""Tokens of a text that is worth keeping."""
MOST_SCOPES = 64
"""Indices that are in memory at once; those that were not used for longest are given up, and read again when needed."""
RECENT = 4
"""Texts of a scope to which a new one is compared: a chat's next prompt says all again that was said before."""
_logger = logging.getLogger(__name__)


class Corpus:
    """Texts of one vocabulary. Each belongs to a scope, and is found by texts of that scope alone.

    folder:          of the ring, which other processes may use as well
    vocabulary_size: what ids are below
    most_tokens:     of the ring, and of all indices together

    All methods but `flush` and `close` may be called from any thread and take no time worth mentioning. After `close`
    nothing is kept or found.
    """

    def __init__(self, folder: Path, vocabulary_size: int, most_tokens: int = MOST_TOKENS) -> None:
        self.folder = folder
        self._ring = Ring(folder, most_tokens)
        self._size, self._most = vocabulary_size, most_tokens
        self._indices: OrderedDict[str, CorpusIndex] = OrderedDict()
        self._loaded: set[str] = set()
        """Scopes whose index has all that the ring has."""
        self._lock = Lock()
        self._recent: dict[str, deque[Tokens]] = {}
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._complained = self._closing = False

    def index(self, scope: str) -> CorpusIndex:
        """Of a scope; it fills in the background when it is asked for first, and by what others have added since."""
        with self._lock:
            index = self._indices.get(scope)
            known = index is not None
            if index is None:
                index = self._indices[scope] = CorpusIndex(self._size, self._most)
            self._indices.move_to_end(scope)
        self._do(
            (lambda: self._learn(self._ring.news(self._wanted()))) if known else (lambda: self._load(scope, index))
        )
        return index

    def add(self, scope: str, tokens: Sequence[int]) -> None:
        """Keep a text; of one that begins like one of the last, what is new."""
        if len(tokens) >= SHORTEST:
            text = np.array(tokens, np.uint32)
            self._do(lambda: self._add(scope, text))

    def flush(self) -> None:
        """Wait until everything that was asked for is done."""
        if self._thread is not None:
            done = Event()
            self._do(done.set)
            done.wait()

    def memory(self) -> int:
        """Bytes of all indices; before the first text, what one of everything on disk would take."""
        indices = [index for _, index in self._in_memory()]
        if not indices:
            return CorpusIndex(self._size, self._most).memory(self._ring.size() // TOKEN_BYTES)
        return sum([index.memory() for index in indices])

    def close(self) -> None:
        """Write what waits to be written, and end the thread; closing twice is harmless."""
        self._closing = True  # nothing is read any more
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()
        self._indices.clear()
        self._loaded.clear()
        self._recent.clear()

    # --- on the thread

    def _do(self, job: Callable[[], None]) -> None:
        if self._closing:
            return
        if self._thread is None:
            self._thread = Thread(target=self._work, name="corpus", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except SlipstreamError as error:  # the disk is full, say: what is in memory serves on
                self._complain(str(error))
            except Exception:
                _logger.exception("The corpus failed.")
            for warning in self._ring.warnings:
                _logger.warning("%s", warning)
            self._ring.warnings.clear()

    def _complain(self, sentence: str) -> None:
        if not self._complained:
            _logger.warning("Texts are not kept for later drafts. %s", sentence)
        self._complained = True

    def _load(self, scope: str, index: CorpusIndex) -> None:
        try:
            if not self._closing:
                self._learn(self._ring.news(self._wanted()))
                self._read(scope, index)
        finally:
            self._loaded.add(scope)
            self._shrink()

    def _read(self, scope: str, index: CorpusIndex) -> None:
        """All that the ring has of a scope."""
        lengths: list[int] = []
        self._ring.visit(lambda one: lengths.append(len(one.tokens) + 1), scope_key(scope))
        index.reserve(sum(lengths))
        batch = _Batch(index)
        self._ring.visit(batch.take, scope_key(scope))
        batch.flush()

    def _learn(self, news: News) -> None:
        """Enter what others wrote, or forget all that somebody cleared."""
        if news.cleared:
            self._recent.clear()
        for scope, index in self._in_memory():
            if news.cleared:
                index.clear()
            if scope in self._loaded:
                key = scope_key(scope)
                index.add([record.tokens for record in news.records if record.scope == key])
        self._shrink()

    def _add(self, scope: str, text: Tokens) -> None:
        recent = self._recent.setdefault(scope, deque(maxlen=RECENT))
        known = max([_in_common(text, one) for one in recent], default=0)
        recent.append(text)
        new = text[max(known - LONG, 0) :]
        if len(text) - known < SHORTEST:
            return
        index = self._indices.get(scope)
        if index is not None and scope in self._loaded:
            index.add([new])
        self._learn(self._ring.append([Record(scope_key(scope), new)], self._wanted()))

    def _shrink(self) -> None:
        """Give up indices until the rest is within the bounds."""
        with self._lock:
            while len(self._indices) > 1 and (
                len(self._indices) > MOST_SCOPES or sum(map(len, self._indices.values())) > self._most
            ):
                scope, _ = self._indices.popitem(last=False)
                self._recent.pop(scope, None)
                self._loaded.discard(scope)

    def _wanted(self) -> set[bytes]:
        return {scope_key(scope) for scope in self._loaded}

    def _in_memory(self) -> list[tuple[str, CorpusIndex]]:
        with self._lock:
            return list(self._indices.items())


class _Batch:
    """Records that are entered together: each alone would take too long, all at once too much memory."""

    def __init__(self, index: CorpusIndex) -> None:
        self._index, self._texts, self._size = index, list[Tokens](), 0

    def take(self, record: Record) -> None:
        self._texts.append(record.tokens)
        self._size += len(record.tokens)
        if self._size >= CHUNK:
            self.flush()

    def flush(self) -> None:
        self._index.add(self._texts)
        self._texts, self._size = [], 0


def _in_common(one: Tokens, other: Tokens) -> int:
    """Tokens at the beginning of both."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
