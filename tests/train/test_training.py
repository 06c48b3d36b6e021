"""Training from end to end on a target of a few hundred kilobytes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra [train]")

from slipstream.core.protocols import Segment  # noqa: E402
from slipstream.errors import StorageError, UsageError  # noqa: E402
from slipstream.models import Vocabulary, compare, read_header, read_model_header  # noqa: E402
from slipstream.runtime.native import load_native  # noqa: E402
from slipstream.train import loop, pipeline  # noqa: E402
from slipstream.train.loop import Report, rate  # noqa: E402
from slipstream.train.pipeline import Asked, Finished, train_drafter  # noqa: E402
from slipstream.train.prompts import shipped_source  # noqa: E402
from slipstream.train.recipe import Recipe  # noqa: E402

CHANGES: dict[str, Any] = {
    "tokens": 1200,
    "answer_tokens": 24,
    "prompt_tokens": 160,
    "vocabulary": 96,
    "batch": 512,
    "pack": 128,
    "epochs": 1.0,
    "layers": (1, 1, 1),
}


class Told:
    """What a training says."""

    def __init__(self, stop: Callable[[], bool] = lambda: False) -> None:
        self.said: list[str] = []
        self.report = Report(self.said.append, lambda *_: None, stop)


def asked(folder: Path, kind: Any = "head", **more: Any) -> Asked:
    values = {"size": None, "disk": 10**9, "seconds": None, "device": "cpu", "threads": 1, "changes": CHANGES}
    return Asked(kind=kind, work=folder / "work", **({"out": folder / f"{kind}.gguf"} | values | more))


def trained(tiny: Path, folder: Path, told: Told | None = None, kind: Any = "head", **more: Any) -> Finished:
    source = shipped_source(0)
    source = source._replace(held_out=source.held_out[:2])
    return train_drafter(tiny, source, asked(folder, kind, **more), (told or Told()).report)


@pytest.fixture(scope="session")
def head(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return trained(tiny, tmp_path_factory.mktemp("head"))


def weights_of(path: Path) -> bytes:
    header = read_header(path)
    return path.read_bytes()[header.data_offset :]


def test_a_head_has_the_layout_of_its_page(tiny: Path, head: Finished) -> None:
    assert head.path is not None
    header, target = read_header(head.path), read_model_header(tiny)
    assert header.architecture == "eagle3"
    shapes = {tensor.name: (tensor.type.name, tensor.shape[::-1]) for tensor in header.tensors}
    assert shapes["fc.weight"] == ("Q8_0", (64, 192))
    assert shapes["enc.output_norm.weight"] == ("F32", (192,))
    assert shapes["blk.0.attn_q.weight"] == ("Q8_0", (64, 128))
    assert shapes["output.weight"] == ("Q8_0", (96, 64))
    assert shapes["d2t"] == ("I64", (96,))
    assert shapes["embd_fc.weight"] == ("Q8_0", (64, 64))
    assert len(shapes) == 16
    assert header.flag("eagle3.norm_before_fc") is True
    assert list(header.metadata["eagle3.target_layers"]) == [1, 1, 1]  # type: ignore[arg-type]
    assert header.integer("eagle3.vocab_size") == len(Vocabulary.from_header(target))
    assert compare(Vocabulary.from_header(target), Vocabulary.from_header(header)) == len(
        Vocabulary.from_header(target)
    )


def test_the_recipe_is_in_the_file(head: Finished) -> None:
    assert head.path is not None
    told = json.loads(read_header(head.path).text("slipstream.head.recipe") or "")
    assert told["tokens"] == 1200
    assert told["answer_tokens_seen"] >= 1200
    assert "PSF-2.0" in told["note"]
    assert told["held_out"] == head.figures
    assert set(told["held_out"]) == {"0", "1"}


def test_ids_that_can_be_drafted_are_different_and_hold_the_end(tiny: Path, head: Finished) -> None:
    assert head.path is not None
    header = read_header(head.path)
    (place,) = [tensor for tensor in header.tensors if tensor.name == "d2t"]
    ids = np.fromfile(head.path, np.int64, 96, offset=place.offset)
    assert len(set(ids)) == 96
    assert Vocabulary.from_header(read_model_header(tiny)).eos_id in ids


def test_training_that_is_stopped_ends_with_the_same_bits(
    tiny: Path, head: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    asks = random.Random(5)
    for _ in range(40):
        left = asks.randrange(1, 60)

        def stop() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        finished = trained(tiny, tmp_path, Told(stop))
        if finished.path is not None:
            break
    else:
        finished = trained(tiny, tmp_path)
    assert finished.path is not None
    assert head.path is not None
    assert weights_of(finished.path) == weights_of(head.path)


OFTEN_SAVED = """
import sys
from slipstream.train import loop
loop.CHECKPOINT_SECONDS = 0.0
from slipstream.cli import main
sys.argv[0] = "slipstream"
main()
"""
"""The command, with a checkpoint after every step: a kill can fall into writing one, and the next goes on from it."""


def test_training_that_is_killed_ends_with_the_same_bits(tiny: Path, head: Finished, tmp_path: Path) -> None:
    """kill -9 at ten random moments, through the command."""
    given = [f"--set={name}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for name, v in CHANGES.items()]
    given = [one for one in given if not one.startswith(("--set=tokens", "--set=epochs"))]
    command = [sys.executable, "-c", OFTEN_SAVED, "train-drafter", str(tiny), "--tokens=1200", "--epochs=1", "-t", "1"]
    command += [*given, "--work", str(tmp_path / "work"), "-o", str(tmp_path / "head.gguf")]
    moments = random.Random(1)
    for _ in range(10):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(2, 7))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert head.path is not None
    assert weights_of(tmp_path / "head.gguf") == weights_of(head.path)


def test_a_damaged_checkpoint_is_a_sentence_and_a_new_beginning(tiny: Path, head: Finished, tmp_path: Path) -> None:
    first = trained(tiny, tmp_path)
    (checkpoint,) = (tmp_path / "work").glob("head-*/checkpoint.bin")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-9])
    told = Told()
    again = trained(tiny, tmp_path, told)
    assert "The checkpoint is damaged; training begins anew." in told.said
    assert first.path is not None
    assert again.path is not None
    assert weights_of(first.path) == weights_of(again.path)


def test_states_that_are_not_kept_change_nothing(tiny: Path, head: Finished, tmp_path: Path) -> None:
    told = Told()
    finished = trained(tiny, tmp_path, told, disk=0)
    assert any("--disk allows more" in sentence for sentence in told.said)
    assert finished.path is not None
    assert head.path is not None
    assert weights_of(finished.path) == weights_of(head.path)


def test_the_loss_falls_and_drafts_are_accepted(tiny: Path, tmp_path: Path) -> None:
    """A target of random weights says hardly anything that can be guessed, but it can be learned by heart."""
    losses: list[float] = []

    def progress(done: int, total: int, what: str) -> None:
        if what.startswith("training"):
            losses.append(float(what.split("loss ")[1].split(",")[0]))

    source = shipped_source(0)._replace(held_out=[])
    changes = CHANGES | {"epochs": 15.0, "vocabulary": 128, "learning_rate": 3e-3, "start": "random"}
    train_drafter(tiny, source, asked(tmp_path, changes=changes), Report(lambda _: None, progress))
    assert losses[-1] < losses[0] - 0.3


def test_a_limit_of_size_decides_how_many_tokens_can_be_drafted(tiny: Path, head: Finished, tmp_path: Path) -> None:
    assert head.path is not None
    most = head.path.stat().st_size + 1000
    finished = trained(tiny, tmp_path, size=most, changes=CHANGES | {"vocabulary": 256})
    assert finished.path is not None
    assert finished.path.stat().st_size <= most
    (output,) = [one for one in read_header(finished.path).tensors if one.name == "output.weight"]
    assert 32 <= output.shape[1] < 128


def test_an_impossible_size_says_what_is_possible(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give a larger --size"):
        trained(tiny, tmp_path, size=20_000)
    with pytest.raises(UsageError, match="give a larger --size"):
        trained(tiny, tmp_path, kind="model", size=10_000)


def test_a_draft_model_computes_what_was_trained(tiny: Path, tmp_path: Path) -> None:
    finished = trained(tiny, tmp_path, kind="model", changes=CHANGES | {"depth": 2, "quantisation": "F32"})
    assert finished.path is not None
    header = read_model_header(finished.path)
    vocabulary = Vocabulary.from_header(read_model_header(tiny))
    assert compare(vocabulary, Vocabulary.from_header(header)) == len(vocabulary)
    (folder,) = (tmp_path / "work").glob("model-*")
    parameters = loop_parameters(folder)
    tokens = list(range(30, 60))
    model = load_native(finished.path, context_length=64, threads=1)
    (rows,) = model.forward([Segment(model.open_session(), tokens)])
    wanted = reference_logits(parameters, tokens, int(header.integer("llama.attention.head_count") or 0))
    ids = drafted_ids(finished.path, parameters["output"])
    found = np.array([rows.logits(row) for row in range(len(tokens))])
    assert np.allclose(found[:, ids], wanted, atol=0.02 * np.abs(wanted).max())
    assert (np.delete(found, ids, axis=1) == 0).all()
    model.close()


def loop_parameters(folder: Path) -> dict[str, Any]:
    import io

    from slipstream.train.files import read_checked

    state: dict[str, Any] = torch.load(io.BytesIO(read_checked(folder / "checkpoint.bin")), weights_only=True)
    parameters: dict[str, Any] = state["parameters"]
    return parameters


def drafted_ids(path: Path, rows: Any) -> list[int]:
    """Where the rows of the output matrix have ended up."""
    (place,) = [tensor for tensor in read_header(path).tensors if tensor.name == "output.weight"]
    stored = np.fromfile(path, np.float32, int(np.prod(place.shape)), offset=place.offset).reshape(place.shape[::-1])
    ids = np.flatnonzero(np.abs(stored).sum(axis=1))
    assert np.array_equal(stored[ids], rows.numpy())
    return ids.tolist()  # type: ignore[no-any-return]


def reference_logits(p: dict[str, Any], tokens: list[int], heads: int) -> Any:
    """The llama of the file in a few lines."""

    def norm(x: Any, weight: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight

    def turned(x: Any) -> Any:
        size = x.shape[-1]
        angles = torch.arange(len(x))[:, None, None] * 10000.0 ** -(torch.arange(0, size, 2) / size)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(-2)

    x = p["token_embd"][torch.tensor(tokens)]
    depth = len({name.split(".")[1] for name in p if name.startswith("blk.")})
    for i in range(depth):
        layer = {name.split(".", 2)[2]: one for name, one in p.items() if name.startswith(f"blk.{i}.")}
        inner = norm(x, layer["attn_norm"])
        q, k, v = ((inner @ layer[f"attn_{n}"].T).unflatten(-1, (heads, -1)) for n in "qkv")
        scores = torch.einsum("qhd,khd->hqk", turned(q), turned(k)) / q.shape[-1] ** 0.5
        scores += torch.full(scores.shape[1:], -torch.inf).triu(1)
        x = x + torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1) @ layer["attn_output"].T
        inner = norm(x, layer["ffn_norm"])
        gate = inner @ layer["ffn_gate"].T
        x = x + (gate * gate.sigmoid() * (inner @ layer["ffn_up"].T)) @ layer["ffn_down"].T
    return (norm(x, p["output_norm"]) @ p["output"].T).numpy()


def test_two_programs_do_not_train_in_one_folder(tiny: Path, tmp_path: Path) -> None:
    from slipstream.models import storage

    work = tmp_path / "work"
    with storage.exclusive(work / "lock", lambda: None), pytest.raises(UsageError, match="Another program trains"):
        trained(tiny, tmp_path)


def test_an_out_that_cannot_be_written_is_told_before_anything_is_computed(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"cannot be written .*; choose another place with --out"):
        trained(tiny, tmp_path, out=tmp_path / "file" / "head.gguf")


def test_there_are_as_many_steps_as_there_is_time_for(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []
    monkeypatch.setattr(loop.Training, "_affordable", lambda self, seconds: planned.append(round(seconds)) or 2)
    trained(tiny, tmp_path, seconds=1000.0)
    told = json.loads(read_header(tmp_path / "head.gguf").text("slipstream.head.recipe") or "")
    assert told["steps"] == 2
    assert 600 < planned[0] <= 1000
    trained(tiny, tmp_path, seconds=1000.0)
    assert len(planned) == 1, "what was planned stays, or learning rates would jump"


def test_the_learning_rate_rises_and_falls() -> None:
    recipe = Recipe("head", "", "")
    rates = [rate(step / 1000, recipe) for step in range(1001)]
    peak = rates.index(max(rates))
    assert 25 <= peak <= 35
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(recipe.final_rate)
    assert pipeline.ANSWER_SHARE < 1
