"""Talking to a server: requests, streams of events, and sentences for everything that can go wrong on the way."""

import http.client
import json
import queue
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from slipstream.errors import RuntimeUnavailableError, UsageError

CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 120.0
"""Without a byte from the server for so long, it is given up."""
POLL_SECONDS = 0.05
LONGEST_LINE = 2**20
"""Bytes. No event of one token is as long; what never ends a line must not fill memory."""

# The last two are what http.client raises where another thread has closed its connection.
_TROUBLE = (OSError, http.client.HTTPException, AttributeError, ValueError)

Event = dict[str, Any]


class ServerError(RuntimeUnavailableError):
    """The server cannot be reached, went away, took too long or says what no such server says."""


class RefusedError(UsageError):
    """The server refused this request, for example because the prompt is too long for it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is; `path` is what comes before /v1."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(url: str) -> Address:
    """`http://host:8080`, with or without /v1 behind it; http where no scheme is given. Raises UsageError."""
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urllib.parse.SplitResult("", "", "", "", ""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise UsageError(f"--against must be the address of a server, such as http://127.0.0.1:8080, not {url!r}.")
    secure = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
    return Address(secure, parts.hostname, port or (443 if secure else 80), path)


class Link:
    """One server. key: sent as a bearer token if given; patience: seconds that it may be silent."""

    def __init__(self, address: Address, *, key: str | None = None, patience: float = PATIENCE_SECONDS) -> None:
        self.address = address
        self._key = key
        self._patience = patience

    def get(self, path: str) -> bytes:
        """A short page. Raises ServerError, RefusedError."""
        patience = min(CONNECT_SECONDS, self._patience)
        connection = self._connect(patience)
        try:
            connection.request("GET", self.address.path + path, headers=self._headers())
            response = connection.getresponse()
            body = response.read(10_000_000)
        except _TROUBLE as error:
            raise self._explained(error, patience) from error
        finally:
            connection.close()
        if response.status != 200:
            raise self._refused(response.status, body)
        return body

    def events(
        self, path: str, body: Mapping[str, Any], should_stop: Callable[[], bool]
    ) -> Iterator[tuple[float, Event]]:
        """(when it came, event) of a streamed answer. Raises ServerError, RefusedError.

        A thread reads, so that stopping never waits for the server.
        """
        lines: queue.Queue[tuple[float, bytes | Exception | None]] = queue.Queue()
        connection = self._connect(self._patience)
        left = threading.Event()  # closing the connection does not end a reply that is being read
        arguments = (connection, self.address.path + path, json.dumps(body), lines, left)
        threading.Thread(target=self._read, args=arguments, daemon=True).start()
        try:
            while not should_stop():
                try:
                    moment, line = lines.get(timeout=POLL_SECONDS)
                except queue.Empty:  # the thread's connection loses patience by itself
                    continue
                if line is None:
                    return
                if isinstance(line, Exception):
                    raise self._explained(line, self._patience) from line
                event = self._event(line.strip())
                if event is not None:
                    yield moment, event
        finally:
            left.set()
            connection.close()

    def broken(self, what: str) -> ServerError:
        """The error for a server that is no longer asked."""
        return ServerError(f"The server {self.address.name} {what}; it is left out from here on.")

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.address.secure else http.client.HTTPConnection
        return kind(self.address.host, self.address.port, timeout=timeout)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _read(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        body: str,
        lines: "queue.Queue[tuple[float, bytes | Exception | None]]",
        left: threading.Event,
    ) -> None:
        """Runs in a thread of its own: the reply's lines into the queue, then what went wrong, or None.

        left: set when nobody listens any more
        """
        try:
            connection.request("POST", path, body.encode(), {"Content-Type": "application/json", **self._headers()})
            response = connection.getresponse()
            if response.status != 200:
                raise self._refused(response.status, response.read(4000))
            with response:
                while not left.is_set() and (line := response.readline(LONGEST_LINE)):
                    lines.put((perf_counter(), line))
            lines.put((perf_counter(), None))
        except (*_TROUBLE, ServerError, RefusedError) as error:
            lines.put((perf_counter(), error))

    def _event(self, line: bytes) -> Event | None:
        """The JSON of a `data:` line (server-sent events); None for the others and for the mark of the end."""
        if (
            not line
            or line.startswith((b":", b"event:", b"id:", b"retry:"))
            or line.split() in ([b"data:", b"[DONE]"], [b"data:[DONE]"])
        ):
            return None
        try:
            event = json.loads(line.removeprefix(b"data:")) if line.startswith(b"data:") else None
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise self.broken(f"answered nonsense ({line[:60].decode(errors='replace')!r})")
        if "error" in event:
            raise self.broken(f"reported an error ({str(event['error'])[:200]})")
        return event

    def _refused(self, status: int, body: bytes) -> ServerError | RefusedError:
        said = " ".join(body.decode(errors="replace").split())[:200] or "without a reason"
        if status in (400, 413, 422):
            return RefusedError(f"The server {self.address.name} refused the request ({status}: {said}).")
        hint = ", so set SLIPSTREAM_API_KEY to its key" if status in (401, 403) else ""
        return self.broken(f"answered with status {status}{hint} ({said})")

    def _explained(self, error: Exception, patience: float) -> Exception:
        """What of the network's and http's own exceptions a person can use. patience: seconds that were waited."""
        if isinstance(error, ServerError | RefusedError):
            return error
        if isinstance(error, TimeoutError):
            return self.broken(f"said nothing for {patience:g} seconds")
        if isinstance(error, ConnectionRefusedError):
            return self.broken("is not there (connection refused)")
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
            return self.broken("does not speak HTTP")
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):
            return self.broken(f"cannot be reached ({error.strerror or error})")
        return self.broken(f"went away in the middle of an answer ({type(error).__name__})")
