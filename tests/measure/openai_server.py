"""A small OpenAI-compatible server for tests, in a thread; what it does wrong is told by its `manner`."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PIECES = ("One ", "two ", "three ", "four.")


class OpenAiServer(ThreadingHTTPServer):
    """manner: "llama" (timings), "vllm" (metrics and usage), "plain", or a way to fail: "dies", "nonsense", "silent",
    "refuses", "error", "empty", "locked", "not json", "odd" (numbers that are none), "endless".
    The way shows after `good` answers."""

    daemon_threads = True

    def __init__(self, manner: str, good: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.manner, self.good = manner, good
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.drafted = 0
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other end hangs up in some tests."""


class Handler(BaseHTTPRequestHandler):
    server: OpenAiServer

    def do_GET(self) -> None:
        self.server.keys.append(self.headers.get("Authorization"))
        if self.server.manner == "locked":
            self._page(401, b'{"error": "no key"}')
        elif self.path == "/v1/models":
            self._page(200, b"hello" if self.server.manner == "not json" else b'{"data": [{"id": "some-model"}]}')
        elif self.path == "/metrics" and self.server.manner == "odd":
            self._page(200, b"vllm:spec_decode_num_draft_tokens NaN\nvllm:spec_decode_num_accepted_tokens +Inf\n")
        elif self.path == "/metrics" and self.server.manner == "vllm":
            lines = [
                f'vllm:spec_decode_num_{name}_tokens_total{{engine="{engine}"}} {float(count)}'
                for engine in (0, 1)
                for name, count in (("draft", self.server.drafted), ("accepted", self.server.drafted // 2))
            ]
            self._page(200, "\n".join(["# HELP x", *lines]).encode())
        else:
            self._page(404, b"")

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.requests.append(json.loads(self.rfile.read(length)))
        manner = self.server.manner if len(self.server.requests) > self.server.good else "plain"
        if manner == "refuses":
            self._page(400, b'{"error": {"message": "context of 512 exceeded"}}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self._say(b": welcome\n\n")
        self._stream(manner)

    def _stream(self, manner: str) -> None:
        for number, piece in enumerate(PIECES):
            if number == 2 and manner in ("dies", "nonsense", "silent", "error"):
                self._fail(manner)
                return
            self._event({"choices": [{"delta": {"content": "" if manner == "empty" else piece}}]})
        last: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "length"}]}
        if self.server.manner == "llama":
            last["timings"] = {"prompt_n": 7, "prompt_ms": 30.0, "predicted_n": 9, "predicted_ms": 90.0,
                               "draft_n": 8, "draft_n_accepted": 5}  # fmt: skip
        if manner == "odd":
            last["timings"] = dict.fromkeys(("prompt_ms", "predicted_n", "predicted_ms"), float("inf"))
        while manner == "endless":
            self._event({"choices": [{"delta": {"content": "and "}}]})
        self._event(last)
        self.server.drafted += 10
        if self.server.manner in ("vllm", "plain"):
            self._event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 11}})
        self._say(b"data:[DONE]\n\n" if manner == "odd" else b"data: [DONE]\n\n")

    def _fail(self, manner: str) -> None:
        if manner == "nonsense":
            self._say(b"<html>Bad gateway</html>\n")
        elif manner == "error":
            self._event({"error": {"message": "out of memory"}})
        elif manner == "silent":
            self.server.released.wait(30)
        self.connection.shutdown(socket.SHUT_RDWR)

    def _event(self, event: dict[str, Any]) -> None:
        self._say(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _say(self, text: bytes) -> None:
        self.wfile.write(text)
        self.wfile.flush()

    def _page(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Silence."""


@contextmanager
def serving(manner: str = "plain", good: int = 0) -> Iterator[OpenAiServer]:
    """A running server."""
    server = OpenAiServer(manner, good)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
