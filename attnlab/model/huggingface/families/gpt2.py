"""GPT-2: learned positions, biases everywhere, matrices that are transposed."""

from attnlab.model.huggingface.families.table import (
    ATTENTION,
    BASE,
    GELU,
    HEADS,
    LAYER,
    MLP,
    TRANSPOSED,
    Family,
    Key,
    Row,
)
from attnlab.model.huggingface.values import number, truth


def _exponent(scaled: bool) -> float:
    return -0.5 if scaled else 0


GPT2 = Family(
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    model=BASE
    | {
        "bias": True,
        "ffn": MLP,
        "norm": {"_target_": "torch.nn.LayerNorm", "_partial_": True, "bias": True},
        "positions": {"_target_": "attnlab.model.transformer.LearnedPositions"},
        "attention": ATTENTION | {"heads": ATTENTION["heads"] | {"bias": True, "out_bias": True}},
    },
    fixed={
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "quantization_config": (None,),
    },
    keys=(
        Key("n_embd", ("dim", "attention.heads.dim", "positions.dim")),
        Key("n_layer", ("n_layers",)),
        Key("n_head", ("n_heads", "attention.heads.n_heads", "attention.heads.n_kv_heads")),
        Key("n_positions", ("positions.length",)),
        Key("n_inner", ("ffn_width",), lambda theirs: 4 * number(theirs.get("n_embd"))),
        Key("activation_function", ("ffn.approximate",), "gelu_new", *GELU),
        Key("layer_norm_epsilon", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("tie",), True, truth),
        Key("scale_attn_weights", ("attention.scale_exponent",), True, _exponent, bool),
    ),
    rows=(
        Row("embedding.weight", {"transformer.wte.weight": ()}),
        Row("positions.table.weight", {"transformer.wpe.weight": ()}),
        Row(LAYER + "mixer_norm.*", {"transformer.h.{n}.ln_1.*": ()}),
        Row(HEADS + "qkv.*", {"transformer.h.{n}.attn.c_attn.*": ("q", "k", "v")}, TRANSPOSED),
        Row(HEADS + "out.*", {"transformer.h.{n}.attn.c_proj.*": ()}, TRANSPOSED),
        Row(LAYER + "ffn_norm.*", {"transformer.h.{n}.ln_2.*": ()}),
        Row(LAYER + "ffn.up.*", {"transformer.h.{n}.mlp.c_fc.*": ()}, TRANSPOSED),
        Row(LAYER + "ffn.down.*", {"transformer.h.{n}.mlp.c_proj.*": ()}, TRANSPOSED),
        Row("norm.*", {"transformer.ln_f.*": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=(".attn.bias", ".attn.masked_bias"),  # masks
)
