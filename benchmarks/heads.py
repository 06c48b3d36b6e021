#!/usr/bin/env python3
"""What a head costs beside its target: a step, the reading of committed tokens, and the hidden states it asks for.

    scripts/bench heads [--targets wide 135M] [--drafted 8192] [--repeats 15] [--out FILE]

The head has the target's sizes, Q8_0 and random weights: what it says is noise, what it costs is not. All are timed in
turn. A step should cost about a layer and the head's small output; "bytes" is the share of the target's weights that
it reads.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from benchmarks.records import Recorder, describe, machine
from benchmarks.rig import loaded, rig_file
from slipstream.core.feed import feed
from slipstream.core.protocols import Continuation, Segment
from slipstream.models import GgufHeader, read_model_header
from slipstream.models.gguf import Value
from slipstream.models.gguf_writer import Tensor, stored, write_gguf
from slipstream.models.heads import HeadFile, read_head
from slipstream.runtime.native import NativeModel
from slipstream.runtime.native.head import NativeHead, load_native_head

TARGETS = {"wide": "wide Q4_0", "135M": "SmolLM2-135M Q4_1"}
CONTEXT = 128
"""Tokens in the KV caches."""
ROUND = 4
"""Tokens that a round commits."""

Work = dict[str, Callable[[], object]]


def random_head(path: Path, target: GgufHeader, drafted: int) -> HeadFile:
    """A head of its target's sizes with random weights."""
    name = target.architecture
    width, feed_forward, heads, layers = (
        target.integer(f"{name}.{key}") or 0
        for key in ("embedding_length", "feed_forward_length", "attention.head_count", "block_count")
    )
    key_value_heads = target.integer(f"{name}.attention.head_count_kv") or heads
    size = len(target.metadata["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    keys = width // heads * key_value_heads
    shapes = {
        "fc.weight": (width, 3 * width),
        "blk.0.attn_q.weight": (width, 2 * width),
        "blk.0.attn_k.weight": (keys, 2 * width),
        "blk.0.attn_v.weight": (keys, 2 * width),
        "blk.0.attn_output.weight": (width, width),
        "blk.0.ffn_gate.weight": (feed_forward, width),
        "blk.0.ffn_up.weight": (feed_forward, width),
        "blk.0.ffn_down.weight": (width, feed_forward),
        "output.weight": (drafted, width),
    }
    tensors = [
        stored(name, random.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5), "Q8_0")
        for name, shape in shapes.items()
    ]
    norms = ("blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm", "output_norm")
    tensors += [stored(f"{name}.weight", np.ones(width, np.float32), "F32") for name in norms]
    if drafted < size:
        tensors.append(stored("d2t", np.sort(random.permutation(size)[:drafted]), "I64"))
    metadata: dict[str, Value] = {
        "general.architecture": "eagle3",
        "eagle3.block_count": 1,
        "eagle3.embedding_length": width,
        "eagle3.feed_forward_length": feed_forward,
        "eagle3.attention.head_count": heads,
        "eagle3.attention.head_count_kv": key_value_heads,
        "eagle3.attention.layer_norm_rms_epsilon": 1e-5,
        "eagle3.vocab_size": size,
        "eagle3.target_hidden_size": width,
        "eagle3.target_layers": np.array([2, layers // 2, layers - 3], np.uint32),
    }
    write_gguf(path, metadata, list[Tensor](tensors))
    return read_head(path)


def works(target: NativeModel, head: NativeHead) -> Work:
    """What is timed, by name; nothing of it stays in the sessions."""
    tokens = [(17 * index + 5) % target.vocabulary.size for index in range(CONTEXT)]
    session, own = target.open_session(), head.open_session()
    for _ in feed(target, session, tokens):
        pass
    states = np.random.default_rng(1).standard_normal((CONTEXT, 3 * target.width), np.float32)
    head.go_on([Continuation(own, tokens, states, own=False)])
    own.commit(range(CONTEXT))
    step = Continuation(own, tokens[:1], states[:1, : head.width], own=True)
    read = Continuation(own, tokens[:ROUND], states[:ROUND], own=False)
    return {
        "target": lambda: target.forward([Segment(session, [1])]),
        "target, states kept": lambda: target.forward([Segment(session, [1])], hidden=head.hidden_layers),
        "step": lambda: head.go_on([step]),
        f"reading {ROUND}": lambda: head.go_on([read]),
    }


def timed(work: Work, repeats: int) -> dict[str, list[float]]:
    """Seconds of each, in turn; the first turn warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, call in work.items():
            started = perf_counter()
            call()
            if turn:
                seconds[name].append(perf_counter() - started)
    return seconds


def compare(name: str, arguments: argparse.Namespace, recorder: Recorder) -> None:
    """One target and a head for it."""
    path = rig_file(TARGETS[name])
    header = read_model_header(path)
    with TemporaryDirectory() as folder:
        file = random_head(Path(folder) / "head.gguf", header, arguments.drafted)
        target = loaded(path, "native")
        assert isinstance(target, NativeModel)
        head = load_native_head(file, target, header)
    seconds = timed(works(target, head), arguments.repeats)
    share = (head.memory_parts["weights"] - file.width * 3 * file.target_width) / target.memory_parts["weights"]
    recorder.add("costs", target=name, drafted=arguments.drafted, seconds=seconds, bytes=share)
    plain = median(seconds["target"])
    figures = ", ".join(
        f"{what} {1e3 * median(taken):.2f} ms ({median(taken) / plain:.1%})" for what, taken in seconds.items()
    )
    print(f"{name}, {arguments.drafted} tokens drafted: {figures}; bytes {share:.1%}", flush=True)
    head.close()
    target.close()


def main() -> None:
    """Time heads of both targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--drafted", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    recorder = Recorder(arguments.out)
    recorder.add("machine", **machine())
    print(describe(recorder.records[0]))
    for name in arguments.targets:
        compare(name, arguments, recorder)


if __name__ == "__main__":
    main()
