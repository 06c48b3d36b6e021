"""An OpenAI-compatible server as a contestant: the same prompts, sampling and seed through /v1/chat/completions.

Answers are streamed. llama-server tells its own times and draft counters (`timings`); vLLM counts drafts in /metrics.
Where a server tells no times, decoding lasts from the first piece of text to the last, and the tokens of the first
piece are taken for one.
"""

import http.client
import json
import queue
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

from slipstream.core.params import SamplingParams
from slipstream.engine import GenerationOptions
from slipstream.errors import RuntimeUnavailableError, UsageError
from slipstream.measure.looping import repeated_share
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.records import Answer, hash_text

CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 120.0
"""Without a byte from the server for so long, it is given up."""
POLL_SECONDS = 0.1

DRAFTED = re.compile(r"^vllm:spec_decode_num_draft_tokens(?:_total)?(?:\{[^}]*\})? (\S+)", re.MULTILINE)
ACCEPTED = re.compile(r"^vllm:spec_decode_num_accepted_tokens(?:_total)?(?:\{[^}]*\})? (\S+)", re.MULTILINE)


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

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout)


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


class Server:
    """A server. `key` is sent as a bearer token if given; `model` is the one the server names first.

    Raises ServerError if it does not answer.
    """

    def __init__(self, url: str, params: SamplingParams, *, key: str | None = None, patience: float = PATIENCE_SECONDS):
        self.address = parse_address(url)
        self._params = params
        self._key = key
        self._patience = patience
        self.model = self._first_model()

    @property
    def name(self) -> str:
        return self.address.name

    def answer(self, prompt: BenchPrompt, options: GenerationOptions, should_stop: Callable[[], bool]) -> Answer | None:
        """One answer, timed; None if it was stopped. Raises ServerError, RefusedError."""
        before = self._draft_counters()
        reply = _Reply()
        for moment, event in self._events(self._request(prompt, options), should_stop):
            reply.take(moment, event)
        if should_stop():
            return None
        drafted, accepted = (
            (None if after is None or start is None else int(after - start))
            for after, start in zip(self._draft_counters(), before, strict=True)
        )
        return reply.answer(self.name, drafted, accepted)

    def _request(self, prompt: BenchPrompt, options: GenerationOptions) -> dict[str, Any]:
        """Everything that samples is said, also what is neutral: servers have defaults of their own."""
        params = self._params
        text = {"role": "user", "content": prompt.text}
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [text] if prompt.text is not None else list(prompt.messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "repetition_penalty": params.repetition_penalty,
            "repeat_penalty": params.repetition_penalty,
            "seed": (options.get("seed") or 0) % 2**31,
        }
        body |= {name: options[name] for name in ("max_tokens", "stop") if options.get(name)}
        if params.logit_bias:
            body["logit_bias"] = {str(token): max(bias, -100.0) for token, bias in params.logit_bias.items()}
        if options.get("think") is not None:
            body["chat_template_kwargs"] = {"enable_thinking": options["think"]}
        return body

    def _events(self, body: dict[str, Any], should_stop: Callable[[], bool]) -> Iterator[tuple[float, dict[str, Any]]]:
        """(when it came, event) until the stream ends. A thread reads, so that stopping never waits for the server."""
        lines: queue.Queue[tuple[float, bytes | BaseException | None]] = queue.Queue()
        connection = self.address.connect(self._patience)
        threading.Thread(target=self._read, args=(connection, body, lines), daemon=True).start()
        try:
            last = monotonic()
            while not should_stop():
                try:
                    moment, line = lines.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    if monotonic() - last > self._patience + 1:
                        raise self._broken("said nothing", f"for {self._patience:g} seconds") from None
                    continue
                last = monotonic()
                if line is None:
                    return
                if isinstance(line, BaseException):
                    raise self._explained(line) from line
                event = self._event(line)
                if event is not None:
                    yield moment, event
        finally:
            connection.close()

    def _read(
        self,
        connection: http.client.HTTPConnection,
        body: dict[str, Any],
        lines: "queue.Queue[tuple[float, bytes | BaseException | None]]",
    ) -> None:
        """Runs in a thread of its own: the reply's lines into the queue, what went wrong, or None at its end."""
        try:
            headers = {"Content-Type": "application/json", **self._headers()}
            connection.request("POST", f"{self.address.path}/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise self._refused(response.status, response.read(4000))
            for line in response:
                lines.put((perf_counter(), line))
            lines.put((perf_counter(), None))
        # AttributeError and ValueError are what http.client raises when another thread has closed its connection
        except (OSError, http.client.HTTPException, AttributeError, ValueError, ServerError, RefusedError) as error:
            lines.put((perf_counter(), error))

    def _event(self, line: bytes) -> dict[str, Any] | None:
        """The JSON of a `data:` line; None for the others and for the mark of the end."""
        text = line.strip()
        if not text.startswith(b"data:") or text == b"data: [DONE]":
            if text and not text.startswith((b":", b"data:", b"event:", b"id:", b"retry:")):
                raise self._broken("answered nonsense:", repr(text[:60].decode(errors="replace")))
            return None
        try:
            event = json.loads(text[5:])
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise self._broken("answered nonsense:", repr(text[:60].decode(errors="replace")))
        if "error" in event:
            raise self._broken("reported an error:", repr(event["error"])[:200])
        return event

    def _first_model(self) -> str:
        try:
            models = json.loads(self._get(f"{self.address.path}/v1/models"))["data"]
            return str(models[0]["id"])
        except (ValueError, RecursionError, KeyError, IndexError, TypeError):
            raise self._broken("answers /v1/models with", "something else than a list of models") from None

    def _draft_counters(self) -> tuple[float | None, float | None]:
        """vLLM's counters of drafted and accepted tokens; None where there are none."""
        try:
            text = self._get(f"{self.address.path}/metrics").decode(errors="replace")
        except (ServerError, RefusedError):
            return None, None
        return _total(DRAFTED, text), _total(ACCEPTED, text)

    def _get(self, path: str) -> bytes:
        connection = self.address.connect(CONNECT_SECONDS)
        try:
            connection.request("GET", path, headers=self._headers())
            response = connection.getresponse()
            body = response.read(10_000_000)
        except (OSError, http.client.HTTPException) as error:
            raise self._explained(error) from error
        finally:
            connection.close()
        if response.status != 200:
            raise self._refused(response.status, body)
        return body

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _refused(self, status: int, body: bytes) -> ServerError | RefusedError:
        said = " ".join(body.decode(errors="replace").split())[:200]
        if status in (400, 413, 422):
            return RefusedError(f"The server {self.name} refused the request ({status}): {said or 'without a reason'}.")
        key = "; set SLIPSTREAM_API_KEY to its key" if status in (401, 403) else ""
        return self._broken(f"answered with status {status}{key}:", said or "nothing else")

    def _explained(self, error: BaseException) -> BaseException:
        """What of the network's and http's own exceptions a person can use."""
        if isinstance(error, ServerError | RefusedError):
            return error
        if isinstance(error, TimeoutError):
            return self._broken("said nothing", f"for {self._patience:g} seconds")
        if isinstance(error, ConnectionRefusedError):
            return self._broken("is not there", "(connection refused)")
        if isinstance(error, http.client.HTTPException | ConnectionError | AttributeError | ValueError):
            return self._broken("went away", f"in the middle of an answer ({type(error).__name__})")
        return self._broken("cannot be reached:", str(getattr(error, "strerror", None) or error))

    def _broken(self, what: str, detail: str) -> ServerError:
        return ServerError(f"The server {self.name} {what} {detail}; it is left out from here on.")


def _total(pattern: re.Pattern[str], text: str) -> float | None:
    """The sum of a counter over its labels; None if it is not there."""
    try:
        values = [float(value) for value in pattern.findall(text)]
    except ValueError:
        return None
    return sum(values) if values else None


class _Reply:
    """What came of one answer."""

    def __init__(self) -> None:
        self._text = ""
        self._pieces = 0
        self._moments: list[float] = []
        self._started = perf_counter()
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self._finish_reason = ""

    def take(self, moment: float, event: dict[str, Any]) -> None:
        """One event of the stream; parts that are missing or odd are passed over."""
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = choice.get("delta")
        parts = (
            [delta.get(key) for key in ("reasoning_content", "reasoning", "content")] if isinstance(delta, dict) else []
        )
        piece = "".join(part for part in parts if isinstance(part, str))
        if piece:
            self._text += piece
            self._moments.append(moment)
        self._finish_reason = str(choice.get("finish_reason") or self._finish_reason)
        for name in ("usage", "timings"):
            if isinstance(event.get(name), dict):
                setattr(self, f"_{name}", event[name])

    def answer(self, server: str, drafted: int | None, accepted: int | None) -> Answer:
        """The server's own times where it tells them, else ours. Raises ServerError for an empty answer."""
        tokens, seconds = self._decoded()
        if tokens < 1 or seconds <= 0:
            raise ServerError(f"The server {server} ended an answer without text; it is left out from here on.")
        return Answer(
            tokens=tokens,
            seconds=seconds,
            prompt_tokens=_count(self._usage, "prompt_tokens") or _count(self._timings, "prompt_n") or 0,
            prompt_seconds=_milliseconds(self._timings, "prompt_ms") or self._moments[0] - self._started,
            finish_reason=self._finish_reason,
            text_hash=hash_text(self._text),
            looping=repeated_share(self._text.split()),
            drafted=_count(self._timings, "draft_n") if "draft_n" in self._timings else drafted,
            accepted=_count(self._timings, "draft_n_accepted") if "draft_n" in self._timings else accepted,
        )

    def _decoded(self) -> tuple[int, float]:
        """Tokens and the seconds that they took."""
        told = _count(self._timings, "predicted_n"), _milliseconds(self._timings, "predicted_ms")
        if told[0] and told[1]:
            return told[0], told[1]
        if not self._moments:
            return 0, 0.0
        count = _count(self._usage, "completion_tokens") or len(self._moments)
        spent = self._moments[-1] - self._moments[0]
        return (count - 1, spent) if count > 1 and spent > 0 else (count, self._moments[-1] - self._started)


def _count(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return int(value) if isinstance(value, int | float) and value >= 0 else None


def _milliseconds(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    return float(value) / 1e3 if isinstance(value, int | float) and value > 0 else None
