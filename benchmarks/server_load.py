#!/usr/bin/env python3
"""Many clients at once: `slipstream serve` against llama-server of the same llama.cpp, on the same file.

    scripts/bench server_load [--targets wide 135M] [--clients 1 2 4 8 16] [--requests 2] [--tokens 64] [--turns 1]
                              [--alone] [--out FILE]

Every client sends chat requests one after the other and reads the streams; prompts of several kinds, other ones for
each request. Quoted per setting and number of clients: tokens per second of all clients together, medians of the time
per token (from the first token of an answer to its last) and of the time to the first token, and the share of verified
tokens that were drafted; then what `auto` makes of `off`'s tokens per second, turn by turn. Servers take turns, in
another order each turn. --alone leaves llama-server out.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from time import monotonic, perf_counter, sleep
from typing import Any

import httpx

from benchmarks.llama_server import LlamaServer
from benchmarks.peer import PeerError, ensure_server
from benchmarks.records import Record, Recorder, describe, machine, read_records
from benchmarks.rig import rig_file
from slipstream.measure.prompts import shipped_prompts
from slipstream.runtime.threads import default_threads

TARGETS = {"wide": "wide Q4_0", "135M": "SmolLM2-135M Q4_0"}
DRAFT = "SmolLM2-135M Q4_1"
KINDS = ("chat", "code", "summary", "maths", "prose")
CONTEXT = 1024
Messages = list[dict[str, Any]]
OURS_AUTO, OURS_OFF = "slipstream auto", "slipstream off"
THEIRS = ("llama-server", "llama-server, drafts of 3")


@contextmanager
def slipstream(model: Path, draft: str, parallel: int, speculation: str) -> Iterator[str]:
    """A running server; gives its address."""
    command = [
        sys.executable, "-m", "slipstream", "serve", "-m", str(model), "--draft", draft, "--port", "0",
        "--parallel", str(parallel), "--ctx", str(CONTEXT), "--speculation", speculation, "--max-queue", "1000",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield _address(process)
    finally:
        process.terminate()
        process.wait()


def _address(process: "subprocess.Popen[str]") -> str:
    """What the server says that it listens on; the rest of its log is thrown away."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://\S+", line):
            Thread(target=lambda pipe: all(True for _ in pipe), args=(process.stderr,), daemon=True).start()
            return found.group()
    raise PeerError("slipstream serve did not start.")


async def ask(client: httpx.AsyncClient, messages: Messages, seed: int, tokens: int) -> Record:
    """One streamed answer."""
    body = {
        "model": "any", "messages": messages, "max_tokens": tokens, "seed": seed,
        "temperature": 0.7, "top_p": 0.95, "min_p": 0.05, "top_k": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    started, first, last, usage, drafted = perf_counter(), 0.0, 0.0, 0, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as stream:
        if stream.status_code != 200:
            raise PeerError((await stream.aread()).decode())
        async for line in stream.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if chunk.get("error"):
                raise PeerError(chunk["error"]["message"])
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                last = perf_counter()
                first = first or last
            usage = (chunk.get("usage") or {}).get("completion_tokens", usage)
            drafted = chunk.get("timings", {}).get("draft_n", drafted)
    last = last or perf_counter()
    return {
        "tokens": usage, "drafted": drafted, "first": (first or last) - started,
        "each": (last - first) / max(usage - 1, 1) if first else 0.0,
    }  # fmt: skip


async def crowd(
    url: str, clients: int, prompts: Sequence[Messages], requests: int, tokens: int
) -> tuple[float, list[Record]]:
    """(seconds, answers) of so many clients with so many requests each, a connection for every one.

    A server may close one that is kept just when the next request is sent.
    """
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=900, limits=limits) as client:

        async def one(number: int) -> list[Record]:
            places = range(number * requests, (number + 1) * requests)
            return [await ask(client, prompts[place % len(prompts)], place, tokens) for place in places]

        started = perf_counter()
        answers = await asyncio.gather(*(one(number) for number in range(clients)))
        return perf_counter() - started, [answer for several in answers for answer in several]


def measure(name: str, options: argparse.Namespace, recorder: Recorder) -> None:
    """All servers in turn at every number of clients."""
    target, draft, most = rig_file(TARGETS[name]), rig_file(DRAFT), max(options.clients)
    drafts = f"suffix+{draft}" if name == "wide" else "suffix"
    prompts = [[dict(message) for message in prompt.messages] for prompt in shipped_prompts(KINDS, 6)]
    with ExitStack() as stack:
        urls = {
            OURS_AUTO: stack.enter_context(slipstream(target, drafts, most, "auto")),
            OURS_OFF: stack.enter_context(slipstream(target, "none", most, "off")),
        }
        shared = {"threads": default_threads(), "context": CONTEXT * most, "slots": most}
        for setting, length in () if options.alone else zip(THEIRS, (0, 3), strict=True):
            if length == 0 or name == "wide":
                program = ensure_server()
                more: dict[str, Any] = {"draft": draft, "draft_tokens": length} if length else {}
                urls[setting] = stack.enter_context(LlamaServer(program, target, **shared, **more)).address
        for url in urls.values():
            asyncio.run(crowd(url, 1, prompts, 1, 16))
        for turn in range(options.turns):
            for clients in options.clients:
                for setting, url in sorted(urls.items(), reverse=turn % 2 == 1):
                    shift = (turn * len(options.clients) + clients) % len(prompts)
                    seconds, answers = asyncio.run(
                        crowd(url, clients, prompts[shift:] + prompts[:shift], options.requests, options.tokens)
                    )
                    recorder.add(
                        "crowd",
                        target=name,
                        setting=setting,
                        clients=clients,
                        turn=turn,
                        seconds=seconds,
                        answers=answers,
                    )
                    total = sum(answer["tokens"] for answer in answers)
                    print(f"  {name}, {clients:2} clients, {setting}: {total / seconds:.1f} tok/s", flush=True)
                    sleep(0.2)


def report(records: Sequence[dict[str, Any]]) -> None:
    """A table for each target."""
    print(describe(records[0]))
    crowds = [record for record in records if record["kind"] == "crowd"]
    for target in dict.fromkeys(record["target"] for record in crowds):
        mine = [record for record in crowds if record["target"] == target]
        print(f"\n{target}\n{'':30}{'clients':>8}{'tok/s':>8}{'ms/token':>10}{'first, ms':>11}{'drafted':>9}")
        for setting in dict.fromkeys(record["setting"] for record in mine):
            for clients in dict.fromkeys(record["clients"] for record in mine):
                chosen = [one for one in mine if (one["setting"], one["clients"]) == (setting, clients)]
                answers = [answer for record in chosen for answer in record["answers"]]
                speed = median(sum(a["tokens"] for a in one["answers"]) / one["seconds"] for one in chosen)
                each, first = (median(answer[key] for answer in answers) * 1e3 for key in ("each", "first"))
                drafted = sum(a["drafted"] for a in answers)
                share = drafted / (drafted + sum(a["tokens"] for a in answers))
                print(f"{setting:30}{clients:8}{speed:8.1f}{each:10.1f}{first:11.0f}{share:9.0%}")
        for clients in dict.fromkeys(record["clients"] for record in mine):
            ratios = sorted(_ratios([record for record in mine if record["clients"] == clients]))
            print(f"auto / off, {clients:2} clients: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


def _ratios(crowds: Sequence[Record]) -> Iterator[float]:
    """Tokens per second with `auto` over those with `off`, for each turn."""
    for turn in dict.fromkeys(record["turn"] for record in crowds):
        rates = {
            one["setting"]: sum(answer["tokens"] for answer in one["answers"]) / one["seconds"]
            for one in crowds
            if one["turn"] == turn
        }
        yield rates[OURS_AUTO] / rates[OURS_OFF]


def main() -> None:
    """Measure and report, or report on an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=tuple(TARGETS), default=list(TARGETS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--requests", type=int, default=2, help="of each client")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="without llama-server")
    parser.add_argument("--out", type=Path, help="append raw records to this file")
    parser.add_argument("--report", type=Path, help="print the tables of an earlier run")
    arguments = parser.parse_args()
    if arguments.report:
        report(list(read_records(arguments.report)))
        return
    recorder = Recorder(arguments.out)
    recorder.add("machine", **machine())
    started = monotonic()
    for name in arguments.targets:
        measure(name, arguments, recorder)
    report(recorder.records)
    print(f"{monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
