"""GPT-NeoX and Pythia: a quarter of the features turns, and blocks are parallel or not."""

from attnlab.model.huggingface import rotation
from attnlab.model.huggingface.families.table import (
    ATTENTION,
    BASE,
    BLOCK,
    GELU,
    GROUPED,
    HEADS,
    LAYER,
    MLP,
    ROPE,
    SCALING,
    Family,
    Key,
    Row,
)
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import truth

_NAMES = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def _settled(theirs: Config) -> Config:
    usual = {name: theirs.get(own) for name, own in _NAMES.items()}
    return rotation.settled(theirs | usual, fraction=0.25)


def _spelled(theirs: Config) -> Config:
    return {_NAMES.get(name, name): value for name, value in theirs.items()}


GPT_NEOX = Family(
    architecture="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    model=BASE
    | {
        "bias": True,
        "ffn": MLP,
        "norm": {"_target_": "torch.nn.LayerNorm", "_partial_": True, "bias": True},
        "block": BLOCK,
        "attention": ATTENTION | {"rotary": ROPE},
    },
    fixed={"quantization_config": (None,)},
    keys=(
        Key("hidden_size", ("dim", "attention.heads.dim")),
        Key("num_hidden_layers", ("n_layers",)),
        Key("num_attention_heads", ("n_heads", "attention.heads.n_heads", "attention.heads.n_kv_heads")),
        Key("intermediate_size", ("ffn_width",)),
        Key("hidden_act", ("ffn.approximate",), "gelu", *GELU),
        Key("layer_norm_eps", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("tie",), False, truth),
        Key("attention_bias", ("attention.heads.bias", "attention.heads.out_bias"), True, truth),
        Key("use_parallel_residual", ("block.parallel",), True, truth),
        Key("rope_theta", ("attention.rotary.base",)),
        Key("partial_rotary_factor", ("attention.rotary.fraction",)),
        SCALING,
    ),
    rows=(
        Row("embedding.weight", {"gpt_neox.embed_in.weight": ()}),
        Row(LAYER + "mixer_norm.*", {"gpt_neox.layers.{n}.input_layernorm.*": ()}),
        Row(HEADS + "qkv.*", {"gpt_neox.layers.{n}.attention.query_key_value.*": ("q", "k", "v")}, GROUPED),
        Row(HEADS + "out.*", {"gpt_neox.layers.{n}.attention.dense.*": ()}),
        Row(LAYER + "ffn_norm.*", {"gpt_neox.layers.{n}.post_attention_layernorm.*": ()}),
        Row(LAYER + "ffn.up.*", {"gpt_neox.layers.{n}.mlp.dense_h_to_4h.*": ()}),
        Row(LAYER + "ffn.down.*", {"gpt_neox.layers.{n}.mlp.dense_4h_to_h.*": ()}),
        Row("norm.*", {"gpt_neox.final_layer_norm.*": ()}),
        Row("head.weight", {"embed_out.weight": ()}),
    ),
    ignored=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"),
    settled=_settled,
    spelled=_spelled,
)
