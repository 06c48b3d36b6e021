"""The wide model says what the narrow one says."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFReader, GGUFWriter

from benchmarks.widen_gguf import Shape, WidenError, main, widen
from slipstream import Engine

Array = npt.NDArray[np.float64]

NARROW = Shape(dim=32, ffn=64, heads=4, kv_heads=2)
WIDE = Shape(dim=96, ffn=160, heads=12, kv_heads=3)
HEAD_DIM = 8
LAYERS = 2
VOCABULARY = 24


def tensor_shapes() -> dict[str, tuple[int, ...]]:
    kv_dim = NARROW.kv_heads * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, NARROW.dim),
        "output_norm.weight": (NARROW.dim,),
        "output.weight": (VOCABULARY, NARROW.dim),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (NARROW.dim,),
            f"blk.{layer}.attn_q.weight": (NARROW.dim, NARROW.dim),
            f"blk.{layer}.attn_k.weight": (kv_dim, NARROW.dim),
            f"blk.{layer}.attn_v.weight": (kv_dim, NARROW.dim),
            f"blk.{layer}.attn_output.weight": (NARROW.dim, NARROW.dim),
            f"blk.{layer}.ffn_norm.weight": (NARROW.dim,),
            f"blk.{layer}.ffn_gate.weight": (NARROW.ffn, NARROW.dim),
            f"blk.{layer}.ffn_up.weight": (NARROW.ffn, NARROW.dim),
            f"blk.{layer}.ffn_down.weight": (NARROW.dim, NARROW.ffn),
        }
    return shapes


def write_tiny(path: Path, architecture: str = "llama", extra_tensor: str | None = None, epsilon: float = 0.02) -> Path:
    """A random model of NARROW's shape. A large epsilon, so that forgetting to scale it shows."""
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(NARROW.dim)
    writer.add_feed_forward_length(NARROW.ffn)
    writer.add_head_count(NARROW.heads)
    writer.add_head_count_kv(NARROW.kv_heads)
    writer.add_layer_norm_rms_eps(epsilon)
    writer.add_token_list([f"token {index}" for index in range(VOCABULARY)])
    random = np.random.default_rng(5)
    for name, shape in tensor_shapes().items():
        writer.add_tensor(name, random.normal(0, 0.3, shape).astype(np.float32))
    if extra_tensor is not None:
        writer.add_tensor(extra_tensor, np.zeros(NARROW.dim, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rotate(heads: Array) -> Array:
    """Rotary embedding as llama's GGUF stores it: neighbouring pairs; [positions, heads, head_dim]."""
    angles = np.arange(heads.shape[0])[:, None] * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    pairs = heads[..., 0::2] + 1j * heads[..., 1::2]
    turned = pairs * np.exp(1j * angles)[:, None, :]
    return np.stack([turned.real, turned.imag], axis=-1).reshape(heads.shape)


class Reference:
    """The llama architecture in numpy, float64, from the sizes that the file states."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.weights = {tensor.name: np.array(tensor.data, np.float64) for tensor in reader.tensors}
        self.epsilon = reader.fields["llama.attention.layer_norm_rms_epsilon"].contents()
        self.heads = reader.fields["llama.attention.head_count"].contents()
        self.kv_heads = reader.fields["llama.attention.head_count_kv"].contents()

    def norm(self, hidden: Array, name: str) -> Array:
        scale = np.sqrt(np.mean(hidden**2, axis=-1, keepdims=True) + self.epsilon)
        return hidden / scale * self.weights[name]

    def attention(self, hidden: Array, prefix: str) -> Array:
        length = len(hidden)
        query = rotate((hidden @ self.weights[f"{prefix}.attn_q.weight"].T).reshape(length, self.heads, -1))
        key = rotate((hidden @ self.weights[f"{prefix}.attn_k.weight"].T).reshape(length, self.kv_heads, -1))
        value = (hidden @ self.weights[f"{prefix}.attn_v.weight"].T).reshape(length, self.kv_heads, -1)
        group = self.heads // self.kv_heads
        key, value = key.repeat(group, axis=1), value.repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(HEAD_DIM)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, value).reshape(length, -1)
        return np.asarray(mixed @ self.weights[f"{prefix}.attn_output.weight"].T)

    def feed_forward(self, hidden: Array, prefix: str) -> Array:
        gate = hidden @ self.weights[f"{prefix}.ffn_gate.weight"].T
        up = hidden @ self.weights[f"{prefix}.ffn_up.weight"].T
        return np.asarray((gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{prefix}.ffn_down.weight"].T)

    def logits(self, tokens: list[int]) -> Array:
        """[positions, vocabulary]."""
        hidden = self.weights["token_embd.weight"][tokens]
        for layer in range(LAYERS):
            prefix = f"blk.{layer}"
            hidden = hidden + self.attention(self.norm(hidden, f"{prefix}.attn_norm.weight"), prefix)
            hidden = hidden + self.feed_forward(self.norm(hidden, f"{prefix}.ffn_norm.weight"), prefix)
        return self.norm(hidden, "output_norm.weight") @ self.weights["output.weight"].T


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "narrow.gguf")


def test_the_wide_model_computes_the_same_function(narrow: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.gguf"
    widen(narrow, wide, WIDE, "F32")
    tokens = [3, 17, 0, 5, 5, 23]
    expected = Reference(narrow).logits(tokens)
    # float32 weights: only the norms are rounded anew, by 6e-8 of their value.
    np.testing.assert_allclose(Reference(wide).logits(tokens), expected, atol=1e-5)
    assert np.ptp(expected) > 1, "the logits must differ among themselves for the comparison to mean anything"


def test_every_matrix_is_as_large_as_asked(narrow: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.gguf"
    widen(narrow, wide, WIDE, "Q8_0")
    reader = GGUFReader(wide)
    shapes = {tensor.name: tuple(int(size) for size in tensor.shape[::-1]) for tensor in reader.tensors}
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert shapes["blk.1.attn_q.weight"] == (WIDE.heads * HEAD_DIM, WIDE.dim)
    assert shapes["blk.1.attn_k.weight"] == (WIDE.kv_heads * HEAD_DIM, WIDE.dim)
    assert shapes["blk.0.ffn_down.weight"] == (WIDE.dim, WIDE.ffn)
    assert {kind for name, kind in types.items() if not name.endswith("norm.weight")} == {"Q8_0"}
    assert {kind for name, kind in types.items() if name.endswith("norm.weight")} == {"F32"}


def test_embeddings_keep_eight_bits(narrow: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.gguf"
    widen(narrow, wide, WIDE, "Q4_0")
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(wide).tensors}
    assert types["token_embd.weight"] == types["output.weight"] == "Q8_0"
    assert types["blk.0.ffn_up.weight"] == "Q4_0"


def test_what_the_file_says_of_itself_is_kept(narrow: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.gguf"
    widen(narrow, wide, WIDE, "F16")
    fields = GGUFReader(wide).fields
    assert fields["tokenizer.ggml.tokens"].contents() == [f"token {index}" for index in range(VOCABULARY)]
    assert fields["llama.block_count"].contents() == LAYERS
    assert fields["llama.attention.head_count"].contents() == WIDE.heads
    assert fields["llama.attention.key_length"].contents() == HEAD_DIM


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(16, 160, 12, 3), "--dim must be at least 32"),
        (Shape(96, 32, 12, 3), "--ffn must be at least 64"),
        (Shape(96, 160, 4, 1), "--kv-heads must be at least 2"),
        (Shape(96, 160, 3, 3), "heads per kv head must be at least 2"),
        (Shape(96, 160, 12, 5), "--heads 12 must be a multiple of --kv-heads 5"),
    ],
)
def test_sizes_that_cannot_hold_the_model_are_refused(narrow: Path, tmp_path: Path, shape: Shape, message: str) -> None:
    with pytest.raises(WidenError, match=message):
        widen(narrow, tmp_path / "wide.gguf", shape)
    assert not (tmp_path / "wide.gguf").exists()


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "other.gguf", architecture="qwen2")
    with pytest.raises(WidenError, match="qwen2"):
        widen(source, tmp_path / "wide.gguf", WIDE)


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "other.gguf", extra_tensor="blk.0.attn_q.bias")
    with pytest.raises(WidenError, match=r"blk\.0\.attn_q\.bias"):
        widen(source, tmp_path / "wide.gguf", WIDE)


def test_the_source_is_not_overwritten(narrow: Path) -> None:
    before = narrow.read_bytes()
    with pytest.raises(WidenError, match="the destination is the source"):
        widen(narrow, narrow, WIDE)
    assert narrow.read_bytes() == before


def test_the_command_line_says_what_is_wrong_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"widen_gguf\.py: .*missing\.gguf"):
        main([str(tmp_path / "missing.gguf"), str(tmp_path / "wide.gguf")])


@pytest.mark.model
def test_the_real_model_says_the_same_when_wide(smollm2: Path, tmp_path: Path) -> None:
    """Equal tokens are not luck here but arithmetic, and so the test allows no difference.

    2304 is four times the model's 576 columns, so the norms' factors are powers of two and round nothing;
    Q4_1 is the file's own type, and blocks that were quantised once quantise to themselves; blocks of
    zeros add zero. At widths like 768 the norms round, and near-ties may fall the other way.
    """
    wide = tmp_path / "wide.gguf"
    widen(smollm2, wide, Shape(dim=2304, ffn=1600, heads=12, kv_heads=4), "Q4_1")
    prompts = ["The capital of France is", "def fibonacci(n):\n", "1, 2, 3, 4,"]
    narrow_tokens, wide_tokens = greedy_tokens(smollm2, prompts), greedy_tokens(wide, prompts)
    assert wide_tokens == narrow_tokens
    assert min(map(len, narrow_tokens)) > 24, "answers that end early, as they may, say little"


def greedy_tokens(path: Path, prompts: list[str]) -> list[list[int]]:
    with Engine.load(path, draft=None) as engine:
        return [engine.generate(prompt, temperature=0, max_tokens=32).tokens for prompt in prompts]
