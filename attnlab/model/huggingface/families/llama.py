"""Llama, and the families that differ from it by windows or by what is fused in their files."""

from dataclasses import replace
from functools import partial

from attnlab.model.huggingface import rotation, windows
from attnlab.model.huggingface.families.table import (
    ATTENTION,
    BASE,
    HEADS,
    LAYER,
    ROPE,
    SCALING,
    SWIGLU,
    Family,
    Key,
    Row,
    keyed,
    over,
)
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import truth

WHOLE_TURN = {  # all features turn
    f"{place}partial_rotary_factor": (None, 1.0) for place in ("", "rope_parameters.", "rope_scaling.")
}

LLAMA = Family(
    architecture="LlamaForCausalLM",
    prefix="model.",
    model=BASE
    | {
        "ffn": SWIGLU,
        "norm": {"_target_": "torch.nn.RMSNorm", "_partial_": True},
        "attention": ATTENTION | {"rotary": ROPE},
    },
    fixed={
        "hidden_act": ("silu", "swish"),
        **WHOLE_TURN,
        "quantization_config": (None,),
    },
    keys=(
        Key("hidden_size", ("dim", "attention.heads.dim")),
        Key("num_hidden_layers", ("n_layers",)),
        Key("num_attention_heads", ("n_heads", "attention.heads.n_heads")),
        Key(
            "num_key_value_heads",
            ("attention.heads.n_kv_heads",),
            lambda theirs: theirs["num_attention_heads"],
        ),
        Key("head_dim", ("attention.heads.head_dim",), None),
        Key("intermediate_size", ("ffn_width",)),
        Key("rms_norm_eps", ("norm.eps",), 1e-6),
        Key("tie_word_embeddings", ("tie",), False, truth),
        Key("attention_bias", ("attention.heads.bias", "attention.heads.out_bias"), False, truth),
        Key("mlp_bias", ("bias",), False, truth),
        Key("rope_theta", ("attention.rotary.base",)),
        SCALING,
    ),
    rows=(
        Row("embedding.weight", {"model.embed_tokens.weight": ()}),
        Row(LAYER + "mixer_norm.weight", {"model.layers.{n}.input_layernorm.weight": ()}),
        Row(HEADS + "qkv.*", {f"model.layers.{{n}}.self_attn.{p}_proj.*": (p,) for p in "qkv"}),
        Row(HEADS + "out.*", {"model.layers.{n}.self_attn.o_proj.*": ()}),
        Row(LAYER + "ffn_norm.weight", {"model.layers.{n}.post_attention_layernorm.weight": ()}),
        Row(LAYER + "ffn.up.*", {f"model.layers.{{n}}.mlp.{p}_proj.*": (p,) for p in ("gate", "up")}),
        Row(LAYER + "ffn.down.*", {"model.layers.{n}.mlp.down_proj.*": ()}),
        Row("norm.weight", {"model.norm.weight": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=("rotary_emb.inv_freq",),
    settled=rotation.settled,
)

WINDOW = Key("sliding_window", ("attention.masks.window",), None, windows.mask, windows.size)


def _mistral(theirs: Config) -> Config:
    return rotation.settled({"sliding_window": 4096, "num_key_value_heads": 8} | theirs)


MISTRAL = replace(
    LLAMA,
    architecture="MistralForCausalLM",
    model=LLAMA.model | {"bias": False, "attention": windows.unbiased(LLAMA.model["attention"])},
    fixed=LLAMA.fixed | {"layer_types": (None,)},
    keys=keyed(LLAMA, WINDOW, drop=("attention_bias", "mlp_bias")),
    settled=_mistral,
)

PHI3 = replace(
    MISTRAL,
    architecture="Phi3ForCausalLM",
    fixed={"hidden_act": ("silu", "swish"), "quantization_config": (None,)},
    keys=keyed(
        MISTRAL,
        Key("rms_norm_eps", ("norm.eps",), 1e-5),
        Key("partial_rotary_factor", ("attention.rotary.fraction",)),
        drop=("rope_scaling",),
    ),
    rows=over(
        LLAMA,
        Row(HEADS + "qkv.*", {"model.layers.{n}.self_attn.qkv_proj.*": ("q", "k", "v")}),
        Row(LAYER + "ffn.up.*", {"model.layers.{n}.mlp.gate_up_proj.*": ("gate", "up")}),
    ),
    settled=partial(rotation.settled, fraction=1.0, kinds=()),
)
