"""A headless Chromium, driven over the DevTools protocol through its pipe: no library, no port."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60.0
STARTER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser expects the pipe's ends as descriptors 3 and 4, whatever numbers they have here."""


def find() -> str | None:
    """A browser's path, None where there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One page of a running browser; `close` ends it.

    problems: what the page's console and the browser's log reported as an error or a warning
    requests: addresses that the page asked for
    """

    def __init__(self, program: str, profile: Path) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._loaded = 0
        self._number = 0
        self._session: str | None = None
        self._buffer = b""
        command_end, self._write = os.pipe()
        self._read, answer_end = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(command_end), str(answer_end), program, *options],
            pass_fds=(command_end, answer_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(command_end)
        os.close(answer_end)
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        """A page of our own, and word of what happens in it."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, path: Path, *, width: int, scheme: str) -> None:
        """Show a file in a window of this width, without network, in the "dark" or "light" scheme."""
        self._call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
        )
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        before = self._loaded
        self._call("Page.navigate", url=path.as_uri())
        while self._loaded == before:
            self._take(self._message())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        reply = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._message()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                result: dict[str, Any] = reply["result"]
                return result
            self._take(reply)

    def _message(self) -> dict[str, Any]:
        deadline = monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select([self._read], [], [], max(deadline - monotonic(), 0))
            piece = os.read(self._read, 1 << 16) if ready else b""
            assert piece, "the browser said nothing"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _take(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded += 1
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.problems.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.problems.append(parameters["entry"]["text"])


@contextlib.contextmanager
def running(program: str, profile: Path) -> Iterator[Browser]:
    """A browser that is closed at the end, whatever happens."""
    browser = Browser(program, profile)
    try:
        yield browser
    finally:
        browser.close()
