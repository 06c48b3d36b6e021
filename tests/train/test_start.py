"""Training that begins with a head's weights."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra [train]")

from slipstream.errors import SlipstreamError, UnsupportedModelError, UsageError  # noqa: E402
from slipstream.models import read_header, read_model_header, shipped_heads  # noqa: E402
from slipstream.models.fingerprint import fingerprint  # noqa: E402
from slipstream.models.heads import read_head  # noqa: E402
from slipstream.models.shipped_heads import ShippedHead  # noqa: E402
from slipstream.train import loop  # noqa: E402
from slipstream.train.head import MATRICES, VECTORS  # noqa: E402
from slipstream.train.pipeline import Finished  # noqa: E402
from slipstream.train.start import Start, begun_with, chosen_start, output_rows  # noqa: E402
from slipstream.train.target import Weights  # noqa: E402
from slipstream.train.teacher import Teacher, frequent_tokens  # noqa: E402
from slipstream.train.texts import Text  # noqa: E402
from tests.shipping import ship_file  # noqa: E402
from tests.tiny_heads import HeadShape, tiny_head  # noqa: E402
from tests.tiny_models import tiny_llama  # noqa: E402
from tests.train.test_training import CHANGES, Told, loop_parameters, trained, weights_of  # noqa: E402

EXACT = CHANGES | {"quantisation": "F32", "layers": (1, 1, 2)}


@pytest.fixture(scope="module")
def first(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A head in full precision."""
    return trained(tiny, tmp_path_factory.mktemp("first"), changes=EXACT, tokenizer=False)


@pytest.fixture(scope="module")
def path(first: Finished) -> Path:
    assert first.path is not None
    return first.path


@pytest.fixture(scope="module")
def weights(tiny: Path) -> Weights:
    return Weights(read_model_header(tiny))


def begun(tiny: Path, weights: Weights, path: Path, ids: Any) -> dict[str, Any]:
    start = chosen_start(str(path), {}, read_model_header(tiny), weights, lambda _: None)
    assert start is not None
    teacher = Teacher(weights, np.asarray(ids, np.int64), "cpu")
    found: dict[str, Any] = begun_with(start, read_model_header(tiny), weights, teacher)
    return found


def test_all_weights_are_those_of_the_head(tiny: Path, weights: Weights, first: Finished, path: Path) -> None:
    ids = read_head(path).draft_tokens
    found = begun(tiny, weights, path, ids)
    (folder,) = first.work.glob("head-*")
    trained_ones = loop_parameters(folder)
    assert found.keys() == trained_ones.keys() == {*VECTORS, *MATRICES}
    for name, wanted in trained_ones.items():
        assert torch.equal(found[name], wanted.float()), name


def test_rows_of_new_tokens_are_the_target_s(tiny: Path, weights: Weights, first: Finished, path: Path) -> None:
    ids = read_head(path).draft_tokens
    assert ids is not None
    lacking = sorted({*range(weights.vocabulary)} - {*ids.tolist()})[:20]
    wanted = np.array(sorted([*ids[10:].tolist(), *lacking]))
    found = begun(tiny, weights, path, wanted)
    (folder,) = first.work.glob("head-*")
    own = loop_parameters(folder)["output"]
    place = {int(token): row for row, token in enumerate(ids)}
    norm = weights.read(weights.decoder.output_norm.weight)
    for row, token in enumerate(wanted.tolist()):
        if token in place:
            assert torch.equal(found["output"][row], own[place[token]])
        else:
            theirs = weights.read(weights.decoder.output, [token])[0] * norm
            ours = found["output"][row].numpy() * found["output_norm"].numpy()
            alike = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
            assert alike > 0.999, "the same direction"
    old, new = ([row for row, token in enumerate(wanted.tolist()) if (token in place) is had] for had in (True, False))
    sizes = [float(found["output"][rows].square().mean().sqrt()) for rows in (old, new)]
    assert 0.3 < sizes[1] / sizes[0] < 3, "and about the size of the others"


def test_new_rows_have_the_scale_of_the_head_s() -> None:
    chance = np.random.default_rng(0)
    rows, target_norm, head_norm = chance.standard_normal((6, 8)), chance.uniform(1, 2, 8), chance.uniform(1, 2, 8)
    drafted, wanted = np.array([7, 3, 5]), np.array([3, 4, 5, 6, 7, 8])
    given = 0.25 * rows[[4, 0, 2]] * target_norm / head_norm
    made = output_rows(given, drafted, head_norm, rows, wanted, target_norm)
    assert np.allclose(made * head_norm, 0.25 * rows * target_norm, rtol=1e-5)
    unrelated = output_rows(-given, drafted, head_norm, rows, wanted, target_norm)
    assert not unrelated[[1, 3, 5]].any(), "what the target says means nothing to this head"
    nothing = head_norm.copy()
    nothing[3] = 0
    assert np.isfinite(output_rows(given, drafted, nothing, rows, wanted, target_norm)).all()


def test_the_recipe_names_the_file_it_began_with(tiny: Path, path: Path, tmp_path: Path) -> None:
    told = Told()
    finished = trained(tiny, tmp_path, told, start=str(path), changes={**CHANGES, "layers": (1, 1, 2)})
    assert finished.path is not None
    recipe = json.loads(read_header(finished.path).text("slipstream.head.recipe") or "")
    assert (recipe["learning_rate"], recipe["single_share"]) == (1e-3, 0.0), "it keeps what it knows"
    assert recipe["start"] == f"head:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    again = trained(tiny, tmp_path, start=str(finished.path), changes={**CHANGES, "layers": (1, 1, 2)})
    assert again.path is not None
    assert len([*(tmp_path / "work").glob("head-*")]) == 2, "another beginning is another training"


def test_what_answers_do_not_say_a_head_can_still_draft() -> None:
    text = Text(np.array([1, 9, 9, 9, 4, 4, 7], np.int32), 1, "chat", 0.0, 0)
    assert frequent_tokens([text], 8, [2], [3, 4, 5, 6, 8]).tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert frequent_tokens([text], 4, [2], [3, 4, 5, 6]).tolist() == [2, 4, 7, 9]
    assert frequent_tokens([text], 8, [2]).tolist() == [2, 4, 7, 9]


def test_training_goes_on_from_the_head(tiny: Path, path: Path, tmp_path: Path) -> None:
    """A step that is hardly any leaves what was there."""

    def matrix(file: Path | None) -> Any:
        assert file is not None
        (tensor,) = [one for one in read_header(file).tensors if one.name == "blk.0.attn_q.weight"]
        return np.fromfile(file, np.float32, int(np.prod(tensor.shape)), offset=tensor.offset)

    changes = EXACT | {"learning_rate": 1e-6, "weight_decay": 0.0, "epochs": 0.1}
    begun, anew = (
        trained(tiny, tmp_path / name, changes=changes | more, start=start)
        for name, more, start in (("begun", {}, str(path)), ("anew", {"start": "random"}, None))
    )
    assert np.abs(matrix(begun.path) - matrix(path)).max() < 1e-4
    assert np.abs(matrix(anew.path) - matrix(path)).max() > 1e-3


def test_a_head_without_embd_fc_stays_without(tiny: Path, weights: Weights, tmp_path: Path) -> None:
    old = trained(tiny, tmp_path / "old", changes=EXACT | {"direct": False})
    new = trained(tiny, tmp_path / "new", start=str(old.path), changes={**CHANGES, "layers": (1, 1, 2)})
    for one in (old, new):
        assert one.path is not None
        assert not read_head(one.path).has("embd_fc.weight")


def test_layers_are_the_head_s(tiny: Path, path: Path, tmp_path: Path) -> None:
    changes = {name: value for name, value in CHANGES.items() if name != "layers"}
    finished = trained(tiny, tmp_path, start=str(path), changes=changes)
    assert finished.path is not None
    assert read_head(finished.path).target_layers == (1, 1, 2)


def test_training_that_is_stopped_ends_with_the_same_bits(
    tiny: Path, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: dict[str, Any] = {"start": str(path), "changes": CHANGES | {"layers": (1, 1, 2)}}
    whole = trained(tiny, tmp_path / "whole", **more)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    asks = random.Random(6)
    for _ in range(40):
        left = asks.randrange(1, 40)

        def stop() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        finished = trained(tiny, tmp_path, Told(stop), **more)
        if finished.path is not None:
            break
    else:
        finished = trained(tiny, tmp_path, **more)
    assert finished.path is not None
    assert whole.path is not None
    assert weights_of(finished.path) == weights_of(whole.path)
    assert weights_of(whole.path) != weights_of(path)


@pytest.fixture
def shipped(tiny: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The head is the one that comes with Slipstream."""
    ship_file(monkeypatch, path, tiny)
    monkeypatch.setattr(shipped_heads, "SHIPPED", (ShippedHead(path.name, "tiny", fingerprint(tiny), "apache-2.0"),))
    return path


def chosen(tiny: Path, weights: Weights, changes: dict[str, Any], said: list[str]) -> Start | None:
    return chosen_start(None, changes, read_model_header(tiny), weights, said.append)


def test_the_head_that_comes_with_slipstream_is_the_default(tiny: Path, weights: Weights, shipped: Path) -> None:
    said: list[str] = []
    start = chosen(tiny, weights, {}, said)
    assert start is not None
    assert start.head.header.path == shipped
    assert said == ["Training begins with the head that comes with Slipstream; --set start=random begins anew."]
    assert chosen(tiny, weights, {"layers": (1, 1, 2)}, said) is not None
    for anew in ("target", "random"):
        assert chosen(tiny, weights, {"start": anew}, said) is None


def test_what_is_wrong_with_it_is_said_and_training_begins_as_the_target(
    tiny: Path, weights: Weights, shipped: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    assert chosen(tiny, weights, {"layers": (1, 1, 1)}, said) is None
    monkeypatch.setattr(ShippedHead, "path", property(lambda one: tmp_path / "gone.gguf"))
    assert chosen(tiny, weights, {}, said) is None
    assert all(one.startswith("Training does not begin with the head that comes with Slipstream: ") for one in said)
    assert "has layers 1,1,2 and 1,1,1 was asked for; leave --set layers out" in said[0]
    assert "is not there; install Slipstream again" in said[1]


def test_other_targets_begin_as_themselves(shipped: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", seed=4)
    said: list[str] = []
    assert chosen(other, Weights(read_model_header(other)), {}, said) is None
    assert said == []


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"feed_forward": 32}, "feed-forward size is 32 and must be"),
        ({"head_size": 96}, "head size is 96 and must be"),
        ({"norm_before_fc": False}, "norm_before_fc is False and must be True"),
        ({"norm_before_residual": True}, "norm_before_residual is True and must be False"),
        ({"own_embedding": True}, "it has a token_embd.weight of its own"),
        ({"extra": {"eagle3.rope.freq_base": 500000.0}}, "rope.freq_base is 500000.0 and must be 10000.0"),
    ],
)
def test_a_head_that_is_built_otherwise_is_refused(
    tiny: Path, weights: Weights, tmp_path: Path, more: dict[str, Any], sentence: str
) -> None:
    fitting = {name: getattr(weights.sizes, name) for name in ("heads", "key_value_heads", "head_size", "feed_forward")}
    extra = more.pop("extra", None)
    shape = HeadShape(**{"norm_before_fc": True, **fitting, **more})
    head = tiny_head(tmp_path / "other.gguf", tiny, shape, extra=extra)
    with pytest.raises(UnsupportedModelError, match=sentence) as refused:
        chosen_start(str(head), {}, read_model_header(tiny), weights, lambda _: None)
    assert "begin anew with --set start=random" in str(refused.value)


def test_what_cannot_begin_a_training_is_a_sentence(tiny: Path, weights: Weights, path: Path, tmp_path: Path) -> None:
    header = read_model_header(tiny)

    def refused(given: str, changes: dict[str, Any]) -> str:
        with pytest.raises(SlipstreamError) as error:
            chosen_start(given, changes, header, weights, lambda _: None)
        return str(error.value)

    assert "give one of them" in refused(str(path), {"start": "random"})
    assert "has layers 1,1,2 and 1,1,1 was asked for" in refused(str(path), {"layers": (1, 1, 1)})
    assert "has direct true and false was asked for" in refused(str(path), {"direct": False})
    assert "is no head; give --from the file of a head" in refused(str(tiny), {})
    assert "There is no file" in refused(str(tmp_path / "nothing.gguf"), {})


def test_a_digest_cannot_be_given_by_hand(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="start must be random or target"):
        trained(tiny, tmp_path, changes=CHANGES | {"start": "head:00"})


def test_a_head_without_the_vocabulary_is_smaller_and_drafts(tiny: Path, path: Path, tmp_path: Path) -> None:
    from slipstream import Engine

    header = read_header(path)
    assert not any(key.startswith("tokenizer.") for key in header.metadata)
    with Engine.load(tiny, draft=path, speculation="on") as engine:
        drafted = engine.generate("the thing", max_tokens=12, temperature=0)
        with engine.sharing(draft=None) as plain:
            assert plain.generate("the thing", max_tokens=12, temperature=0).tokens == drafted.tokens
    assert drafted.statistics.tested > 0
