"""`slipstream serve` as a process of its own."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatch
from os import environ
from pathlib import Path
from time import sleep

import httpx
import pytest

from slipstream.cli.serve import _names
from tests.server.process import Process
from tests.server.serving import until
from tests.tiny_models import tiny_llama

DEPLOY = Path(__file__).parents[2] / "deploy"
in_a_checkout = pytest.mark.skipif(not DEPLOY.is_dir(), reason="a source distribution is without deploy/")
PROMPT = {"prompt": "abc", "max_tokens": 5, "seed": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("serve") / "tiny.gguf")


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for one in started:
        one.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_lets_answers_end(processes: list[Process], model: Path, number: int) -> None:
    process = Process("-m", str(model), "--parallel", "2", "--draft", "suffix")
    processes.append(process)
    url = process.url
    assert httpx.post(f"{url}/v1/completions", json=PROMPT).json()["usage"]["completion_tokens"] <= 5
    with httpx.stream("POST", f"{url}/v1/completions", json={**PROMPT, "max_tokens": 100, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.process.send_signal(number)
        assert "data: [DONE]" in list(lines)
    assert process.process.wait(30) == 0
    said = "".join(process.lines)
    assert "/v1/completions 200" in said
    assert "Traceback" not in said


def test_a_second_signal_ends_answers_and_says_so(processes: list[Process], model: Path) -> None:
    process = Process("-m", str(model), "--draft", "suffix")
    processes.append(process)
    endless = {**PROMPT, "max_tokens": 100_000, "logit_bias": {str(token): -100 for token in range(2, 5)}}
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=process.url, timeout=60) as client:
        waiting = pool.submit(httpx.post, f"{process.url}/v1/completions", json=endless, timeout=60)
        until(lambda: "\nslipstream:requests_processing 1.0\n" in client.get("/metrics").text)
        with client.stream("POST", "/v1/completions", json={**endless, "stream": True}) as stream:
            next(stream.iter_lines())
            for _ in range(2):
                process.process.send_signal(signal.SIGINT)
                sleep(0.3)
        answer = waiting.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_busy")
    assert process.process.wait(30) == 0
    said = "".join(process.lines)
    assert "Ctrl-C ends them now" in said
    assert "Traceback" not in said


def test_a_signal_under_load_lets_every_stream_end(processes: list[Process], model: Path) -> None:
    """Those that are decoded, and those that wait for a place."""
    process = Process("-m", str(model), "--parallel", "2", "--draft", "suffix")
    processes.append(process)
    body = {**PROMPT, "max_tokens": 300, "stream": True, "logit_bias": {str(token): -100 for token in range(268, 271)}}
    with ExitStack() as stack, httpx.Client(base_url=process.url, timeout=60) as client:
        streams = [
            stack.enter_context(client.stream("POST", "/v1/completions", json={**body, "seed": seed}))
            for seed in range(8)
        ]
        process.process.send_signal(signal.SIGTERM)
        with ThreadPoolExecutor(len(streams)) as pool:
            ends = list(pool.map(lambda one: [line for line in one.iter_lines() if line][-1], streams))
    assert ends == ["data: [DONE]"] * 8
    assert process.process.wait(30) == 0
    assert "Traceback" not in "".join(process.lines)


def test_killed_and_started_again_it_serves_again(processes: list[Process], model: Path) -> None:
    for _ in range(2):
        process = Process("-m", str(model))
        processes.append(process)
        assert httpx.post(f"{process.url}/v1/completions", json=PROMPT).status_code == 200
        assert process.end(signal.SIGKILL) == -signal.SIGKILL


def test_flags_come_before_the_environment_and_that_before_the_file(
    processes: list[Process], model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "server.toml"
    file.write_text(f'model = "{model}"\nparallel = 3\nmax-queue = 7\nlog-format = "json"\napi_key = "from file"\n')
    process = Process(
        "--config", str(file), "--parallel", "2", SLIPSTREAM_PARALLEL="1", SLIPSTREAM_API_KEY="from environment"
    )
    processes.append(process)
    wrong = httpx.get(f"{process.url}/props", headers={"Authorization": "Bearer from file"})
    assert wrong.status_code == 401
    props = httpx.get(f"{process.url}/props", headers={"Authorization": "Bearer from environment"}).json()
    assert props["parallel"] == 2
    assert process.end() == 0
    logged = [json.loads(line) for line in process.lines]
    assert [(one["path"], one["status"]) for one in logged if "path" in one] == [("/props", 401), ("/props", 200)]


@in_a_checkout
def test_the_configuration_in_deploy_is_taken(processes: list[Process], model: Path) -> None:
    process = Process("--config", str(DEPLOY / "server.toml"), "-m", str(model))
    processes.append(process)
    assert httpx.get(f"{process.url}/props").json()["parallel"] == 4


@in_a_checkout
def test_an_image_is_built_without_what_git_ignores() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for pattern in (DEPLOY.parent / ".gitignore").read_text().split():
        if pattern.startswith("!/"):  # what comes with the package
            assert f"!{pattern[2:]}" in ignored
            continue
        name = pattern.rstrip("/")
        assert any(fnmatch(name, one.removeprefix("**/")) for one in ignored), pattern


def test_one_site_in_the_file_needs_no_list(processes: list[Process], model: Path, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('cors-origin = "https://example.org"\n')
    process = Process("--config", str(file), "-m", str(model))
    processes.append(process)
    answer = httpx.get(f"{process.url}/props", headers={"Origin": "https://example.org"})
    assert answer.headers["access-control-allow-origin"] == "https://example.org"


@pytest.mark.parametrize(("arguments", "warned"), [([], True), (["--api-key", "x"], False)])
def test_an_open_server_on_the_network_is_warned_of(
    processes: list[Process], model: Path, arguments: list[str], warned: bool
) -> None:
    process = Process("--host", "0.0.0.0", "-m", str(model), *arguments)
    processes.append(process)
    assert process.url
    assert any("Without a key" in line for line in process.lines) == warned


def test_the_log_for_machines_is_json_line_by_line(processes: list[Process], model: Path) -> None:
    process = Process("-m", str(model), "--log-format", "json", "--draft", "suffix", "--shutdown-timeout", "1")
    processes.append(process)
    host, port = process.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(b"nonsense\r\n\r\n")  # uvicorn warns of it
        assert b"400" in client.recv(100)
    endless = {**PROMPT, "max_tokens": 1900, "logit_bias": {str(token): -100 for token in range(268, 271)}}
    with httpx.stream("POST", f"http://{host}:{port}/v1/completions", json={**endless, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert process.end() == 0
    logged = [json.loads(line) for line in process.lines]
    told = [str(one.get("message")) for one in logged]
    assert any(one.startswith("Serving ") for one in told)
    assert any("Invalid HTTP request" in one for one in told)
    assert any("Ctrl-C ends them now" in one for one in told)
    assert [one["status"] for one in logged if one.get("path") == "/v1/completions"] == [200]


@pytest.mark.parametrize("variable", ["SLIPSTREAM_API_KEY", "SLIPSTREAM_API_KEY_FILE"])
def test_an_empty_variable_does_not_open_the_server(
    processes: list[Process], model: Path, tmp_path: Path, variable: str
) -> None:
    file = tmp_path / "server.toml"
    file.write_text('api-key = "from file"\n')
    for more in ([], ["--config", str(file)]):
        done = subprocess.run(
            [sys.executable, "-m", "slipstream", "serve", "-m", str(model), *more],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
            env={**environ, variable: ""},
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{variable} is set and empty" in done.stderr
    process = Process("-m", str(model), "--api-key", "from flag", **{variable: ""})  # what was said more directly
    processes.append(process)
    for key, status in (("from flag", 200), ("wrong", 401)):
        assert httpx.get(f"{process.url}/props", headers={"Authorization": f"Bearer {key}"}).status_code == status


def test_a_name_that_is_allowed_opens_and_those_of_the_machine_do_anyway(processes: list[Process], model: Path) -> None:
    process = Process("-m", str(model), "--host", "0.0.0.0", "--allowed-host", "a.example", "--api-key", "x")
    processes.append(process)
    port = process.url.rpartition(":")[2]
    url = f"http://127.0.0.1:{port}/health"
    for host, status in (("a.example", 200), ("b.example", 400), ("localhost", 200), (f"127.0.0.1:{port}", 200)):
        assert httpx.get(url, headers={"Host": host}).status_code == status, host
    assert httpx.get(url).status_code == 200  # as a container's health check asks


def test_a_key_file_named_by_flag_comes_before_a_key_in_the_environment(
    processes: list[Process], model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("from file\n")
    process = Process("-m", str(model), "--api-key-file", str(file), SLIPSTREAM_API_KEY="from environment")
    processes.append(process)
    for key, status in (("from file", 200), ("from environment", 401)):
        answer = httpx.get(f"{process.url}/props", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == status


def test_the_port_is_tried_before_the_model_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [sys.executable, "-m", "slipstream", "serve", "-m", str(tmp_path / "none.gguf"),
             "--port", str(taken.getsockname()[1])],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert "choose another --port" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config", "missing.toml"], "cannot be read"),
        (["--config", "{folder}/broken.toml"], "is not TOML"),
        (["--config", "{folder}/yes.toml"], "has port = true, which no setting can be"),
        (["--config", "{folder}/unknown.toml"], "unknown setting paralel; did you mean parallel?"),
        (["--host", "not a host"], "Cannot listen on not a host"),
        (["--port", "{taken}"], "choose another --port"),
        (["--api-key", ""], "API key is empty"),
        (["--api-key", "x", "--api-key-file", "y"], "not both"),
        (["--api-key-file", "missing"], "cannot be read"),
        (["--shutdown-timeout", "inf"], "--shutdown-timeout must be a number from 0"),
        (["--timeout", "nan"], "--timeout"),
        (["--allowed-host", "*foo"], "*foo is no name of a server"),
        (["--allowed-host", "https://example.org"], "without a port"),
        (["--cors-origin", "example.org/"], "example.org/ is no site"),
        (["--parallel", "0"], "parallel"),
        (["--port", "99999"], "port"),
        (["--draft", "nobody"], "nobody"),
    ],
)
def test_what_cannot_be_is_one_sentence(model: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "broken.toml").write_text("x = ")
    (tmp_path / "unknown.toml").write_text("paralel = 3")
    (tmp_path / "yes.toml").write_text("port = true")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [argument.format(folder=tmp_path, taken=port) for argument in arguments]
        done = subprocess.run(
            [sys.executable, "-m", "slipstream", "serve", "-m", str(model), *given],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_log_that_cannot_be_written_costs_the_log_alone(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "slipstream", "serve", "-m", str(model), "--port", str(port)],
            stdin=subprocess.DEVNULL, stderr=full,
        )  # fmt: skip
    try:
        transport = httpx.HTTPTransport(retries=8)  # while it loads
        with httpx.Client(transport=transport, timeout=20) as client:
            for _ in range(3):
                assert client.post(f"http://127.0.0.1:{port}/v1/completions", json=PROMPT).status_code == 200
        process.terminate()
        assert process.wait(20) in (0, 120)  # 120 is Python's own: it could not write what was left
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("host", "allowed", "names"),
    [
        ("127.0.0.1", [], ("localhost", "127.0.0.1", "[::1]", "127.0.0.1")),
        ("127.0.0.2", ["a.example"], ("localhost", "127.0.0.1", "[::1]", "127.0.0.2", "a.example")),
        ("::1", [], ("localhost", "127.0.0.1", "[::1]", "[::1]")),
        ("0.0.0.0", [], ()),
        ("0.0.0.0", ["a.example"], ("localhost", "127.0.0.1", "[::1]", "a.example")),
        ("myhost", [], ()),
    ],
)
def test_on_a_loopback_address_the_server_answers_to_its_own_names(
    host: str, allowed: list[str], names: tuple[str, ...]
) -> None:
    assert _names(host, allowed) == names
