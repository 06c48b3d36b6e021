"""Loading, refusing, one forward's limits, and giving everything back."""

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slipstream.core.protocols import Segment
from slipstream.errors import (
    ContextLimitError,
    ModelFileError,
    RuntimeUnavailableError,
    SlipstreamError,
    UnsupportedModelError,
    UsageError,
)
from slipstream.runtime import load_llamacpp
from slipstream.runtime.llamacpp import LlamaCppModel, context
from tests.runtime.helpers import assert_same, compute, feed
from tests.tiny_models import SMALL, byte_level_bpe, tiny_llama

LOGGED = 0.02 * 2**20
"""The library logs sizes in hundredths of a MiB, and there may be two caches."""


def load(path: Path, **options: Any) -> LlamaCppModel:
    return load_llamacpp(path, **({"context_length": 64, "threads": 1} | options))


def test_what_a_model_says_of_itself(models: dict[str, LlamaCppModel]) -> None:
    for name in ("llama", "window"):
        assert models[name].capabilities.rollback
        assert models[name].notice is None
    recurrent = models["recurrent"]
    assert not recurrent.capabilities.rollback
    assert recurrent.notice == (
        "recurrent.gguf is a recurrent model and cannot take tokens back, so it decodes plainly."
    )
    llama = models["llama"]
    assert (llama.name, llama.runtime) == ("llama.gguf", "llamacpp")
    assert (llama.context_length, llama.max_rows) == (256, 64)
    assert not llama.capabilities.trees
    assert not llama.capabilities.bit_exact_rows


def test_memory_has_weights_cache_and_buffers(models: dict[str, LlamaCppModel], files: dict[str, Path]) -> None:
    model = models["llama"]
    parts = model.memory_parts
    keys_and_values = 2 * SMALL.layers * SMALL.keys * 2  # bytes a token in f16
    assert parts["kv_cache"] == pytest.approx(3 * 256 * keys_and_values, abs=LOGGED)
    assert 0.9 * files["llama"].stat().st_size < parts["weights"] <= files["llama"].stat().st_size
    assert parts["buffers"] > 64 * model.vocabulary.size * 4  # logits of a full batch
    assert model.memory() == sum(parts.values())
    # Full size for the sliding window too: that is what lets it roll back.
    assert models["window"].memory_parts["kv_cache"] == pytest.approx(parts["kv_cache"], abs=LOGGED)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "bf16", "f32"])
def test_cache_types(files: dict[str, Path], kind: str) -> None:
    model = load(files["llama"], context_length=2048, max_sequences=4, kv_type_k=kind, kv_type_v=kind)
    plain = load(files["llama"], context_length=2048, max_sequences=4)
    bits = {"q8_0": 8.5, "q4_0": 4.5, "bf16": 16, "f32": 32}[kind]
    share = model.memory_parts["kv_cache"] / plain.memory_parts["kv_cache"]
    assert share == pytest.approx(bits / 16, abs=0.01)
    session = model.open_session()
    feed(model, session, [40, 41, 42])
    model.close()
    plain.close()


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_flash_attention_changes_little(files: dict[str, Path], model: LlamaCppModel, flash_attention: str) -> None:
    other = load(files["llama"], flash_attention=flash_attention)
    left, right = model.open_session(), other.open_session()
    here, there = compute(model, left, [40, 41, 42]), compute(other, right, [40, 41, 42])
    np.testing.assert_allclose(here, there, atol=0.02)  # other roundings, as without it values are summed in f16
    left.close()
    other.close()


def test_default_context_is_what_the_model_was_trained_for(files: dict[str, Path], tmp_path: Path) -> None:
    model = load_llamacpp(tiny_llama(tmp_path / "short.gguf", context_length=100), threads=1)
    assert model.context_length == 100  # the library pads to 256; the promise does not
    session = model.open_session()
    feed(model, session, [40] * 100)
    with pytest.raises(ContextLimitError, match="holds 100 tokens, 100 are in use and 1 more"):
        model.forward([Segment(session, [40])])
    model.close()


# Refusals. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"llama.attention.causal": False}, "is an embedding model"),
        ({"llama.pooling_type": 1}, "is an embedding model"),
        ({"general.type": "adapter"}, "is a LoRA adapter"),
        ({"general.type": "mmproj"}, "is a vision projector"),
        ({"tokenizer.ggml.model": "no_vocab", "llama.vocab_size": 271}, "has no vocabulary"),
        ({"tokenizer.ggml.model": "abacus"}, "has a vocabulary that the installed llama.cpp does not know"),
        ({"tokenizer.ggml.pre": "martian"}, "has a vocabulary that the installed llama.cpp does not know"),
    ],
)
def test_models_that_cannot_generate(tmp_path: Path, extra: dict[str, Any], says: str) -> None:
    path = rewritten(tiny_llama(tmp_path / "m.gguf", extra={}), tmp_path / "changed.gguf", extra)
    with pytest.raises(UnsupportedModelError, match=says) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def rewritten(source: Path, destination: Path, extra: dict[str, Any]) -> Path:
    """The same tiny llama with other metadata; keys that the writer sets itself are taken from `extra`."""
    from dataclasses import replace

    kind = byte_level_bpe()
    if (model := extra.pop("tokenizer.ggml.model", None)) is not None:
        kind = replace(kind, model=model, merges=[] if model == "no_vocab" else kind.merges)
    pre = extra.pop("tokenizer.ggml.pre", None)
    tiny_llama(destination, vocabulary=kind, extra=extra)
    if pre is not None:  # a name of the same length as the writer's, changed in place
        data = destination.read_bytes()
        key = b"tokenizer.ggml.pre"
        at = data.index(b"gpt-2", data.index(key))
        destination.write_bytes(data[:at] + pre[:5].encode() + data[at + 5 :])
    return destination


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "new.gguf")
    data = path.read_bytes()
    key = data.index(b"llama", data.index(b"general.architecture"))
    path.write_bytes(data[:key] + b"zebra" + data[key + 5 :])
    with pytest.raises(UnsupportedModelError, match=r"architecture 'zebra', which the installed llama.cpp does not"):
        load(path)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelFileError, match="truncated"):
        load(path)
    with pytest.raises(ModelFileError, match="no file"):
        load(tmp_path / "missing.gguf")


def test_a_missing_tensor_is_refused_in_the_librarys_words(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "odd.gguf", extra={"llama.block_count": 3})
    with pytest.raises(ModelFileError, match=r"llama.cpp cannot load .*odd.gguf"):
        load(path)


def test_a_cache_type_that_does_not_divide_the_heads_is_a_usage_error(tmp_path: Path) -> None:
    error = context._context_error(
        "m.gguf",
        SimpleNamespace(kv_type_k="q8_0", kv_type_v="f16"),
        64,
        "K cache type q8_0 does not divide",  # type: ignore[arg-type]
    )
    assert isinstance(error, UsageError)


@pytest.mark.parametrize(
    ("reason", "kind", "says"),
    [
        ("unknown model architecture: 'x'", UnsupportedModelError, "architecture 'x'"),
        ("error loading model vocabulary: unknown pre-tokenizer type: 'y'", UnsupportedModelError, "vocabulary"),
        ("unable to allocate CUDA0 buffer", RuntimeUnavailableError, "not enough memory"),
        ("tensor 'blk.1' is missing", ModelFileError, "tensor 'blk.1' is missing"),
    ],
)
def test_load_errors(reason: str, kind: type[SlipstreamError], says: str) -> None:
    error = context._load_error(SimpleNamespace(__version__="1"), Path("m.gguf"), reason)
    assert type(error) is kind
    assert says in str(error)


@pytest.mark.parametrize(
    ("encoder", "diffusion", "says"), [(True, False, "encoder-decoder"), (False, True, "diffusion")]
)
def test_models_of_other_kinds(encoder: bool, diffusion: bool, says: str) -> None:
    library = SimpleNamespace(llama_model_has_encoder=lambda _: encoder, llama_model_is_diffusion=lambda _: diffusion)
    with pytest.raises(UnsupportedModelError, match=says):
        context._check_generates(library, None, "m.gguf")


# One forward. ------------------------------------------------------------------------------------


def test_more_rows_than_max_rows(model: LlamaCppModel) -> None:
    session = model.open_session()
    with pytest.raises(UsageError, match="65 rows in one forward are more than the 64"):
        model.forward([Segment(session, [40] * 65)])
    session.close()


def test_an_empty_batch_and_an_empty_segment(model: LlamaCppModel) -> None:
    assert model.forward([]) == []
    session = model.open_session()
    (rows,) = model.forward([Segment(session, [])])
    with pytest.raises(AssertionError):
        rows.logits(0)
    session.close()


def test_trees_are_refused_and_chains_with_parents_are_not(model: LlamaCppModel) -> None:
    session = model.open_session()
    with pytest.raises(AssertionError, match="chains only"):
        model.forward([Segment(session, [40, 41, 42], parents=[-1, 0, 0])])
    assert session.length == 0
    model.forward([Segment(session, [40, 41, 42], parents=[-1, 0, 1])])
    session.commit([0, 1, 2])
    assert session.length == 3
    session.close()


@pytest.mark.parametrize("token", [-1, 100_000])
def test_a_token_outside_the_vocabulary(model: LlamaCppModel, token: int) -> None:
    session = model.open_session()
    feed(model, session, [40])
    with pytest.raises(RuntimeUnavailableError, match=r"failed to compute 2 rows of llama.gguf"):
        model.forward([Segment(session, [41, token])])
    assert session.length == 1
    feed(model, session, [41])
    session.close()


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (1, ContextLimitError, "has no room for 2 more tokens"),
        (2, RuntimeUnavailableError, "stopped computing 2 rows"),
        (-3, RuntimeUnavailableError, "failed to compute 2 rows of llama.gguf \\(code -3"),
    ],
)
def test_what_the_library_returns(
    model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[SlipstreamError], says: str
) -> None:
    session = model.open_session()
    before = feed(model, session, [40, 41])
    monkeypatch.setattr(model._llama, "llama_decode", lambda *_: code)
    with pytest.raises(kind, match=says):
        model.forward([Segment(session, [42, 43])])
    monkeypatch.undo()
    assert session.length == 2
    session.truncate(0)
    assert_same(feed(model, session, [40, 41]), before)
    session.close()


def test_a_session_of_another_model(models: dict[str, LlamaCppModel]) -> None:
    session = models["window"].open_session()
    with pytest.raises(AssertionError, match="another model"):
        models["llama"].forward([Segment(session, [40])])
    session.close()


# Giving back. ------------------------------------------------------------------------------------


def test_a_closed_model_says_so(files: dict[str, Path]) -> None:
    model = load(files["llama"])
    session = model.open_session()
    model.close()
    model.close()
    for use in (model.open_session, lambda: model.forward([])):
        with pytest.raises(RuntimeUnavailableError, match="has been closed"):
            use()
    session.close()


def test_a_dropped_model_is_freed(files: dict[str, Path]) -> None:
    model = load(files["llama"])
    free = model._free
    del model
    gc.collect()
    assert not free.alive


LOADS = """
import ctypes, sys
from pathlib import Path
from slipstream.core.feed import feed
from slipstream.runtime.llamacpp import load_llamacpp

def resident_bytes():  # without what the C library keeps for the next allocation
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def once():
    cache = {"context_length": 2048, "max_sequences": 8, "kv_type_k": "f32", "kv_type_v": "f32"}
    model = load_llamacpp(sys.argv[1], threads=1, **cache)
    session = model.open_session()
    for _ in range(4):
        for _ in feed(model, session, [40] * 500):
            pass
    model.close()

for _ in range(3):
    once()
before = resident_bytes()
for _ in range(20):
    once()
print(resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_again_and_again_leaks_nothing(files: dict[str, Path]) -> None:
    """20 loads, each with a cache of 8 MiB that is written, may not grow a process by half of one.

    A process of its own: in one that thousands of tests have used, freed memory is in pieces and grows by chance.
    """
    command = [sys.executable, "-c", LOADS, str(files["llama"])]
    grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(grown) < 4 << 20


def test_a_forked_process_is_told_to_load_again(model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's threads do not survive a fork; without this the child waits for them for ever."""
    session = model.open_session()
    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: -1)
        with pytest.raises(RuntimeUnavailableError, match="before a fork"):
            model.forward([Segment(session, [40])])
    session.close()


def test_a_closed_model_s_vocabulary_says_so(tmp_path: Path) -> None:
    closed = load_llamacpp(tiny_llama(tmp_path / "closed.gguf"))
    closed.close()
    with pytest.raises(RuntimeUnavailableError, match="has been closed"):
        closed.vocabulary.tokenize("hi", add_bos=False, parse_special=False)


def test_the_shortest_context_loads(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "short.gguf")
    load_llamacpp(path, context_length=2).close()
    with pytest.raises(UsageError, match="from 2 to"):
        load_llamacpp(path, context_length=1)
