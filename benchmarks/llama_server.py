"""llama-server as a process: start it, ask it, stop it."""

import json
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from benchmarks.peer import PeerError

START_SECONDS = 300
ANSWER_SECONDS = 600


class LlamaServer:
    """A running llama-server; a context manager that stops it.

    slots: texts that it decodes at once; they share `context`
    draft, draft_tokens: the draft model and `--spec-draft-n-max`. `-md` alone would load it and never draft:
    `--spec-type` is what turns speculation on.

    Raises PeerError if it does not start.
    """

    def __init__(
        self,
        program: Path,
        model: Path,
        *,
        threads: int,
        context: int,
        draft: Path | None = None,
        draft_tokens: int = 0,
        slots: int = 1,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self._log = tempfile.NamedTemporaryFile("w+", prefix="llama-server-", suffix=".log")  # noqa: SIM115 (closed by __exit__)
        command = [program, "-m", model, "-t", threads, "-c", context, "-np", slots]
        command += ["--host", "127.0.0.1", "--port", port]
        if draft is not None:
            command += ["-md", draft, "-td", threads, "--spec-type", "draft-simple", "--spec-draft-n-max", draft_tokens]
        self._process = subprocess.Popen(list(map(str, command)), stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def complete(self, prompt: Sequence[int], *, max_tokens: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer to token ids: `tokens`, `timings` and more. Nothing of earlier prompts is reused."""
        request = {"prompt": list(prompt), "n_predict": max_tokens, "cache_prompt": False, "return_tokens": True}
        answer: dict[str, Any] = json.loads(self._post("/completion", request | dict(sampling)))
        return answer

    def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
                answer: bytes = response.read()
                return answer
        except urllib.error.HTTPError as error:
            raise PeerError(f"llama-server refused a request: {error.read().decode(errors='replace')}") from None

    def _wait_until_ready(self) -> None:
        """Until the weights are loaded."""
        deadline = monotonic() + START_SECONDS
        while monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except OSError:  # not listening yet, or 503 while loading
                sleep(0.1)
        raise PeerError(f"llama-server did not start: {self.log()[-2000:]}")

    def log(self) -> str:
        """What it printed so far."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> "LlamaServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
