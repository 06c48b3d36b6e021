"""What may be written to whom: styles for terminals that want them, plain text for everything else."""

import errno
import os
import re
import sys
from typing import IO

from slipstream.errors import StorageError

DIM, GREEN, BOLD = "2", "32", "1"
"""Parameters of the escape sequence that sets a style (ECMA-48, SGR)."""

# Whatever a model or a stranger's file says, it must not move the cursor, set a title or type for the user: the
# C0 controls but tab and line feed, DEL, and C1, which some terminals take in their two-byte UTF-8 form.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` without control characters; tabs and line feeds stay."""
    return _CONTROLS.sub("", text)


def may_style(file: IO[str]) -> bool:
    """Whether escape sequences are welcome: a terminal that is not dumb, and no NO_COLOR."""
    from rich.console import Console  # not needed where nothing is shown

    console = Console(file=file)
    return console.is_terminal and not console.no_color and console.color_system is not None


def width(file: IO[str]) -> int:
    """Columns of the terminal behind `file`; 80 where there is none."""
    from rich.console import Console

    return Console(file=file).width


def complain(sentence: str) -> None:
    """An error, as one line on stderr."""
    _to_stderr(f"slipstream: {printable(' '.join(sentence.split()))}\n")


def say(sentence: str) -> None:
    """Something worth knowing, dim on stderr."""
    sentence = printable(sentence)
    _to_stderr(f"\x1b[{DIM}m{sentence}\x1b[0m\n" if may_style(sys.stderr) else f"{sentence}\n")


def _to_stderr(text: str) -> None:
    """Nobody may be listening any more; that is no reason to fail."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        pass


class Output:
    """Standard output, written piece by piece as it comes.

    On a terminal control characters are left out; elsewhere text is written as it is.
    Raises BrokenPipeError when the reader has gone, StorageError when the text cannot be stored.
    """

    def __init__(self) -> None:
        self._file = sys.stdout
        self.styles = may_style(self._file)
        # colours that are forced into a pipe are on their way to a terminal, too
        self._is_terminal = self.styles or self._file.isatty()
        self._style = ""
        self._at_line_start = True

    def write(self, text: str, style: str = "") -> None:
        """Write and flush. `style` is DIM, GREEN, ..., several joined by ";", "" for none."""
        if self._is_terminal:
            text = printable(text)
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        self._write(self._switch(style) + text)

    def end_line(self) -> None:
        """End the style, and the line if one is begun."""
        end = self._switch("") + ("" if self._at_line_start else "\n")
        self._at_line_start = True
        if end:
            self._write(end)

    def _switch(self, style: str) -> str:
        if not self.styles or style == self._style:
            return ""
        reset = "\x1b[0m" if self._style else ""
        self._style = style
        return reset + (f"\x1b[{style}m" if style else "")

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise unwritable(error) from error


def unwritable(error: OSError) -> StorageError:
    """The sentence for standard output that failed; what is still in its buffer is given up."""
    _abandon_stdout()
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    reason = "the disk is full" if full else error.strerror or str(error)
    return StorageError(f"The output cannot be written: {reason}.")


def _abandon_stdout() -> None:
    """What is still in the buffer cannot be written either; Python must not try again while it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def prepare() -> None:
    """Call first. Standard input and error that were closed become empty; what a locale cannot spell becomes `?`."""
    _fill_closed()
    for file in (sys.stdout, sys.stderr):
        reconfigure = getattr(file, "reconfigure", None)  # test runners put other objects there
        if reconfigure is not None:
            reconfigure(errors="replace")


def _fill_closed() -> None:
    """Take the numbers of closed standard files, or the next file that is opened would get the library's messages.

    `sys.stdout` stays None: an answer that nobody can have is refused before it is computed.
    """
    for name, mode in (("stdin", "r"), ("stdout", ""), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            if mode:
                setattr(sys, name, open(descriptor, mode))  # noqa: PTH123, SIM115 - a number, open to the end
