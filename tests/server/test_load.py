"""Many at once: every text is what it is alone, and everybody is served."""

import asyncio
import resource
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.engine import Engine, GenerationOptions, ModelOptions
from slipstream.grammar import Grammar
from tests.fakes import GatedModel
from tests.server.serving import LetterVocabulary, Served, fake_engine, serving
from tests.tiny_models import tiny_llama

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{0,8}$"}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
REQUESTS, LEAVING = 32, 8
MANY = 500


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a draft model that is a little wrong."""
    folder = tmp_path_factory.mktemp("load")
    return tiny_llama(folder / "target.gguf"), tiny_llama(folder / "draft.gguf", noise=0.1)


def asked(number: int) -> dict[str, Any]:
    """One of four kinds: greedy or not, long prompts and short ones, two choices, a grammar."""
    prompt = f"{number} the thing and " * (1 + 7 * number % 24)
    body: dict[str, Any] = {"prompt": prompt, "seed": number, "max_tokens": 10 + 13 * number % 60}
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"n": 2, "presence_penalty": 0.5},
        {"response_format": FORMAT, "max_tokens": 80},
        {"n": 2, "response_format": FORMAT, "temperature": 1.3, "max_tokens": 80},
    ]
    return body | kinds[number % 4]


def alone(engine: Engine, body: dict[str, Any]) -> list[list[int]]:
    """The tokens of each choice when nobody else asks."""
    options: GenerationOptions = {"seed": body["seed"], "max_tokens": body["max_tokens"]}
    for name in ("temperature", "presence_penalty"):
        if name in body:
            options[name] = body[name]  # type: ignore[literal-required]
    if "response_format" in body:
        options["grammar"] = Grammar.from_json_schema(SCHEMA)
    texts = [engine.generate(body["prompt"], **options).tokens]
    for choice in range(1, body.get("n", 1)):
        generation = engine.prepare(body["prompt"], choice=choice, **options)
        batch = engine.batch()
        batch.add(generation)
        while not batch.finished:
            batch.play_round()
        batch.close()
        texts.append(generation.completion.tokens)
    return texts


@pytest.fixture(scope="module")
def expected(models: tuple[Path, Path]) -> list[list[list[int]]]:
    with Engine.load(models[0], speculation="off", options=ModelOptions(runtime="native", threads=2)) as engine:
        return [alone(engine, asked(number)) for number in range(REQUESTS)]


@pytest.fixture(scope="module", params=["auto", "on"])
def served(models: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[Served]:
    """What drafts as much as pays, and what always drafts."""
    options = ModelOptions(runtime="native", draft_runtime="native", threads=2, max_sequences=6)
    draft = f"suffix+{models[1]}"
    engine = Engine.load(models[0], draft=draft, speculation=request.param, options=options)
    with serving(engine, parallel=6, queue=100) as one:
        yield one


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_every_text_is_token_for_token_what_it_is_alone(
    served: Served, expected: list[list[list[int]]], mode: str
) -> None:
    speculation = {"mode": mode, "details": True}

    async def ask(client: httpx.AsyncClient, number: int) -> list[list[int]]:
        answer = await client.post("/v1/completions", json={**asked(number), "speculation": speculation})
        return [[token["id"] for token in choice["tokens"]] for choice in answer.json()["choices"]]

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        body = {**asked(number), "max_tokens": 500, "stream": True, "speculation": speculation}
        async with client.stream("POST", "/v1/completions", json=body) as stream:
            async for _ in stream.aiter_lines():
                return

    async def everybody() -> list[Any]:
        async with httpx.AsyncClient(base_url=served.url, timeout=120) as client:
            leaving = [leave(client, number) for number in range(LEAVING)]
            asking = [ask(client, number) for number in range(REQUESTS)]
            return (await asyncio.gather(*leaving, *asking))[LEAVING:]

    assert asyncio.run(everybody()) == expected
    drafted = [job.completion.timings.draft_n for job in served.jobs[-REQUESTS:]]
    if mode == "off":
        assert sum(drafted) == 0
    elif served.engine.policy.describe()["name"] == "fixed":
        assert sum(drafted) > 0


@pytest.fixture
def _files() -> Iterator[None]:
    """Both ends of every connection are files of this process."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = 3 * MANY if most == resource.RLIM_INFINITY else min(3 * MANY, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, allowed), most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.mark.usefixtures("_files")
def test_five_hundred_wait_and_are_served_and_one_more_is_told_to_come_back() -> None:
    model = GatedModel(vocabulary=LetterVocabulary(), context_length=512, max_rows=64, max_sessions=2)
    numbers = count()

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        number = next(numbers)
        return await client.post("/v1/completions", json={"prompt": f"{number}", "seed": number, "max_tokens": 4})

    async def everybody(served: Served) -> tuple[list[httpx.Response], httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=served.url, timeout=120, limits=limits) as client:
            asking = [asyncio.ensure_future(ask(client)) for _ in range(MANY + 2)]
            while len(served.jobs) < MANY + 2:
                await asyncio.sleep(0.01)
            late = await client.post("/v1/completions", json={"prompt": "late"})
            model.gate.set()
            return await asyncio.gather(*asking), late

    with serving(fake_engine(2, model), parallel=2, queue=MANY) as served:
        model.gate.clear()
        answers, late = asyncio.run(everybody(served))
        assert served.is_idle
        assert (late.status_code, late.headers["retry-after"]) == (503, "2")
        assert [answer.status_code for answer in answers] == [200] * (MANY + 2)
        with fake_engine() as engine:
            for number in range(0, MANY, 50):
                text = engine.generate(f"{number}", seed=number, max_tokens=4).text
                assert answers[number].json()["choices"][0]["text"] == text
