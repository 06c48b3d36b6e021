"""`slipstream serve` as a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


class Process:
    """A server process; `lines` is what it has said so far."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slipstream", "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)  # line by line

    @property
    def url(self) -> str:
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            found = [match for line in self.lines if (match := re.search(r"http://\S+", line))]
            if found:
                return found[0].group()
            time.sleep(0.02)
        raise AssertionError("".join(self.lines))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.close()
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
