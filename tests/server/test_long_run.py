"""Memory after thousands of requests of every kind is what it was after some hundreds."""

from pathlib import Path

import httpx

from tests.server.process import Process
from tests.tiny_models import tiny_llama

REQUESTS, WARM_UP = 2000, 600
MOST_GROWTH = 8 * 2**20


def ask(client: httpx.Client, number: int) -> None:
    """One of seven kinds of request, two of which the client leaves before the answer is there."""
    body = {"prompt": f"text {number % 50} " * (1 + number % 3), "max_tokens": 3 + number % 4, "seed": number}
    kind = number % 7
    if kind == 0:
        with client.stream("POST", "/v1/completions", json={**body, "stream": True, "max_tokens": 60}) as stream:
            next(stream.iter_lines())  # and away
    elif kind == 1:
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
            assert "data: [DONE]" in list(stream.iter_lines())
    elif kind == 2:
        assert client.post("/v1/completions", json={**body, "temperature": -1}).status_code == 400
    elif kind == 3:
        assert client.post("/v1/completions", json={**body, "prompt": "x" * 5000}).status_code == 400
    elif kind == 4:
        assert client.get(f"/nothing/{number}").status_code == 404
    elif kind == 5:
        try:
            client.post("/v1/completions", json={**body, "max_tokens": 100}, timeout=0.005)
        except httpx.TimeoutException:
            return
    else:
        answer = client.post("/v1/completions", json={**body, "n": 2, "logprobs": 2})
        assert len(answer.json()["choices"]) == 2


def test_memory_returns_to_its_level(tmp_path: Path) -> None:
    process = Process("-m", str(tiny_llama(tmp_path / "tiny.gguf")), "--parallel", "3", "--draft", "suffix")
    try:
        with httpx.Client(base_url=process.url, timeout=20) as client:
            for number in range(WARM_UP):
                ask(client, number)
            before = process.resident
            for number in range(WARM_UP, WARM_UP + REQUESTS):
                ask(client, number)
            grown = process.resident - before
            health = client.get("/health").json()
        assert grown < MOST_GROWTH, f"{grown / 2**20:.1f} MiB"
        assert health["waiting"] == 0
        assert process.end() == 0
        assert "Traceback" not in "".join(process.lines)
    finally:
        process.close()
