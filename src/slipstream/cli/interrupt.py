"""Ctrl-C: the first one ends what runs in good order, the second ends the process at once.

Python runs signal handlers between two steps of its own, which can be seconds away while the library loads or
computes. The interpreter's C handler, however, writes each signal's number into a pipe at once; a thread reads it.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130
"""128 + SIGINT, what shells report for an interrupted command."""


class Interrupts:
    """What the next Ctrl-C does. One per process; `install` from the main thread."""

    def __init__(self) -> None:
        self._cancel: Callable[[], None] | None = None
        self._patience: int | None = None
        self._presses = 0
        self._caught = False

    def install(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._handle)
        threading.Thread(target=self._watch, args=(reader,), name="interrupts", daemon=True).start()

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """There is nothing to finish or to clean up inside: Ctrl-C ends the process, even inside the library."""
        self._presses, self._patience = 0, 0
        try:
            yield
        finally:
            self._patience = None

    @contextmanager
    def cancelling(self, cancel: Callable[[], None]) -> Iterator[None]:
        """The first Ctrl-C inside calls `cancel`, the second ends the process."""
        self._cancel, self._presses, self._patience, self._caught = cancel, 0, 1, False
        try:
            yield
        finally:
            self._cancel = self._patience = None

    @property
    def caught(self) -> bool:
        """Whether the last `cancelling` was interrupted."""
        return self._caught

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread. Elsewhere than in the two blocks above Ctrl-C is Python's own exception."""
        if self._cancel is None:
            raise KeyboardInterrupt
        self._caught = True
        self._cancel()

    def _watch(self, reader: int) -> None:
        while signals := os.read(reader, 64):
            self._presses += signals.count(signal.SIGINT)
            if self._patience is not None and self._presses > self._patience:
                _leave()


def _leave() -> None:
    """End the process without waiting for anything; a terminal gets its cursor and colours back."""
    if sys.stderr.isatty():
        os.write(2, b"\x1b[0m\x1b[?25h\n")
    os._exit(EXIT_CODE)


interrupts = Interrupts()
