"""The library's log: kept in memory, shown only on request, and the source of our error messages."""

import os
import re
import sys
from collections import deque

DEBUG, WARNING, ERROR, CONTINUES = 1, 3, 4, 5
"""`ggml_log_level` in ggml.h."""

_FUNCTION = re.compile(r"^[\w:~<>]+: ")
_BEFORE_REASON = re.compile(r"^(error loading model|failed to initialize the context): ")
_SAYS_NOTHING = ("failed to load model", "failed to initialize the context", "failed to create")


class LibraryLog:
    """The last lines the library logged. `SLIPSTREAM_LLAMACPP_LOG=1` also prints them to stderr."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=2000)
        self._keeping = False
        self._echo = os.environ.get("SLIPSTREAM_LLAMACPP_LOG", "") not in ("", "0")

    def write(self, level: int, text: bytes) -> None:
        """Take one message (`ggml_log_callback`); a message may continue the line before."""
        message = text.decode(errors="replace")
        if self._echo:
            sys.stderr.write(message)
        if level == CONTINUES:
            level, start = self._lines.pop() if self._keeping and self._lines else (DEBUG, "")
            message = start + message
        self._keeping = level > DEBUG  # the library says something at that level for every tensor
        if self._keeping:
            self._lines.append((level, message))

    def clear(self) -> None:
        self._lines.clear()

    def lines(self, minimum_level: int = 0) -> list[str]:
        """Messages of at least this level, oldest first, without the C function's name in front."""
        kept = [text.strip() for level, text in self._lines if level >= minimum_level]
        return [_FUNCTION.sub("", text) for text in kept]

    def reason(self) -> str:
        """Why the last call failed, in the library's words, as the end of a sentence."""
        for line in reversed(self.lines(ERROR) or self.lines(WARNING)):
            reason = _BEFORE_REASON.sub("", line)
            if reason and not reason.startswith(_SAYS_NOTHING):
                return reason.rstrip(".")
        return "it gives no reason"
