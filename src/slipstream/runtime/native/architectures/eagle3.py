"""Heads in the manner of EAGLE-3 (Li et al. 2025, arXiv 2503.01840): one layer of a llama that begins with a target's
hidden states and reads the embedding of the token that came next beside them.

The GGUF converter has permuted queries and keys so that rotary pairs are neighbours.
"""

from slipstream.models.heads import DIRECT, EMBEDDING, FUSING_NORM, HeadFile
from slipstream.runtime.native.modelfile import ModelFile
from slipstream.runtime.native.program import (
    AddProjected,
    Attend,
    Decoder,
    Fuse,
    GatedUnit,
    Heads,
    Join,
    Normalise,
    ReadEmbedding,
)


def eagle3(head: HeadFile, output: str) -> Decoder:
    """The decoder of a head. output: its output matrix, or the target's. Raises NotSupported for unusual numbers."""
    file = ModelFile(head.header)
    epsilon = file.number("attention.layer_norm_rms_epsilon")

    def norm(name: str) -> Normalise:
        return Normalise(name, epsilon)

    # g = fc(hidden);  x = g, or norm(g) with norm_before_residual
    of_state = norm("blk.0.attn_norm_2.weight")
    fuse = Fuse(
        "fc.weight",
        before=norm(FUSING_NORM) if head.norm_before_fc else None,
        after=of_state if head.norm_before_residual else None,
    )
    of_embedding = norm("blk.0.attn_norm.weight")
    # x += direct(norm(embedding)), in heads that have it
    direct = (ReadEmbedding(of_embedding), AddProjected(DIRECT)) if head.has(DIRECT) else ()
    # x += o(attention([norm(embedding); norm(g)]));  x += down(silu(gate(norm(x))) * up(norm(x)))
    layer = (
        *direct,
        Join(of_embedding, None if head.norm_before_residual else of_state),
        Attend(
            query=Heads("blk.0.attn_q.weight"),
            key=Heads("blk.0.attn_k.weight"),
            value=Heads("blk.0.attn_v.weight"),
            rotary=file.rotary(head.head_size),
            scale=head.head_size**-0.5,
        ),
        AddProjected("blk.0.attn_output.weight"),
        norm("blk.0.ffn_norm.weight"),
        GatedUnit(gate="blk.0.ffn_gate.weight", up="blk.0.ffn_up.weight"),
        AddProjected("blk.0.ffn_down.weight"),
    )
    return Decoder(
        width=head.width,
        heads=head.heads,
        key_value_heads=head.key_value_heads,
        head_size=head.head_size,
        feed_forward=head.feed_forward,
        embedding=EMBEDDING if head.has(EMBEDDING) else None,
        fuse=fuse,
        layers=(layer,),
        output_norm=norm("output_norm.weight"),
        output=output,
    )
