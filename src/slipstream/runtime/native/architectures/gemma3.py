"""Gemma 3's text models (Gemma Team 2025): scaled embeddings, norms before and after each part of a layer and in each
head of queries and keys, GEGLU, and five layers with a sliding window for each one that sees everything.

The 1 that is added to each weight of a norm is in the file's weights already.
"""

from slipstream.runtime.native._native import Activation
from slipstream.runtime.native.modelfile import MOST_HEAD, ModelFile
from slipstream.runtime.native.program import AddProjected, Attend, Decoder, GatedUnit, Heads, Normalise, Operation

PERIOD = 6
"""The last of so many layers sees everything."""

LAYERS_OF_27B = 62
"""The 27B model alone scales scores by width / heads instead of the head's size; no key of the file says so."""


def gemma3(file: ModelFile) -> Decoder:
    """The decoder of a `gemma3` file. Raises NotSupported for relatives with capped logits or several head sizes."""
    for key in ("final_logit_softcapping", "attention.key_length_swa", "rope.dimension_count_swa"):
        file.refuse(key, f"it sets {key}")

    width, heads = file.integer("embedding_length"), file.integer("attention.head_count")
    head_size = file.integer("attention.key_length", width // heads, MOST_HEAD)
    layers = file.integer("block_count")
    epsilon = file.number("attention.layer_norm_rms_epsilon")
    window = file.optional_integer("attention.sliding_window")
    period = file.integer("attention.sliding_window_pattern", PERIOD)
    everywhere = file.rotary(head_size, halves=True)
    nearby = file.local_rotary(head_size, halves=True)
    scale = (width / heads if layers == LAYERS_OF_27B else head_size) ** -0.5

    def norm(i: int, name: str) -> Normalise:
        return Normalise(f"blk.{i}.{name}.weight", epsilon)

    def layer(i: int) -> tuple[Operation, ...]:
        # x += norm(o(attention(norm(x))));  x += norm(down(gelu(gate(norm(x))) * up(norm(x))))
        is_local = window is not None and (i + 1) % period != 0
        return (
            norm(i, "attn_norm"),
            Attend(
                query=Heads(f"blk.{i}.attn_q.weight", norm=norm(i, "attn_q_norm")),
                key=Heads(f"blk.{i}.attn_k.weight", norm=norm(i, "attn_k_norm")),
                value=Heads(f"blk.{i}.attn_v.weight"),
                rotary=nearby if is_local else everywhere,
                scale=scale,
                window=window if is_local else None,
            ),
            AddProjected(f"blk.{i}.attn_output.weight", norm=norm(i, "post_attention_norm")),
            norm(i, "ffn_norm"),
            GatedUnit(f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight", Activation.GELU),
            AddProjected(f"blk.{i}.ffn_down.weight", norm=norm(i, "post_ffw_norm")),
        )

    return Decoder(
        width=width,
        heads=heads,
        key_value_heads=file.integer("attention.head_count_kv", heads),
        head_size=head_size,
        feed_forward=file.integer("feed_forward_length"),
        embedding="token_embd.weight",
        embedding_scale=width**0.5,
        layers=tuple(layer(i) for i in range(layers)),
        output_norm=Normalise("output_norm.weight", epsilon),
        output="output.weight" if file.has("output.weight") else "token_embd.weight",
    )
