"""OLMo 2: Llama with norms of what is written, and of queries and keys over their whole width."""

from dataclasses import replace

from attnlab.model.huggingface.families.llama import LLAMA
from attnlab.model.huggingface.families.table import BLOCK, HEADS, LAYER, Key, Row, keyed, over

_HEADS = LLAMA.model["attention"]["heads"] | {"qk_norm": True, "norm_over": "width"}

OLMO2 = replace(
    LLAMA,
    architecture="Olmo2ForCausalLM",
    model=LLAMA.model
    | {
        "bias": False,
        "block": BLOCK | {"norms": "post"},
        "attention": LLAMA.model["attention"] | {"heads": _HEADS},
    },
    keys=keyed(
        LLAMA, Key("rms_norm_eps", ("norm.eps", "attention.heads.norm_eps"), 1e-5), drop=("mlp_bias",)
    ),
    rows=over(
        LLAMA,
        *(
            Row(HEADS + f"{p}_norm.weight", {f"model.layers.{{n}}.self_attn.{p}_norm.weight": ()})
            for p in "qk"
        ),
        Row(LAYER + "mixer_after.weight", {"model.layers.{n}.post_attention_layernorm.weight": ()}),
        Row(LAYER + "ffn_after.weight", {"model.layers.{n}.post_feedforward_layernorm.weight": ()}),
        drop=(LAYER + "mixer_norm.weight", LAYER + "ffn_norm.weight"),
    ),
)
