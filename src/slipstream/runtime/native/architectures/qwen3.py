"""Qwen3's dense models (Yang et al. 2025): a llama that normalises each head of queries and keys before it turns it."""

from slipstream.runtime.native.modelfile import MOST_HEAD, ModelFile
from slipstream.runtime.native.program import AddProjected, Attend, Decoder, GatedUnit, Heads, Normalise, Operation


def qwen3(file: ModelFile) -> Decoder:
    """The decoder of a `qwen3` file. Raises NotSupported for what it is not."""
    width, heads = file.integer("embedding_length"), file.integer("attention.head_count")
    head_size = file.integer("attention.key_length", width // heads, MOST_HEAD)
    epsilon = file.number("attention.layer_norm_rms_epsilon")
    rotary = file.rotary(head_size, halves=True)

    def layer(i: int) -> tuple[Operation, ...]:
        # x += o(attention(norm(x)));  x += down(silu(gate(norm(x))) * up(norm(x)))
        return (
            Normalise(f"blk.{i}.attn_norm.weight", epsilon),
            Attend(
                query=Heads(f"blk.{i}.attn_q.weight", norm=Normalise(f"blk.{i}.attn_q_norm.weight", epsilon)),
                key=Heads(f"blk.{i}.attn_k.weight", norm=Normalise(f"blk.{i}.attn_k_norm.weight", epsilon)),
                value=Heads(f"blk.{i}.attn_v.weight"),
                rotary=rotary,
                scale=head_size**-0.5,
            ),
            AddProjected(f"blk.{i}.attn_output.weight"),
            Normalise(f"blk.{i}.ffn_norm.weight", epsilon),
            GatedUnit(gate=f"blk.{i}.ffn_gate.weight", up=f"blk.{i}.ffn_up.weight"),
            AddProjected(f"blk.{i}.ffn_down.weight"),
        )

    return Decoder(
        width=width,
        heads=heads,
        key_value_heads=file.integer("attention.head_count_kv", heads),
        head_size=head_size,
        feed_forward=file.integer("feed_forward_length"),
        embedding="token_embd.weight",
        layers=tuple(layer(i) for i in range(file.integer("block_count"))),
        output_norm=Normalise("output_norm.weight", epsilon),
        output="output.weight" if file.has("output.weight") else "token_embd.weight",
    )
