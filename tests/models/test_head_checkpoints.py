"""Published heads become files of ours: the formats of SafeAILab and SpecForge, and of `speculators`."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.errors import ModelFileError, RuntimeUnavailableError, UnsupportedModelError
from slipstream.models import read_header
from slipstream.models.gguf import GgufHeader
from slipstream.models.head_checkpoints import checkpoint_at, convert, converted_name, neighbours
from slipstream.models.heads import HeadFile, read_head
from tests.tiny_heads import SMALL_HEAD, Facts, head_arrays, head_config, permuted, tiny_checkpoint, write_safetensors
from tests.tiny_models import GROUPED, tiny_llama


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> GgufHeader:
    path = tiny_llama(tmp_path_factory.mktemp("target") / "target.gguf", shape=replace(GROUPED, layers=6))
    return read_header(path)


def converted(folder: Path, target: GgufHeader) -> HeadFile:
    convert(folder, target, folder.with_suffix(".gguf"))
    return read_head(folder.with_suffix(".gguf"))


def with_config(folder: Path, target: GgufHeader, **changes: Any) -> Path:
    """A good checkpoint with other values in its configuration; None leaves one out."""
    config = {**head_config(Facts.of(target)), **changes}
    config = {key: value for key, value in config.items() if value is not None}
    return tiny_checkpoint(folder, target.path, config=config)


def test_specforge_s(tmp_path: Path, target: GgufHeader) -> None:
    head = converted(tiny_checkpoint(tmp_path / "head", target.path), target)
    assert head.target_layers == (1, 2, 6), "it counts outputs of layers, and a file of ours inputs"
    assert (head.drafted, head.vocabulary, head.norm_before_residual) == (150, 271, False)
    assert head.header.text("general.name") == "head"
    assert {tensor.type.name for tensor in head.header.tensors if len(tensor.shape) == 2} == {"Q8_0"}
    differences = head_arrays(Facts.of(target))["d2t"]
    assert head.draft_tokens is not None
    assert head.draft_tokens.tolist() == [place + int(one) for place, one in enumerate(differences)]


def test_safeailab_s_does_not_say_its_layers(tmp_path: Path, target: GgufHeader) -> None:
    head = converted(with_config(tmp_path / "head", target, eagle_config=None), target)
    assert head.target_layers == (2, 3, 3)
    few = read_header(tiny_llama(tmp_path / "few.gguf", shape=GROUPED))
    with pytest.raises(UnsupportedModelError, match=r"few.gguf has 3, too few for the usual choice"):
        convert(tmp_path / "head", few, tmp_path / "few-head.gguf")


def test_that_of_speculators(tmp_path: Path, target: GgufHeader) -> None:
    facts = Facts.of(target)
    shape = replace(SMALL_HEAD, norm_before_residual=True, norm_before_fc=True, own_embedding=True)
    layer = head_config(facts, shape)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": layer.pop("draft_vocab_size"),
        "norm_before_residual": True,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": [2, 3, 4],
        "target_hidden_size": None,
        "transformer_layer_config": {key: one for key, one in layer.items() if "norm_before" not in key},
    }
    arrays = {name.replace("midlayer.", "layers.0."): one for name, one in head_arrays(facts, shape).items()}
    arrays["verifier_norm.weight"] = np.ones(64, np.float32)
    head = converted(tiny_checkpoint(tmp_path / "head", target.path, config=config, arrays=arrays), target)
    assert head.target_layers == (2, 3, 4), "it counts inputs, as we do"
    assert (head.norm_before_residual, head.norm_before_fc, head.has("token_embd.weight")) == (True, True, True)


def test_weights_in_several_files(tmp_path: Path, target: GgufHeader) -> None:
    folder, arrays = tiny_checkpoint(tmp_path / "head", target.path), head_arrays(Facts.of(target))
    (folder / "model.safetensors").unlink()
    names = list(arrays)
    for number, part in enumerate((names[:5], names[5:])):
        write_safetensors(folder / f"model-{number}.safetensors", {name: arrays[name] for name in part})
    converted(folder, target)
    write_safetensors(folder / "more.safetensors", {"norm.weight": arrays["norm.weight"]})
    with pytest.raises(ModelFileError, match=r"more.safetensors .* it has the tensor 'norm.weight' twice"):
        converted(folder, target)


def test_rotary_pairs_become_neighbours() -> None:
    matrix = np.random.default_rng(0).standard_normal((128, 32), np.float32)
    assert np.array_equal(neighbours(matrix, 4), permuted(matrix, 32))
    assert neighbours(matrix, 4)[:4].tolist() == matrix[[0, 16, 1, 17]].tolist()


def test_llama_3_s_scaling(tmp_path: Path, target: GgufHeader) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    head = converted(with_config(tmp_path / "head", target, rope_scaling=scaling), target)
    (tensor,) = [one for one in head.header.tensors if one.name == "rope_freqs.weight"]
    factors = np.fromfile(head.header.path, np.float32, 16, offset=tensor.offset)
    assert factors[0] == 1
    assert factors[-1] == 8
    assert (np.diff(factors) >= 0).all()
    assert 1 < factors[(factors > 1) & (factors < 8)][0] < 8
    scaling["high_freq_factor"] = 1.0
    with pytest.raises(ModelFileError, match="a high_freq_factor above its low_freq_factor"):
        converted(with_config(tmp_path / "other", target, rope_scaling=scaling), target)


def test_linear_scaling_and_newer_parameters(tmp_path: Path, target: GgufHeader) -> None:
    head = converted(with_config(tmp_path / "a", target, rope_scaling={"type": "linear", "factor": 4.0}), target)
    assert head.header.metadata["eagle3.rope.scaling.factor"] == 4
    parameters = {"rope_type": "default", "rope_theta": 500000.0}
    head = converted(with_config(tmp_path / "b", target, rope_theta=None, rope_parameters=parameters), target)
    assert head.header.metadata["eagle3.rope.freq_base"] == 500000


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_hidden_layers": 2}, "its num_hidden_layers is 2 and must be 1"),
        ({"hidden_act": "gelu"}, "its hidden_act is gelu and must be silu"),
        ({"hidden_size": "64"}, "its hidden_size is 64 and must be a whole number"),
        ({"hidden_size": 100}, "its hidden_size is 100 and must be a multiple of 32"),
        ({"rms_norm_eps": 0}, "its rms_norm_eps is 0 and must be a number above 0"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "its rope_scaling is yarn and must be none, linear or llama3"),
        ({"rope_scaling": [1]}, "its rope_scaling is"),
        ({"norm_before_residual": "yes"}, "its norm_before_residual is yes and must be true or false"),
        ({"vocab_size": None}, "its vocab_size is None"),
        ({"intermediate_size": 64}, "its blk.0.ffn_gate.weight is Q8_0 96 x 64 and must be 64 x 64"),
        ({"num_attention_heads": 8}, "its blk.0.attn_q.weight has 128 rows and must have 256"),
        ({"vocab_size": 270}, "d2t|vocab_size"),
        ({"target_hidden_size": 96}, "fc.weight is Q8_0 64 x 192 and must be 64 x 288"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 7]}, "must be 3 of the target's 6 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "must be 3 of the target's 6 layers"),
        ({"eagle_aux_hidden_state_layer_ids": "all"}, "must be 3 of the target's 6 layers"),
        ({"speculators_model_type": "dflash"}, "is not an EAGLE-3 head's: its speculators_model_type is 'dflash'"),
        ({"draft_vocab_size": None}, "and its draft_vocab_size None; give the folder of a head"),
    ],
)
def test_settings_that_are_not_usable_are_named(
    tmp_path: Path, target: GgufHeader, changes: dict[str, Any], told: str
) -> None:
    folder = with_config(tmp_path / "head", target, **changes)
    with pytest.raises(ModelFileError, match=told) as caught:
        converted(folder, target)
    assert str(folder) in str(caught.value)
    assert ".gguf is" not in str(caught.value), "the user's file is named, not ours"


def test_a_configuration_that_is_none(tmp_path: Path, target: GgufHeader) -> None:
    folder = tiny_checkpoint(tmp_path / "head", target.path)
    for content, told in (("{", "is no JSON file"), ("[1]", "is no model's configuration"), ("[" * 99_999, "no JSON")):
        (folder / "config.json").write_text(content, "utf-8")
        with pytest.raises(ModelFileError, match=told):
            converted(folder, target)


@pytest.mark.parametrize(
    ("name", "numbers", "told"),
    [
        ("midlayer.self_attn.q_norm.weight", np.ones(32, np.float32), "and heads have none of that name"),
        ("midlayer.self_attn.q_proj.bias", np.zeros(128, np.float32), "and heads have none of that name"),
        ("fc.bias", np.zeros(64, np.float32), "and heads have none of that name"),
        ("norm.weight", np.ones((2, 2, 2), np.float32), "is float32 with 3 dimensions"),
        ("norm.weight", np.ones(64, np.int64), "is int64 with 1 dimensions and must be floating-point"),
        ("norm.weight", np.full(64, np.nan, np.float32), "has numbers that are infinite, huge or none"),
        ("fc.weight", np.full((64, 192), np.inf, np.float32), "has numbers that are infinite, huge or none"),
        ("fc.weight", np.ones((64, 190), np.float32), "has rows of 190 numbers"),
        ("d2t", np.zeros(150, np.float32), "its d2t is float32"),
        ("d2t", np.full(150, 300), "its d2t is a list with the token"),
        ("midlayer.mlp.up_proj.weight", None, "blk.0.ffn_up.weight is missing"),
    ],
)
def test_tensors_that_are_not_usable_are_named(
    tmp_path: Path, target: GgufHeader, name: str, numbers: Any, told: str
) -> None:
    arrays = {**head_arrays(Facts.of(target)), name: numbers}
    arrays = {key: one for key, one in arrays.items() if one is not None}
    folder = tiny_checkpoint(tmp_path / "head", target.path, arrays=arrays)
    with pytest.raises(ModelFileError, match=told):
        converted(folder, target)


def test_half_precision_that_overflows_is_refused(tmp_path: Path, target: GgufHeader) -> None:
    arrays = head_arrays(Facts.of(target))
    arrays["fc.weight"][3, 5] = 1e6
    with np.errstate(over="ignore"):
        folder = tiny_checkpoint(tmp_path / "head", target.path, arrays=arrays, kind="F16")
    with pytest.raises(ModelFileError, match="infinite, huge or none"):
        converted(folder, target)


def test_a_checkpoint_is_known_by_any_of_its_files(tmp_path: Path, target: GgufHeader) -> None:
    folder = tiny_checkpoint(tmp_path / "head", target.path)
    for path in (folder, folder / "model.safetensors", folder / "config.json", folder / "pytorch_model.bin"):
        assert checkpoint_at(path) == folder
    assert checkpoint_at(target.path) is None
    assert checkpoint_at(tmp_path) is None
    assert checkpoint_at(tmp_path / "model.safetensors") is None
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"no \*.safetensors and no pytorch_model.bin"):
        convert(folder, target, tmp_path / "it.gguf")


def test_what_is_kept_is_named_after_all_that_it_depends_on(tmp_path: Path, target: GgufHeader) -> None:
    folder = tiny_checkpoint(tmp_path / "head", target.path)
    names = [converted_name(folder, target)]
    other = read_header(tiny_llama(tmp_path / "other.gguf", shape=replace(GROUPED, layers=6), seed=1))
    names.append(converted_name(folder, other))
    tiny_checkpoint(folder, target.path, seed=1)
    names.append(converted_name(folder, target))
    with_config(folder, target, rope_theta=20000.0)
    names.append(converted_name(folder, target))
    assert len(set(names)) == 4


class Evil:
    """What no reader of weights may run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/tmp/slipstream-was-run"),))


def pickled(folder: Path, content: bytes) -> Path:
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "pytorch_model.bin").write_bytes(content)
    return folder


def test_a_pickle_needs_pytorch(tmp_path: Path, target: GgufHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pickled(tiny_checkpoint(tmp_path / "head", target.path), b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeUnavailableError, match="is a pickle, which only PyTorch reads"):
        converted(folder, target)


def test_a_pickle_is_read_with_nothing_but_weights_allowed(tmp_path: Path, target: GgufHeader) -> None:
    torch = pytest.importorskip("torch")
    folder = tiny_checkpoint(tmp_path / "head", target.path)
    expected = converted(folder, target).header.path.read_bytes()
    tensors = {name: torch.as_tensor(one) for name, one in head_arrays(Facts.of(target)).items()}
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert converted(folder, target).header.path.read_bytes() == expected
    good = (folder / "pytorch_model.bin").read_bytes()
    halves = {name: one.to(torch.bfloat16) if one.is_floating_point() else one for name, one in tensors.items()}
    torch.save(halves, folder / "pytorch_model.bin")
    converted(folder, target)
    for content in (pickle.dumps(Evil()), pickle.dumps({"norm.weight": Evil()}), b"", b"PK\3\4", good[:5000]):
        with pytest.raises(ModelFileError, match="is damaged, or holds more than weights"):
            converted(pickled(folder, content), target)
    for other in ([1, 2], {"norm.weight": 3}):
        torch.save(other, folder / "pytorch_model.bin")
        with pytest.raises(ModelFileError, match="holds something else than tensors"):
            converted(folder, target)


def test_a_damaged_pickle_is_refused(tmp_path: Path, target: GgufHeader) -> None:
    torch = pytest.importorskip("torch")
    folder = tiny_checkpoint(tmp_path / "head", target.path)
    (folder / "model.safetensors").unlink()
    torch.save({name: torch.as_tensor(one) for name, one in head_arrays(Facts.of(target)).items()}, folder / "it")
    good = (folder / "it").read_bytes()
    chance, told = np.random.default_rng(1), []
    for _ in range(100):
        content = bytearray(good)
        for _ in range(3):
            content[int(chance.integers(0, 3000))] = int(chance.integers(0, 256))
        try:
            converted(pickled(folder, bytes(content)), target)
        except ModelFileError as error:
            told.append(str(error))
    assert len(told) > 20
    assert all(one.endswith(".") and "\n" not in one for one in told)


def test_damaged_settings_are_refused_or_harmless(tmp_path: Path, target: GgufHeader) -> None:
    folder = tiny_checkpoint(tmp_path / "head", target.path)
    good = (folder / "config.json").read_text("utf-8")
    values: list[Any] = [None, 0, -1, 1, 7, 1.5, 1 << 40, 1e308, "", "x", [], [1], {}, {"a": 1}, True, False]
    chance, told = np.random.default_rng(2), []
    for _ in range(200):
        config = json.loads(good)
        key = list(config)[int(chance.integers(0, len(config)))]
        config[key] = values[int(chance.integers(0, len(values)))]
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        try:
            converted(folder, target)
        except ModelFileError as error:
            told.append(str(error))
    assert len(told) > 40
    assert all(one.endswith(".") and "\n" not in one for one in told)
