"""Heads as they are published for PyTorch, made into GGUF files (docs/heads.md): SafeAILab's EAGLE-3 and SpecForge's
checkpoints, and those of the `speculators` library.

Each is a folder with `config.json` and weights, as safetensors or as a pickle that is read with nothing but weights
allowed. A refusal names the file, the field, what was found and what is needed.
"""

import importlib
import json
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelFileError, RuntimeUnavailableError, UnsupportedModelError
from slipstream.models.fingerprint import fingerprint
from slipstream.models.gguf import GgufHeader, Value
from slipstream.models.gguf_writer import Tensor, stored, write_gguf
from slipstream.models.heads import MOST, TARGET_LAYERS, UNIT, read_head
from slipstream.models.packed_strings import PackedStrings
from slipstream.models.safetensors import Safetensors

CONFIG: Final = "config.json"
MOST_CONFIG: Final = 1 << 20
"""Bytes."""
PICKLE: Final = "pytorch_model.bin"
LARGEST: Final = 65504.0
"""Of half precision, in which scales are kept; weights are near 1."""
Q8_0_FILE: Final = 7
"""`general.file_type`."""

LAYER = re.compile(r"^(?:model\.)?(?:midlayer|layers\.0)\.")
NAMES: Final = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "embed_tokens.weight": "token_embd.weight",
    "layer.input_layernorm.weight": "blk.0.attn_norm.weight",
    "layer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
    "layer.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "layer.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "layer.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "layer.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "layer.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "layer.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "layer.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "layer.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "d2t": "d2t",
}
"""What tensors are called here (with `layer.` for what different programs call their one layer), and in GGUF."""
DAMAGED: Final = (
    pickle.UnpicklingError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    OverflowError,
    OSError,
)
"""What reading a damaged pickle may raise."""
UNUSED: Final = frozenset({"t2d", "verifier_norm.weight", "verifier_lm_head.weight"})
"""What training leaves in some."""

Arrays = Mapping[str, NDArray[Any]]


def checkpoint_at(path: Path) -> Path | None:
    """The folder of the checkpoint that `path` is, or is a file of; None for anything else."""
    folder = path if path.is_dir() else path.parent
    weights = path.is_dir() or path.suffix in (".safetensors", ".bin") or path.name == CONFIG
    return folder if weights and (folder / CONFIG).is_file() else None


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's weights: safetensors where there are any. Raises ModelFileError for none."""
    files = sorted(folder.glob("*.safetensors")) or [folder / PICKLE]
    if not files[0].is_file():
        raise ModelFileError(f"{folder} has a {CONFIG} and no weights: no *.safetensors and no {PICKLE}.")
    return files


def convert(folder: Path, target: GgufHeader, destination: Path) -> None:
    """Write a checkpoint as a head's GGUF file, matrices as Q8_0.

    target: what it is for, whose layers the checkpoint may leave to the usual choice
    Raises ModelFileError, UnsupportedModelError for another kind of model or another target's head,
    RuntimeUnavailableError where a pickle needs PyTorch, OSError where `destination` cannot be written.
    """
    config = _Config(folder)
    weights = _named(folder)
    metadata = config.metadata(target) | _origin(folder, target)
    tensors = [_tensor(folder, config, name, numbers) for name, numbers in weights.items() if name != "d2t"]
    factors = config.rotary_factors()
    if factors is not None:
        tensors.append(stored("rope_freqs.weight", factors, "F32"))
    if "d2t" in weights:
        tensors.append(stored("d2t", _draft_tokens(folder, weights["d2t"]), "I64"))
    write_gguf(destination, metadata, tensors)
    try:
        read_head(destination).require_target(target)
    except ModelFileError as refusal:
        raise type(refusal)(str(refusal).replace(str(destination), str(folder))) from None


def _origin(folder: Path, target: GgufHeader) -> dict[str, Value]:
    """Where the file comes from. The tokens are the target's: ids are all that a checkpoint has."""
    tokens = target.metadata.get("tokenizer.ggml.tokens")
    return {
        "general.name": folder.resolve().name,
        "slipstream.head.version": 1,
        "slipstream.head.recipe": json.dumps({"converted_from": folder.resolve().name}),
        **({"tokenizer.ggml.tokens": tokens} if isinstance(tokens, PackedStrings) else {}),
    }


class _Config:
    """`config.json`, whichever program wrote it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CONFIG
        try:
            with self.path.open("rb") as file:
                raw = file.read(MOST_CONFIG)
            values = json.loads(raw)
        except OSError as error:
            raise ModelFileError(f"{self.path} cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError):
            raise ModelFileError(f"{self.path} is no JSON file; download it again.") from None
        if not isinstance(values, dict):
            raise ModelFileError(f"{self.path} is no model's configuration; download it again.")
        nested = values.get("transformer_layer_config")
        self._speculators = isinstance(nested, dict)
        self._own: dict[str, Any] = values
        self._values: dict[str, Any] = {**values, **nested} if isinstance(nested, dict) else values
        eagle = values.get("eagle_config")
        self._eagle: dict[str, Any] = eagle if isinstance(eagle, dict) else {}
        self._require_head()
        self.width = self._size("hidden_size")
        self.heads = self._integer("num_attention_heads")
        self.key_value_heads = self._integer("num_key_value_heads", self.heads)
        self.head_size = self._size("head_dim", self.width // self.heads)

    def _require_head(self) -> None:
        stated = self._own.get("speculators_model_type")
        if stated not in (None, "eagle3") or self._values.get("draft_vocab_size") is None:
            raise UnsupportedModelError(
                f"{self.path} is not an EAGLE-3 head's: its speculators_model_type is {stated!r} and its "
                f"draft_vocab_size {self._values.get('draft_vocab_size')!r}; give the folder of a head."
            )
        if (layers := self._integer("num_hidden_layers", 1)) != 1:
            self._bad("num_hidden_layers", layers, "1")
        if (activation := self._values.get("hidden_act", "silu")) != "silu":
            self._bad("hidden_act", activation, "silu")

    def metadata(self, target: GgufHeader) -> dict[str, Value]:
        """A head's keys, without those that say where it comes from."""
        metadata: dict[str, Value] = {
            "general.architecture": "eagle3",
            "general.type": "model",
            "general.file_type": Q8_0_FILE,
            "eagle3.block_count": 1,
            "eagle3.context_length": self._integer("max_position_embeddings", 2048),
            "eagle3.embedding_length": self.width,
            "eagle3.feed_forward_length": self._size("intermediate_size"),
            "eagle3.attention.head_count": self.heads,
            "eagle3.attention.head_count_kv": self.key_value_heads,
            "eagle3.attention.key_length": self.head_size,
            "eagle3.attention.value_length": self.head_size,
            "eagle3.attention.layer_norm_rms_epsilon": self._number("rms_norm_eps", 1e-6),
            "eagle3.rope.freq_base": self._number("rope_theta", 10000.0, self._rope()),
            "eagle3.rope.dimension_count": self.head_size,
            "eagle3.vocab_size": self._integer("target_vocab_size", self._integer("vocab_size")),
            "eagle3.target_hidden_size": self._size("target_hidden_size", self.width),
            "eagle3.target_layers": np.array(self._target_layers(target), np.uint32),
            "eagle3.norm_before_residual": self._flag("norm_before_residual"),
            "eagle3.norm_before_fc": self._flag("norm_before_fc"),
        }
        kind, scaling = self._scaling()
        if kind == "linear":
            metadata["eagle3.rope.scaling.type"] = "linear"
            metadata["eagle3.rope.scaling.factor"] = self._number("factor", None, scaling)
        return metadata

    def rotary_factors(self) -> NDArray[np.float32] | None:
        """[head size / 2] what Llama 3's scaling divides each pair's frequency by; None without it.

        Wavelengths beyond the original context are stretched by `factor`, short ones not at all, and those between in
        between, as `transformers` has it (modeling_rope_utils.py).
        """
        kind, scaling = self._scaling()
        if kind != "llama3":
            return None
        factor = self._number("factor", None, scaling)
        low, high = self._number("low_freq_factor", None, scaling), self._number("high_freq_factor", None, scaling)
        original = self._number("original_max_position_embeddings", None, scaling)
        if high <= low:
            self._bad("rope_scaling", "without a high_freq_factor above its low_freq_factor", "Llama 3's")
        base = self._number("rope_theta", 10000.0, self._rope())
        frequencies = base ** -(np.arange(0, self.head_size, 2) / self.head_size)
        share = np.clip((original * frequencies / (2 * np.pi) - low) / (high - low), 0, 1)
        return (1 / ((1 - share) / factor + share)).astype(np.float32)

    def _rope(self) -> dict[str, Any]:
        """Where the base is stated: newer files have it among the parameters of the embedding."""
        parameters = self._values.get("rope_parameters")
        return {**self._values, **parameters} if isinstance(parameters, dict) else self._values

    def _scaling(self) -> tuple[str | None, dict[str, Any]]:
        """The kind of scaling of positions, None for none, and its numbers."""
        scaling = self._values.get("rope_scaling") or self._values.get("rope_parameters") or {}
        if not isinstance(scaling, dict):
            self._bad("rope_scaling", scaling, "an object")
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind not in (None, "default", "linear", "llama3"):
            self._bad("rope_scaling", kind, "none, linear or llama3")
        return (None if kind == "default" else kind), scaling

    def _target_layers(self, target: GgufHeader) -> list[int]:
        """Whose inputs the head reads. The `speculators` library counts inputs, SpecForge and SGLang outputs."""
        count = target.integer(f"{target.architecture}.block_count") or 0
        stated, shift = self._own.get("eagle_aux_hidden_state_layer_ids"), 0
        if stated is None:
            stated, shift = self._eagle.get("eagle_aux_hidden_state_layer_ids"), 1
        if stated is None:
            return [2, count // 2, count - 3] if count >= 5 else self._few_layers(target, count)
        whole = isinstance(stated, list) and all(type(layer) is int for layer in stated)
        layers = [layer + shift for layer in stated] if whole else []
        if len(layers) != TARGET_LAYERS or not all(1 <= layer <= count for layer in layers):
            self._bad("eagle_aux_hidden_state_layer_ids", stated, f"{TARGET_LAYERS} of the target's {count} layers")
        return layers

    def _few_layers(self, target: GgufHeader, count: int) -> NoReturn:
        raise UnsupportedModelError(
            f"{self.path} does not say which layers its head reads, and {target.path.name} has {count}, too few for "
            "the usual choice; use a head that was trained for this target."
        )

    def _integer(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key)
        value = default if value is None else value
        if type(value) is not int or not 1 <= value <= MOST:
            self._bad(key, value, f"a whole number from 1 to {MOST}")
        return value

    def _size(self, key: str, default: int | None = None) -> int:
        size = self._integer(key, default)
        if size % UNIT:
            self._bad(key, size, f"a multiple of {UNIT}")
        return size

    def _number(self, key: str, default: float | None, among: Mapping[str, Any] | None = None) -> float:
        value = (self._values if among is None else among).get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            self._bad(key, value, "a number above 0")
        return float(value)

    def _flag(self, key: str) -> bool:
        value = self._own.get(key)
        value = self._eagle.get(key) if value is None else value
        if value is not None and not isinstance(value, bool):
            self._bad(key, value, "true or false")
        return bool(value)

    def _bad(self, field: str, found: object, needed: str) -> NoReturn:
        raise ModelFileError(
            f"{self.path} is no usable head's: its {field} is {str(found)[:80]} and must be {needed}; "
            "download it again or use another head."
        )


def _named(folder: Path) -> dict[str, NDArray[Any]]:
    """All tensors that are of use, under their names in GGUF."""
    named: dict[str, NDArray[Any]] = {}
    for file in weight_files(folder):
        for name, numbers in _read(file).items():
            plain = LAYER.sub("layer.", name) if LAYER.match(name) else name.removeprefix("model.")
            if plain in UNUSED:
                continue
            if plain not in NAMES or NAMES[plain] in named:
                what = "twice" if plain in NAMES else "and heads have none of that name"
                raise ModelFileError(f"{file} is no usable head: it has the tensor {name[:80]!r} {what}.")
            named[NAMES[plain]] = numbers
    return named


def _read(file: Path) -> Arrays:
    return Safetensors(file) if file.suffix == ".safetensors" else _unpickled(file)


def _unpickled(file: Path) -> Arrays:
    """Tensors of a pickle, read with nothing but weights allowed: it can run no code."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise RuntimeUnavailableError(
            f"{file} is a pickle, which only PyTorch reads, and that is not installed; install torch, or convert the "
            "file to safetensors."
        ) from None
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles that it then refuses
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except DAMAGED as error:
        reason = str(error).split("\n", 1)[0].split(". ", 1)[0][:100]
        raise ModelFileError(f"{file} is damaged, or holds more than weights ({reason}); download it again.") from None
    if not isinstance(loaded, dict) or not all(isinstance(one, torch.Tensor) for one in loaded.values()):
        raise ModelFileError(f"{file} holds something else than tensors by name; give a head's weights.")
    return {
        str(name): (one.float() if one.is_floating_point() else one).detach().numpy() for name, one in loaded.items()
    }


def _tensor(folder: Path, config: _Config, name: str, numbers: NDArray[Any]) -> Tensor:
    """One tensor as the file has it: vectors F32, matrices Q8_0, rotary pairs beside each other."""
    if numbers.dtype.kind != "f" or numbers.ndim not in (1, 2):
        raise ModelFileError(
            f"{folder} is no usable head: its {name} is {numbers.dtype} with {numbers.ndim} dimensions and must be "
            "floating-point numbers with 1 or 2."
        )
    numbers = numbers.astype(np.float32)
    if not (np.abs(numbers) <= LARGEST).all():
        raise ModelFileError(f"{folder} is no usable head: its {name} has numbers that are infinite, huge or none.")
    if numbers.ndim == 1:
        return stored(name, numbers, "F32")
    if numbers.shape[1] % UNIT:
        raise ModelFileError(
            f"{folder} is no usable head: its {name} has rows of {numbers.shape[1]} numbers, which must be a multiple "
            f"of {UNIT}."
        )
    if heads := {"blk.0.attn_q.weight": config.heads, "blk.0.attn_k.weight": config.key_value_heads}.get(name):
        if len(numbers) != heads * config.head_size:
            raise ModelFileError(
                f"{folder} is no usable head: its {name} has {len(numbers)} rows and must have "
                f"{heads * config.head_size}."
            )
        numbers = neighbours(numbers, heads)
    return stored(name, numbers, "Q8_0")


def neighbours(matrix: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of queries or keys reordered so that rotary pairs (i, i + size / 2) of each head are (2i, 2i + 1)."""
    rows, columns = matrix.shape
    halves = matrix.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _draft_tokens(folder: Path, differences: NDArray[Any]) -> NDArray[np.int64]:
    """The target's ids; checkpoints hold how far each is from its place."""
    if differences.dtype.kind not in "iu" or differences.ndim != 1:
        raise ModelFileError(
            f"{folder} is no usable head: its d2t is {differences.dtype} with {differences.ndim} dimensions and must "
            "be whole numbers with 1."
        )
    return differences.astype(np.int64) + np.arange(len(differences))


def converted_name(folder: Path, target: GgufHeader) -> str:
    """A name for what a checkpoint becomes: another one where its weights, its settings or the target are others."""
    files = [folder / CONFIG, *weight_files(folder)]
    return "-".join([*(fingerprint(file)[:16] for file in files), fingerprint(target.path)[:16]])
