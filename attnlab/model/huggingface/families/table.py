"""The families of checkpoints that can be read and written, by their `model_type`.

Most differ from Llama by the names of keys and tensors and by a few constants. Tensors that are laid out in
another way have their functions in `layouts`, keys that are written in several ways theirs in `spelling`.
"""

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from attnlab.model.huggingface import rotation, windows
from attnlab.model.huggingface.families import layouts, spelling
from attnlab.model.huggingface.families.layouts import GROUPED, PLUS_ONE, TRANSPOSED
from attnlab.model.huggingface.families.parts import (
    HEADS,
    LAYER,
    PLAIN,
    Family,
    Key,
    Layout,
    Row,
    named,
    same,
    set_leaves,
)
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import number, truth

# Parts of our config

METHOD = {"_target_": "hydra.utils.get_method"}
SDPA = METHOD | {"path": "attnlab.attention.kernels.sdpa.sdpa"}
EAGER = METHOD | {"path": "attnlab.attention.kernels.eager.eager"}
MLP = {"_target_": "attnlab.model.transformer.Mlp", "_partial_": True}
SWIGLU = {"_target_": "attnlab.model.transformer.SwiGlu", "_partial_": True}
ROPE = {"_target_": "attnlab.attention.rotary.Rope", "fraction": 1.0}
BLOCK = {"_target_": "attnlab.model.block.Block", "_partial_": True}
LAYER_NORM = {"_target_": "torch.nn.LayerNorm", "_partial_": True, "bias": True}
BASE: Config = {
    "_target_": "attnlab.model.transformer.Transformer",
    "dropout": 0.0,
    "init_std": 0.02,
    "qk_gain": None,
    "seed": 0,
    "layers": None,
    "attention": {
        "_target_": "attnlab.attention.layer.Attention",
        "heads": {"_target_": "attnlab.attention.heads.grouped.GroupedHeads", "head_dim": None},
        "kernel": SDPA,
        "masks": {"causal": METHOD | {"path": "attnlab.attention.masks.causal.causal"}},
        "scale_exponent": -0.5,
    },
}

# Keys and rows that several families share

GELU = named({"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"})  # of `Mlp`
GATED = named({"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu", "silu": "silu"})
LAYERS = Key("layers", ("layers",), None, same)  # patches, made by `settled`; `spelled` is given the mixers
ROTATION = (
    Key("rope_theta", ("attention.rotary.base",)),
    Key("rope_scaling", ("attention.rotary.scaling",), None, rotation.read_scaling, rotation.write_scaling),
)
WINDOW = Key("sliding_window", ("attention.masks.window",), None, windows.mask, windows.size)
EPS = ("norm.eps", "attention.heads.norm_eps")
ALL_HEADS = ("n_heads", "attention.heads.n_heads", "attention.heads.n_kv_heads")
BIASES = ("attention.heads.bias", "attention.heads.out_bias")
SWISH = {"hidden_act": ("silu", "swish")}
FULL_PRECISION = {"quantization_config": (None,)}
WHOLE_TURN = {  # all features turn
    f"{place}partial_rotary_factor": (None, 1.0) for place in ("", "rope_parameters.", "rope_scaling.")
}
QKV = ("q", "k", "v")
L = "model.layers.{n}."


def _four_times(width: str) -> Any:
    return lambda theirs: 4 * number(theirs.get(width))


def _norms(layout: Layout = PLAIN, **names: str) -> tuple[Row, ...]:
    """Rows of norms of a layer, by our names."""
    return tuple(Row(f"{LAYER}{ours}.*", {f"{L}{theirs}.*": ()}, layout) for ours, theirs in names.items())


def _norms_of_qk(layout: Layout = PLAIN) -> tuple[Row, ...]:
    return tuple(Row(f"{HEADS}{p}_norm.weight", {f"{L}self_attn.{p}_norm.weight": ()}, layout) for p in "qk")


# The families

LLAMA = Family(
    architecture="LlamaForCausalLM",
    prefix="model.",
    model=set_leaves(
        BASE,
        {
            "ffn": SWIGLU,
            "norm": {"_target_": "torch.nn.RMSNorm", "_partial_": True},
            "attention.rotary": ROPE,
        },
    ),
    fixed=SWISH | WHOLE_TURN | FULL_PRECISION,
    keys=(
        Key("hidden_size", ("dim", "attention.heads.dim")),
        Key("num_hidden_layers", ("n_layers",)),
        Key("num_attention_heads", ("n_heads", "attention.heads.n_heads")),
        Key("num_key_value_heads", ("attention.heads.n_kv_heads",), itemgetter("num_attention_heads")),
        Key("head_dim", ("attention.heads.head_dim",), None),
        Key("intermediate_size", ("ffn_width",)),
        Key("rms_norm_eps", ("norm.eps",), 1e-6),
        Key("tie_word_embeddings", ("tie",), False, truth),
        Key("attention_bias", BIASES, False, truth),
        Key("mlp_bias", ("bias",), False, truth),
        *ROTATION,
    ),
    rows=(
        Row("embedding.weight", {"model.embed_tokens.weight": ()}),
        Row(LAYER + "mixer_norm.*", {L + "input_layernorm.*": ()}),
        Row(HEADS + "qkv.*", {f"{L}self_attn.{p}_proj.*": (p,) for p in QKV}),
        Row(HEADS + "out.*", {L + "self_attn.o_proj.*": ()}),
        Row(LAYER + "ffn_norm.*", {L + "post_attention_layernorm.*": ()}),
        Row(LAYER + "ffn.up.*", {f"{L}mlp.{p}_proj.*": (p,) for p in ("gate", "up")}),
        Row(LAYER + "ffn.down.*", {L + "mlp.down_proj.*": ()}),
        Row("norm.*", {"model.norm.*": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=("rotary_emb.inv_freq",),
    settled=rotation.settled,
)

MISTRAL = LLAMA.derive(  # a window
    "MistralForCausalLM",
    model={"bias": False, "attention.heads.bias": False, "attention.heads.out_bias": False},
    keys=[WINDOW],
    drop=["attention_bias", "mlp_bias"],
    fixed=LLAMA.fixed | {"layer_types": (None,)},
    settled=spelling.settle_mistral,
)

PHI3 = MISTRAL.derive(  # fused matrices; a share of the features turns
    "Phi3ForCausalLM",
    keys=[
        Key("rms_norm_eps", ("norm.eps",), 1e-5),
        Key("partial_rotary_factor", ("attention.rotary.fraction",)),
    ],
    rows=[
        Row(HEADS + "qkv.*", {L + "self_attn.qkv_proj.*": QKV}),
        Row(LAYER + "ffn.up.*", {L + "mlp.gate_up_proj.*": ("gate", "up")}),
    ],
    drop=["rope_scaling"],
    fixed=SWISH | FULL_PRECISION,
    settled=partial(rotation.settled, fraction=1.0, kinds=()),
)

QWEN2 = LLAMA.derive(  # biases of queries, keys and values; windows by the layer
    "Qwen2ForCausalLM",
    model={"bias": False, "attention.heads.bias": True, "attention.heads.out_bias": False},
    keys=[LAYERS],
    drop=["attention_bias", "mlp_bias"],
    settled=spelling.settle_qwen,
    spelled=spelling.spell_qwen,
)

QWEN3 = LLAMA.derive(  # norms of queries and keys; windows by the layer
    "Qwen3ForCausalLM",
    model={"bias": False, "attention.heads.qk_norm": True},
    keys=[
        LAYERS,
        Key("rms_norm_eps", EPS, 1e-6),
        Key("head_dim", ("attention.heads.head_dim",), 128),
    ],
    rows=_norms_of_qk(),
    drop=["mlp_bias"],
    settled=spelling.settle_qwen,
    spelled=spelling.spell_qwen,
)

SMOLLM3 = LLAMA.derive(  # every fourth layer does not turn
    "SmolLM3ForCausalLM",
    keys=[LAYERS, Key("tie_word_embeddings", ("tie",), True, truth)],
    settled=spelling.settle_smollm,
    spelled=spelling.spell_smollm,
)

OLMO2 = LLAMA.derive(  # norms of what is written, and of queries and keys over their whole width
    "Olmo2ForCausalLM",
    model={
        "bias": False,
        "block": BLOCK | {"norms": "post"},
        "attention.heads.qk_norm": True,
        "attention.heads.norm_over": "width",
    },
    keys=[Key("rms_norm_eps", EPS, 1e-5)],
    rows=[
        *_norms_of_qk(),
        *_norms(mixer_after="post_attention_layernorm", ffn_after="post_feedforward_layernorm"),
    ],
    drop=["mlp_bias", LAYER + "mixer_norm.*", LAYER + "ffn_norm.*"],
)

GEMMA2 = LLAMA.derive(  # norms on both sides of each part, capped scores and logits, windows
    "Gemma2ForCausalLM",
    model={"bias": False, "block": BLOCK | {"norms": "sandwich"}, "attention.kernel": EAGER},
    keys=[
        Key(
            "hidden_size",
            ("embedding_scale",),
            read=lambda width: number(width) ** 0.5,
            write=lambda scale: round(scale**2),
        ),
        Key("hidden_size", ("dim", "attention.heads.dim")),
        Key("head_dim", ("attention.heads.head_dim",)),
        Key("hidden_activation", ("ffn.activation",), "gelu_pytorch_tanh", *GATED),
        Key("tie_word_embeddings", ("tie",), True, truth),
        Key("query_pre_attn_scalar", ("attention.multiplier",)),
        Key(
            "attn_logit_softcapping",
            ("attention.scores.softcap",),
            None,
            lambda cap: {"_target_": "attnlab.attention.scores.softcap.softcap", "cap": number(cap)},
            lambda score: score.get("cap"),
        ),
        Key("final_logit_softcapping", ("logit_cap",), None),
        LAYERS,
    ],
    rows=[
        *_norms(
            PLUS_ONE,
            mixer_norm="input_layernorm",
            mixer_after="post_attention_layernorm",
            ffn_norm="pre_feedforward_layernorm",
            ffn_after="post_feedforward_layernorm",
        ),
        Row("norm.*", {"model.norm.*": ()}, PLUS_ONE),
    ],
    drop=["mlp_bias"],
    fixed=WHOLE_TURN | {"use_bidirectional_attention": (None, False)} | FULL_PRECISION,
    settled=spelling.settle_gemma2,
    spelled=spelling.spell_gemma2,
)

GEMMA3 = GEMMA2.derive(  # two rotations
    "Gemma3ForCausalLM",
    model={"attention.kernel": SDPA, "attention.heads.qk_norm": True},
    keys=[Key("rms_norm_eps", EPS, 1e-6)],
    rows=_norms_of_qk(PLUS_ONE),
    drop=["attn_logit_softcapping"],
    fixed=GEMMA2.fixed | {"attn_logit_softcapping": (None,)},
    settled=spelling.settle_gemma3,
    spelled=spelling.spell_gemma3,
)

GPT_OSS = LLAMA.derive(  # sinks, windows in every second layer, experts
    "GptOssForCausalLM",
    model={
        "bias": True,
        "ffn": {"_target_": "attnlab.model.experts.Experts", "_partial_": True},
        "attention.kernel": EAGER,
        "attention.epilogue": {"_target_": "attnlab.attention.epilogue.Sinks"},
    },
    keys=[
        Key("num_attention_heads", ("n_heads", "attention.heads.n_heads", "attention.epilogue.n_heads")),
        Key("head_dim", ("attention.heads.head_dim",), 64),
        Key("rms_norm_eps", ("norm.eps",), 1e-5),
        Key("attention_bias", BIASES, True, truth),
        Key("num_local_experts", ("ffn.n_experts",), 128),
        Key("num_experts_per_tok", ("ffn.n_chosen",), 4),
        Key("swiglu_alpha", ("ffn.sharpness",), 1.702),
        Key("swiglu_limit", ("ffn.limit",), 7.0),
        LAYERS,
    ],
    rows=[
        Row(LAYER + "mixer.epilogue.logit", {L + "self_attn.sinks": ()}),
        Row(LAYER + "ffn.router.*", {L + "mlp.router.*": ()}),
        Row(LAYER + "ffn.up.weight", {L + "mlp.experts.gate_up_proj": ()}, layouts.EXPERTS_UP),
        Row(LAYER + "ffn.up.bias", {L + "mlp.experts.gate_up_proj_bias": ()}, layouts.EXPERTS_UP),
        Row(LAYER + "ffn.down.weight", {L + "mlp.experts.down_proj": ()}, layouts.EXPERTS_DOWN),
        Row(LAYER + "ffn.down.bias", {L + "mlp.experts.down_proj_bias": ()}, layouts.EXPERTS_DOWN),
    ],
    drop=["mlp_bias", LAYER + "ffn.up.*", LAYER + "ffn.down.*"],
    fixed=WHOLE_TURN | {"hidden_act": ("silu",)} | FULL_PRECISION,
    settled=spelling.settle_gpt_oss,
    spelled=windows.spelled,
)


def _has_q_rank(config: Config) -> bool:
    return config["attention"]["heads"].get("q_rank") is not None


_KV_DOWN = {L + "self_attn.kv_a_proj_with_mqa.*": ("latent", "k_rope")}
DEEPSEEK_V3 = LLAMA.derive(  # latent heads, dense layers
    "DeepseekV3ForCausalLM",
    model={
        "bias": False,
        "attention.heads": {"_target_": "attnlab.attention.heads.latent.LatentHeads", "norm_eps": 1e-6},
    },
    keys=[
        Key("q_lora_rank", ("attention.heads.q_rank",), None),
        Key("kv_lora_rank", ("attention.heads.rank",)),
        Key("qk_nope_head_dim", ("attention.heads.head_dim",)),
        Key("qk_rope_head_dim", ("attention.heads.rope_dim",)),
        Key("v_head_dim", ("attention.heads.value_dim",)),
        Key("multiplier", ("attention.multiplier",)),
    ],
    rows=[
        Row(
            HEADS + "down.*",
            {L + "self_attn.q_a_proj.*": ("q",), **_KV_DOWN},
            layouts.LATENT_DOWN,
            _has_q_rank,
        ),
        Row(
            HEADS + "down.*",
            {L + "self_attn.q_proj.*": ("q",), **_KV_DOWN},
            layouts.LATENT_DOWN,
            lambda config: not _has_q_rank(config),
        ),
        Row(HEADS + "q_norm.weight", {L + "self_attn.q_a_layernorm.weight": ()}),
        Row(HEADS + "q_up.weight", {L + "self_attn.q_b_proj.weight": ()}, layouts.LATENT_Q_UP),
        Row(HEADS + "norm.weight", {L + "self_attn.kv_a_layernorm.weight": ()}),
        Row(HEADS + "up.weight", {L + "self_attn.kv_b_proj.weight": ()}, layouts.LATENT_UP),
    ],
    drop=["num_key_value_heads", "head_dim", "mlp_bias", HEADS + "qkv.*"],
    fixed=LLAMA.fixed | {"rope_interleave": (True, None)},
    settled=spelling.settle_deepseek,
    spelled=spelling.spell_deepseek,
)

DIFFLLAMA = LLAMA.derive(  # differential heads
    "DiffLlamaForCausalLM",
    model={
        "bias": False,
        "attention.heads": {
            "_target_": "attnlab.attention.heads.differential.DifferentialHeads",
            "norm_gain": False,
        },
    },
    keys=[Key("rms_norm_eps", EPS, 1e-5), LAYERS],
    rows=[
        Row(HEADS + "qkv.*", {f"{L}self_attn.{p}_proj.*": (p,) for p in QKV}, layouts.WIDE_VALUES),
        Row(
            HEADS + "lambdas",
            {f"{L}self_attn.lambda_{p}": () for p in ("q1", "k1", "q2", "k2")},
            layouts.LAMBDAS,
        ),
    ],
    drop=["mlp_bias"],
    settled=spelling.settle_diffllama,
    spelled=spelling.spell_diffllama,
)

GPT2 = Family(  # learned positions, biases everywhere, matrices that are transposed
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    model=set_leaves(
        BASE,
        {
            "bias": True,
            "ffn": MLP,
            "norm": LAYER_NORM,
            "positions": {"_target_": "attnlab.model.transformer.LearnedPositions"},
            "attention.heads.bias": True,
            "attention.heads.out_bias": True,
        },
    ),
    fixed={"scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,), **FULL_PRECISION},
    keys=(
        Key("n_embd", ("dim", "attention.heads.dim", "positions.dim")),
        Key("n_layer", ("n_layers",)),
        Key("n_head", ALL_HEADS),
        Key("n_positions", ("positions.length",)),
        Key("n_inner", ("ffn_width",), _four_times("n_embd")),
        Key("activation_function", ("ffn.approximate",), "gelu_new", *GELU),
        Key("layer_norm_epsilon", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("tie",), True, truth),
        Key(
            "scale_attn_weights",
            ("attention.scale_exponent",),
            True,
            lambda scaled: -0.5 if scaled else 0,
            bool,
        ),
    ),
    rows=(
        Row("positions.table.weight", {"transformer.wpe.weight": ()}),
        Row("embedding.weight", {"transformer.wte.weight": ()}),
        Row(LAYER + "mixer_norm.*", {"transformer.h.{n}.ln_1.*": ()}),
        Row(HEADS + "qkv.*", {"transformer.h.{n}.attn.c_attn.*": QKV}, TRANSPOSED),
        Row(HEADS + "out.*", {"transformer.h.{n}.attn.c_proj.*": ()}, TRANSPOSED),
        Row(LAYER + "ffn_norm.*", {"transformer.h.{n}.ln_2.*": ()}),
        Row(LAYER + "ffn.up.*", {"transformer.h.{n}.mlp.c_fc.*": ()}, TRANSPOSED),
        Row(LAYER + "ffn.down.*", {"transformer.h.{n}.mlp.c_proj.*": ()}, TRANSPOSED),
        Row("norm.*", {"transformer.ln_f.*": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=(".attn.bias", ".attn.masked_bias"),  # masks
)

GPT_NEOX = Family(  # and Pythia: a quarter of the features turns, blocks are parallel or not
    architecture="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    model=set_leaves(
        BASE, {"bias": True, "ffn": MLP, "norm": LAYER_NORM, "block": BLOCK, "attention.rotary": ROPE}
    ),
    fixed=FULL_PRECISION,
    keys=(
        Key("hidden_size", ("dim", "attention.heads.dim")),
        Key("num_hidden_layers", ("n_layers",)),
        Key("num_attention_heads", ALL_HEADS),
        Key("intermediate_size", ("ffn_width",)),
        Key("hidden_act", ("ffn.approximate",), "gelu", *GELU),
        Key("layer_norm_eps", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("tie",), False, truth),
        Key("attention_bias", BIASES, True, truth),
        Key("use_parallel_residual", ("block.parallel",), True, truth),
        Key("partial_rotary_factor", ("attention.rotary.fraction",)),
        *ROTATION,
    ),
    rows=(
        Row("embedding.weight", {"gpt_neox.embed_in.weight": ()}),
        Row(LAYER + "mixer_norm.*", {"gpt_neox.layers.{n}.input_layernorm.*": ()}),
        Row(HEADS + "qkv.*", {"gpt_neox.layers.{n}.attention.query_key_value.*": QKV}, GROUPED),
        Row(HEADS + "out.*", {"gpt_neox.layers.{n}.attention.dense.*": ()}),
        Row(LAYER + "ffn_norm.*", {"gpt_neox.layers.{n}.post_attention_layernorm.*": ()}),
        Row(LAYER + "ffn.up.*", {"gpt_neox.layers.{n}.mlp.dense_h_to_4h.*": ()}),
        Row(LAYER + "ffn.down.*", {"gpt_neox.layers.{n}.mlp.dense_4h_to_h.*": ()}),
        Row("norm.*", {"gpt_neox.final_layer_norm.*": ()}),
        Row("head.weight", {"embed_out.weight": ()}),
    ),
    ignored=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"),
    settled=spelling.settle_neox,
    spelled=spelling.spell_neox,
)

MPT = Family(  # ALiBi
    architecture="MptForCausalLM",
    prefix="transformer.",
    model=set_leaves(
        BASE,
        {
            "bias": False,
            "ffn": MLP | {"approximate": "none"},
            "norm": LAYER_NORM | {"bias": False},
            "attention.heads.bias": False,
            "attention.heads.out_bias": False,
            "attention.scores.alibi": {"_target_": "attnlab.attention.scores.alibi.Alibi"},
        },
    ),
    fixed={
        "expansion_ratio": (4,),
        "no_bias": (True,),
        "logit_scale": (None,),
        "attn_config.alibi": (True,),
        "attn_config.alibi_bias_max": (8,),
        "attn_config.attn_type": ("multihead_attention",),
        "attn_config.clip_qkv": (None,),
        "attn_config.qk_ln": (False,),
        "attn_config.prefix_lm": (False,),
        **FULL_PRECISION,
    },
    keys=(
        Key("d_model", ("ffn_width",), read=lambda width: 4 * number(width), write=lambda width: width // 4),
        Key("d_model", ("dim", "attention.heads.dim")),
        Key("n_layers", ("n_layers",)),
        Key("n_heads", (*ALL_HEADS, "attention.scores.alibi.n_heads")),
        Key("layer_norm_epsilon", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("tie",), True, truth),
        Key("multiplier", ("attention.multiplier",)),
    ),
    rows=(
        Row("embedding.weight", {"transformer.wte.weight": ()}),
        Row(LAYER + "mixer_norm.*", {"transformer.blocks.{n}.norm_1.*": ()}),
        Row(HEADS + "qkv.*", {"transformer.blocks.{n}.attn.Wqkv.*": QKV}),
        Row(HEADS + "out.*", {"transformer.blocks.{n}.attn.out_proj.*": ()}),
        Row(LAYER + "ffn_norm.*", {"transformer.blocks.{n}.norm_2.*": ()}),
        Row(LAYER + "ffn.up.*", {"transformer.blocks.{n}.ffn.up_proj.*": ()}),
        Row(LAYER + "ffn.down.*", {"transformer.blocks.{n}.ffn.down_proj.*": ()}),
        Row("norm.*", {"transformer.norm_f.*": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    settled=spelling.settle_mpt,
    spelled=spelling.spell_mpt,
)


def _has_two_norms(config: Config) -> bool:
    return bool(config["block"]["parallel"] and not config["block"].get("shared_norm"))


def _has_usual_norms(config: Config) -> bool:
    return not _has_two_norms(config)


_F = "transformer.h.{n}."
FALCON = Family(  # parallel blocks with one norm or two, ALiBi or not
    architecture="FalconForCausalLM",
    prefix="transformer.",
    model=set_leaves(BASE, {"ffn": MLP, "norm": LAYER_NORM, "block": BLOCK}),
    fixed=FULL_PRECISION,
    keys=(
        Key("hidden_size", ("dim", "attention.heads.dim")),
        Key("num_hidden_layers", ("n_layers",)),
        Key("num_attention_heads", ("n_heads", "attention.heads.n_heads")),
        Key("num_kv_heads", ("attention.heads.n_kv_heads",)),
        Key("ffn_hidden_size", ("ffn_width",), _four_times("hidden_size")),
        Key("activation", ("ffn.approximate",), "gelu", *GELU),
        Key("layer_norm_epsilon", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("tie",), True, truth),
        Key("bias", ("bias", *BIASES), False, truth),
        Key("parallel_attn", ("block.parallel",), True, truth),
        Key("num_ln_in_parallel_attn", ("block.shared_norm",), False, truth),
        Key("rotary", ("attention.rotary",), None, same),
        Key("alibi", ("attention.scores.coarsealibi",), None, same),
    ),
    rows=(
        Row(LAYER + "mixer_norm.*", {_F + "ln_attn.*": ()}, only=_has_two_norms),
        Row(LAYER + "ffn_norm.*", {_F + "ln_mlp.*": ()}, only=_has_two_norms),
        Row("embedding.weight", {"transformer.word_embeddings.weight": ()}),
        Row(LAYER + "mixer_norm.*", {_F + "input_layernorm.*": ()}),
        Row(HEADS + "qkv.*", {_F + "self_attention.query_key_value.*": QKV}, GROUPED),
        Row(HEADS + "out.*", {_F + "self_attention.dense.*": ()}),
        Row(LAYER + "ffn_norm.*", {_F + "post_attention_layernorm.*": ()}),
        Row(LAYER + "ffn.up.*", {_F + "mlp.dense_h_to_4h.*": ()}),
        Row(LAYER + "ffn.down.*", {_F + "mlp.dense_4h_to_h.*": ()}),
        Row("norm.*", {"transformer.ln_f.*": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=("rotary_emb.inv_freq",),
    settled=spelling.settle_falcon,
    spelled=spelling.spell_falcon,
)

FAMILIES: Mapping[str, Family] = {  # `save` takes the first that can hold a model
    "gpt2": GPT2,
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "mistral": MISTRAL,
    "phi3": PHI3,
    "gpt_neox": GPT_NEOX,
    "smollm3": SMOLLM3,
    "olmo2": OLMO2,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gpt_oss": GPT_OSS,
    "deepseek_v3": DEEPSEEK_V3,
    "mpt": MPT,
    "falcon": FALCON,
    "diffllama": DIFFLLAMA,
}
