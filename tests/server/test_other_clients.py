"""Clients that nobody here wrote, besides OpenAI's own, against a real server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from slipstream.engine import Engine
from tests.server.serving import Served, fake_engine, serving

MESSAGES = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as one:
        yield one


@pytest.fixture(scope="module")
def text() -> Iterator[str]:
    engine: Engine
    with fake_engine() as engine:
        yield engine.generate(MESSAGES, seed=3, max_tokens=20).text


def test_curl(served: Served, text: str) -> None:
    curl = which("curl")
    if curl is None:
        pytest.skip("there is no curl")
    body = json.dumps({"messages": MESSAGES, "seed": 3, "max_tokens": 20, "stream": True})
    command = [curl, "-sN", f"{served.url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text
    assert all(line == "" or line.startswith(("data: ", ": ")) for line in lines)


def python(script: str, served: Served, **variables: str) -> str:
    """Run a client in a process of its own: these libraries warn, register exit handlers and start threads."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "URL": f"{served.url}/v1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LITELLM = """
import os, litellm
messages = [{"role": "user", "content": "hello there"}]
given = dict(model="openai/any", api_base=os.environ["URL"], api_key="x", messages=messages, seed=3, max_tokens=20)
print(litellm.completion(**given).choices[0].message.content)
print("".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**given, stream=True)))
"""


def test_litellm(served: Served, text: str) -> None:
    assert python(LITELLM, served, LITELLM_LOCAL_MODEL_COST_MAP="True").splitlines() == [text, text]


LANGCHAIN = """
import os
from langchain_openai import ChatOpenAI
chat = ChatOpenAI(model="any", base_url=os.environ["URL"], api_key="x", seed=3, max_tokens=20)
print(chat.invoke("hello there").content)
print("".join(chunk.content for chunk in chat.stream("hello there")))
"""


def test_langchain(served: Served, text: str) -> None:
    assert python(LANGCHAIN, served).splitlines() == [text, text]


def test_the_llm_command(served: Served, text: str, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: slipstream\n  model_name: any\n  api_base: {served.url}/v1\n  api_key_name: none\n",
        encoding="utf-8",
    )
    (tmp_path / "keys.json").write_text('{"none": "x"}', encoding="utf-8")
    script = "from llm.cli import cli; cli()"
    command = [
        sys.executable,
        "-c",
        script,
        "-m",
        "slipstream",
        "-o",
        "seed",
        "3",
        "-o",
        "max_tokens",
        "20",
        "hello there",
    ]
    for more in ([], ["--no-stream"]):
        done = subprocess.run(
            [*command, *more],
            capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "LLM_USER_PATH": str(tmp_path), "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == text
