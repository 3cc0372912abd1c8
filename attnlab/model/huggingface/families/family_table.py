"""Checkpoint families that can be read and written, by their `model_type`.

Most differ from Llama in the names of keys and tensors and in a few constants. Functions for other tensor
layouts are in `layouts`, those for config formats in `config_variants`.
"""

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from attnlab.model.huggingface import rope_config, windows
from attnlab.model.huggingface.config_values import require_bool, require_integer, require_number
from attnlab.model.huggingface.families import config_variants, layouts
from attnlab.model.huggingface.families.checkpoint_family import (
    HEADS_PREFIX,
    LAYER_PREFIX,
    PLAIN_LAYOUT,
    ConfigKey,
    Family,
    Layout,
    TensorRow,
    map_names,
    return_unchanged,
    set_leaves,
)
from attnlab.model.huggingface.families.layouts import GROUPED_LAYOUT, PLUS_ONE, TRANSPOSED_LAYOUT
from attnlab.model.huggingface.rope_config import Config

# Parts of our config

METHOD = {"_target_": "hydra.utils.get_method"}
SDPA = METHOD | {"path": "attnlab.attention.kernels.sdpa.sdpa"}
EAGER = METHOD | {"path": "attnlab.attention.kernels.eager.eager"}
MLP = {"_target_": "attnlab.model.transformer.Mlp", "_partial_": True}
SWIGLU = {"_target_": "attnlab.model.transformer.SwiGlu", "_partial_": True}
RELU_MLP = {"_target_": "attnlab.model.transformer.ReluMlp", "_partial_": True}
EXPERTS = {"_target_": "attnlab.model.experts.Experts", "_partial_": True}
SWIGLU_EXPERTS = EXPERTS | {"sharpness": 1.0, "limit": None, "offset": 0.0}
ROPE = {"_target_": "attnlab.attention.rotary.Rope", "fraction": 1.0}
BLOCK = {"_target_": "attnlab.model.block.Block", "_partial_": True}
LAYER_NORM = {"_target_": "torch.nn.LayerNorm", "_partial_": True, "bias": True}
BASE_CONFIG: Config = {
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

_GELU_TANH_NAMES = ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate")
_EXACT_GELU_NAMES = ("gelu", "gelu_python")  # gelu_10 clips at 10, and quick_gelu is another function
_SILU_NAMES = ("silu", "swish")
GELU_NAMES = map_names(  # of `Mlp`
    dict.fromkeys(_GELU_TANH_NAMES, "tanh") | dict.fromkeys(_EXACT_GELU_NAMES, "none")
)
GATED_ACTIVATION_NAMES = map_names(
    {"gelu_pytorch_tanh": "gelu_tanh"}  # the name that is written
    | dict.fromkeys(_GELU_TANH_NAMES, "gelu_tanh")
    | dict.fromkeys(_EXACT_GELU_NAMES, "gelu")
    | dict.fromkeys(_SILU_NAMES, "silu")
)
GEMMA_ACTIVATION_NAMES = map_names(  # transformers reads "gelu" in this family as its approximation
    {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_tanh", "gelu_python": "gelu"}
    | dict.fromkeys(_GELU_TANH_NAMES, "gelu_tanh")
    | dict.fromkeys(_SILU_NAMES, "silu")
)
LAYERS_KEY = ConfigKey(
    "layers", ("layers",), None, return_unchanged
)  # patches from `normalize`; `denormalize` receives the mixers
ROTATION_KEYS = (
    ConfigKey("rope_theta", ("attention.rotary.base",)),
    ConfigKey(
        "rope_scaling",
        ("attention.rotary.scaling",),
        None,
        rope_config.read_scaling,
        rope_config.write_scaling,
    ),
)
WINDOW_KEY = ConfigKey(
    "sliding_window", ("attention.masks.window",), None, windows.make_window_mask, windows.get_mask_size
)
EPS_PATHS = ("norm.eps", "attention.heads.norm_eps")
N_HEADS_PATHS = ("n_heads", "attention.heads.n_heads", "attention.heads.n_kv_heads")
BIAS_PATHS = ("attention.heads.bias", "attention.heads.out_bias")
SILU_ONLY = {"hidden_act": _SILU_NAMES}
SQUARED_RELU_ONLY = {"hidden_act": ("relu2",)}
ALL_FAMILIES = {"quantization_config": (None,), "is_causal": (True,), "per_layer_config": (None,)}
FULL_ROTATION = {  # RoPE on all features
    f"{place}partial_rotary_factor": (None, 1.0) for place in ("", "rope_parameters.", "rope_scaling.")
}
QKV_PARTS = ("q", "k", "v")
LLAMA_LAYER = "model.layers.{n}."
FUSED_GATE_ROW = TensorRow(LAYER_PREFIX + "ffn.up.*", {LLAMA_LAYER + "mlp.gate_up_proj.*": ("gate", "up")})
PLAIN_FFN_ROW = TensorRow(LAYER_PREFIX + "ffn.up.*", {LLAMA_LAYER + "mlp.up_proj.*": ()})
QKV_ROW = TensorRow(HEADS_PREFIX + "qkv.*", {f"{LLAMA_LAYER}self_attn.{p}_proj.*": (p,) for p in QKV_PARTS})
PAIRED_ROPE_ROW = QKV_ROW._replace(layout=layouts.ROTARY_PAIRS)  # RoPE rotates neighboring features
LLAMA_KV_HEADS_KEY = ConfigKey(
    "num_key_value_heads", ("attention.heads.n_kv_heads",), itemgetter("num_attention_heads")
)


def _make_kv_heads_key(default: int) -> ConfigKey:
    return ConfigKey("num_key_value_heads", ("attention.heads.n_kv_heads",), default)


def _default_to_four_times(width: str) -> Any:
    return lambda theirs: 4 * require_number(theirs.get(width))


def _make_norm_rows(layout: Layout = PLAIN_LAYOUT, **names: str) -> tuple[TensorRow, ...]:
    """Make the rows of a layer's norms: our name -> their name."""
    return tuple(
        TensorRow(f"{LAYER_PREFIX}{ours}.*", {f"{LLAMA_LAYER}{theirs}.*": ()}, layout)
        for ours, theirs in names.items()
    )


def _make_qk_norm_rows(layout: Layout = PLAIN_LAYOUT) -> tuple[TensorRow, ...]:
    return tuple(
        TensorRow(f"{HEADS_PREFIX}{p}_norm.weight", {f"{LLAMA_LAYER}self_attn.{p}_norm.weight": ()}, layout)
        for p in "qk"
    )


def _make_expert_rows(block: str, gate: str, up: str, down: str) -> tuple[TensorRow, ...]:
    """Make the rows of experts that files store one by one."""
    experts = f"{LLAMA_LAYER}{block}.experts.{{e}}."
    return (
        TensorRow(LAYER_PREFIX + "ffn.router.*", {f"{LLAMA_LAYER}{block}.gate.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.up.*", {f"{experts}{name}.*": () for name in (gate, up)}),
        TensorRow(LAYER_PREFIX + "ffn.down.*", {f"{experts}{down}.*": ()}),
    )


def _make_qwen_expert_keys(width: int, n_experts: int, n_chosen: int) -> tuple[ConfigKey, ...]:
    return (
        ConfigKey("moe_intermediate_size", ("ffn_width",), width),
        ConfigKey("num_experts", ("ffn.n_experts",), n_experts, require_integer),
        ConfigKey("num_experts_per_tok", ("ffn.n_chosen",), n_chosen, require_integer),
        ConfigKey("norm_topk_prob", ("ffn.renormalize",), False, require_bool),
    )


QWEN_EXPERT_ROWS = _make_expert_rows("mlp", "gate_proj", "up_proj", "down_proj")
EXPERTS_IN_ALL_LAYERS: Config = {"decoder_sparse_step": (1,), "mlp_only_layers": ([], None)}


# The families

LLAMA = Family(
    architecture="LlamaForCausalLM",
    prefix="model.",
    model=set_leaves(
        BASE_CONFIG,
        {
            "ffn": SWIGLU,
            "norm": {"_target_": "torch.nn.RMSNorm", "_partial_": True},
            "attention.rotary": ROPE,
        },
    ),
    fixed=SILU_ONLY | FULL_ROTATION | ALL_FAMILIES,
    keys=(
        ConfigKey("hidden_size", ("dim", "attention.heads.dim")),
        ConfigKey("num_hidden_layers", ("n_layers",)),
        ConfigKey("num_attention_heads", ("n_heads", "attention.heads.n_heads")),
        LLAMA_KV_HEADS_KEY,
        ConfigKey("head_dim", ("attention.heads.head_dim",), None),
        ConfigKey("intermediate_size", ("ffn_width",)),
        ConfigKey("rms_norm_eps", ("norm.eps",), 1e-6),
        ConfigKey("tie_word_embeddings", ("tie",), False, require_bool),
        ConfigKey("attention_bias", BIAS_PATHS, False, require_bool),
        ConfigKey("mlp_bias", ("bias",), False, require_bool),
        *ROTATION_KEYS,
    ),
    rows=(
        TensorRow("embedding.weight", {"model.embed_tokens.weight": ()}),
        TensorRow(LAYER_PREFIX + "mixer_norm.*", {LLAMA_LAYER + "input_layernorm.*": ()}),
        QKV_ROW,
        TensorRow(HEADS_PREFIX + "out.*", {LLAMA_LAYER + "self_attn.o_proj.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn_norm.*", {LLAMA_LAYER + "post_attention_layernorm.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.up.*", {f"{LLAMA_LAYER}mlp.{p}_proj.*": (p,) for p in ("gate", "up")}),
        TensorRow(LAYER_PREFIX + "ffn.down.*", {LLAMA_LAYER + "mlp.down_proj.*": ()}),
        TensorRow("norm.*", {"model.norm.*": ()}),
        TensorRow("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=("rotary_emb.inv_freq",),
    normalize=rope_config.normalize_rotation,
)

MISTRAL = LLAMA.derive(  # sliding window
    "MistralForCausalLM",
    model={"bias": False, "attention.heads.bias": False, "attention.heads.out_bias": False},
    keys=[WINDOW_KEY],
    drop=["attention_bias", "mlp_bias"],
    fixed=LLAMA.fixed | {"layer_types": (None,)},
    normalize=config_variants.normalize_mistral,
)


def _invert(scale: Any) -> Any:
    return 1 / scale if scale else None


def _read_inverse(divisor: Any) -> Any:
    if not require_number(divisor):
        raise ValueError("must not be 0")
    return 1 / divisor


GRANITE = LLAMA.derive(  # constant factors of embeddings, scores, residual branches and logits
    "GraniteForCausalLM",
    model={"block": BLOCK},
    keys=[
        ConfigKey("embedding_multiplier", ("embedding_scale",), 1.0),
        ConfigKey("attention_multiplier", ("attention.multiplier",), 1.0),
        ConfigKey("residual_multiplier", ("block.multiplier",), 1.0),
        ConfigKey("logits_scaling", ("logit_scale",), 1.0, _read_inverse, _invert),
    ],
    normalize=config_variants.normalize_granite,
    denormalize=config_variants.denormalize_granite,
)

STARCODER2 = LLAMA.derive(  # LayerNorm, plain FFN, biases everywhere, sliding window
    "Starcoder2ForCausalLM",
    model={"ffn": MLP, "norm": LAYER_NORM},
    keys=[
        _make_kv_heads_key(2),
        ConfigKey("hidden_act", ("ffn.approximate",), "gelu_pytorch_tanh", *GELU_NAMES),
        ConfigKey("norm_epsilon", ("norm.eps",), 1e-5),
        ConfigKey("tie_word_embeddings", ("tie",), True, require_bool),
        ConfigKey("use_bias", ("bias", *BIAS_PATHS), True, require_bool),
        WINDOW_KEY,
    ],
    rows=[
        TensorRow(LAYER_PREFIX + "ffn.up.*", {LLAMA_LAYER + "mlp.c_fc.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.down.*", {LLAMA_LAYER + "mlp.c_proj.*": ()}),
    ],
    drop=["rms_norm_eps", "attention_bias", "mlp_bias"],
    fixed=FULL_ROTATION | {"layer_types": (None,)} | ALL_FAMILIES,
)

STABLELM = LLAMA.derive(  # LayerNorm, partial RoPE, parallel blocks with one norm or sequential ones
    "StableLmForCausalLM",
    model={"bias": False, "norm": LAYER_NORM, "block": BLOCK, "attention.heads.out_bias": False},
    keys=[
        _make_kv_heads_key(32),
        ConfigKey("layer_norm_eps", ("norm.eps",), 1e-5),
        ConfigKey("use_qkv_bias", ("attention.heads.bias",), False, require_bool),
        ConfigKey("use_parallel_residual", ("block.parallel", "block.shared_norm"), False, require_bool),
        ConfigKey("partial_rotary_factor", ("attention.rotary.fraction",)),
    ],
    drop=["head_dim", "rms_norm_eps", "attention_bias", "mlp_bias"],
    fixed=SILU_ONLY | {"head_dim": (None,), "qk_layernorm": (False,)} | ALL_FAMILIES,
    normalize=partial(rope_config.normalize_rotation, fraction=0.25),
)

SEED_OSS = LLAMA.derive(  # separate switches of the biases
    "SeedOssForCausalLM",
    keys=[
        ConfigKey("attention_bias", ("attention.heads.bias",), True, require_bool),
        ConfigKey("attention_out_bias", ("attention.heads.out_bias",), False, require_bool),
    ],
    normalize=partial(
        config_variants.normalize_with_defaults, defaults={"head_dim": 128, "num_key_value_heads": 8}
    ),
)

GLM = LLAMA.derive(  # partial RoPE of neighboring features, fused matrices
    "GlmForCausalLM",
    model={"bias": False, "attention.heads.out_bias": False},
    keys=[
        _make_kv_heads_key(2),
        ConfigKey("head_dim", ("attention.heads.head_dim",), 128),
        ConfigKey("rms_norm_eps", ("norm.eps",), 1.5625e-7),
        ConfigKey("attention_bias", ("attention.heads.bias",), True, require_bool),
        ConfigKey("partial_rotary_factor", ("attention.rotary.fraction",)),
    ],
    rows=[PAIRED_ROPE_ROW, FUSED_GATE_ROW],
    drop=["mlp_bias"],
    fixed=SILU_ONLY | ALL_FAMILIES,
    normalize=partial(config_variants.normalize_with_defaults, defaults={"head_dim": 128}, fraction=0.5),
)

GLM4 = GLM.derive(  # norms on both sides of each part
    "Glm4ForCausalLM",
    model={"block": BLOCK | {"norms": "sandwich"}},
    rows=_make_norm_rows(
        mixer_after="post_self_attn_layernorm",
        ffn_norm="post_attention_layernorm",
        ffn_after="post_mlp_layernorm",
    ),
)

ERNIE4_5 = LLAMA.derive(  # RoPE of neighboring features, one switch of all biases
    "Ernie4_5ForCausalLM",
    keys=[
        ConfigKey("rms_norm_eps", ("norm.eps",), 1e-5),
        ConfigKey("tie_word_embeddings", ("tie",), True, require_bool),
        ConfigKey("use_bias", ("bias", *BIAS_PATHS), False, require_bool),
    ],
    rows=[PAIRED_ROPE_ROW],
    drop=["attention_bias", "mlp_bias"],
    normalize=partial(
        config_variants.normalize_with_defaults,
        defaults={"head_dim": 128, "num_key_value_heads": 2},
        base=500000.0,
    ),
)

HELIUM = LLAMA.derive(  # RoPE of neighboring features, no bias of the output projection
    "HeliumForCausalLM",
    model={"attention.heads.out_bias": False},
    keys=[
        _make_kv_heads_key(20),
        ConfigKey("head_dim", ("attention.heads.head_dim",), 128),
        ConfigKey("rms_norm_eps", ("norm.eps",), 1e-8),
        ConfigKey("attention_bias", ("attention.heads.bias",), False, require_bool),
    ],
    rows=[PAIRED_ROPE_ROW],
    normalize=config_variants.normalize_helium,
)

COHERE = LLAMA.derive(  # LayerNorm without bias, parallel blocks with one norm, RoPE of neighboring features
    "CohereForCausalLM",
    model={
        "bias": False,
        "norm": LAYER_NORM | {"bias": False},
        "block": BLOCK | {"parallel": True, "shared_norm": True},
    },
    keys=[
        ConfigKey("layer_norm_eps", ("norm.eps",), 1e-5),
        ConfigKey("logit_scale", ("logit_scale",), 0.0625),
        ConfigKey("tie_word_embeddings", ("tie",), True, require_bool),
    ],
    rows=[PAIRED_ROPE_ROW],
    drop=["rms_norm_eps", "mlp_bias", LAYER_PREFIX + "ffn_norm.*"],
    fixed=LLAMA.fixed | {"use_qk_norm": (False, None)},
    normalize=partial(rope_config.normalize_rotation, base=500000.0),
)

COHERE2 = COHERE.derive(  # windows; full layers without RoPE
    "Cohere2ForCausalLM",
    keys=[LAYERS_KEY],
    fixed=LLAMA.fixed,
    normalize=config_variants.normalize_cohere2,
    denormalize=config_variants.denormalize_windows_with_default,
)

ARCEE = LLAMA.derive(  # squared ReLU
    "ArceeForCausalLM",
    model={"ffn": RELU_MLP | {"power": 2}},
    keys=[ConfigKey("rms_norm_eps", ("norm.eps",), 1e-5)],
    rows=[PLAIN_FFN_ROW],
    fixed=SQUARED_RELU_ONLY | FULL_ROTATION | ALL_FAMILIES,
)

NEMOTRON = LLAMA.derive(  # squared ReLU, LayerNorm with gains minus 1, partial RoPE
    "NemotronForCausalLM",
    model={"ffn": RELU_MLP | {"power": 2}, "norm": LAYER_NORM},
    keys=[
        ConfigKey("num_key_value_heads", ("attention.heads.n_kv_heads",)),
        ConfigKey("norm_eps", ("norm.eps",), 1e-5),
        ConfigKey("partial_rotary_factor", ("attention.rotary.fraction",)),
    ],
    rows=[
        PLAIN_FFN_ROW,
        *(
            TensorRow(f"{ours}.{part}", {f"{theirs}.{part}": ()}, layout)
            for ours, theirs in (
                (LAYER_PREFIX + "mixer_norm", LLAMA_LAYER + "input_layernorm"),
                (LAYER_PREFIX + "ffn_norm", LLAMA_LAYER + "post_attention_layernorm"),
                ("norm", "model.norm"),
            )
            for part, layout in (("weight", PLUS_ONE), ("bias", PLAIN_LAYOUT))
        ),
    ],
    drop=["rms_norm_eps", LAYER_PREFIX + "mixer_norm.*", LAYER_PREFIX + "ffn_norm.*", "norm.*"],
    fixed=SQUARED_RELU_ONLY | ALL_FAMILIES,
    normalize=partial(rope_config.normalize_rotation, fraction=0.5),
)

PHI3 = MISTRAL.derive(  # fused matrices, partial RoPE
    "Phi3ForCausalLM",
    keys=[
        ConfigKey("rms_norm_eps", ("norm.eps",), 1e-5),
        ConfigKey("partial_rotary_factor", ("attention.rotary.fraction",)),
    ],
    rows=[
        TensorRow(HEADS_PREFIX + "qkv.*", {LLAMA_LAYER + "self_attn.qkv_proj.*": QKV_PARTS}),
        FUSED_GATE_ROW,
    ],
    drop=["rope_scaling"],
    fixed=SILU_ONLY | ALL_FAMILIES,
    normalize=partial(rope_config.normalize_rotation, fraction=1.0, kinds=()),
)

QWEN2 = LLAMA.derive(  # biases of queries, keys and values; windows per layer
    "Qwen2ForCausalLM",
    model={"bias": False, "attention.heads.bias": True, "attention.heads.out_bias": False},
    keys=[LAYERS_KEY],
    drop=["attention_bias", "mlp_bias"],
    normalize=config_variants.normalize_qwen,
    denormalize=config_variants.denormalize_qwen,
)

QWEN3 = LLAMA.derive(  # norms of queries and keys; windows per layer
    "Qwen3ForCausalLM",
    model={"bias": False, "attention.heads.qk_norm": True},
    keys=[
        LAYERS_KEY,
        ConfigKey("rms_norm_eps", EPS_PATHS, 1e-6),
        ConfigKey("head_dim", ("attention.heads.head_dim",), 128),
    ],
    rows=_make_qk_norm_rows(),
    drop=["mlp_bias"],
    normalize=config_variants.normalize_qwen,
    denormalize=config_variants.denormalize_qwen,
)

SMOLLM3 = LLAMA.derive(  # every fourth layer has no RoPE
    "SmolLM3ForCausalLM",
    keys=[LAYERS_KEY, ConfigKey("tie_word_embeddings", ("tie",), True, require_bool)],
    normalize=config_variants.normalize_smollm,
    denormalize=config_variants.denormalize_smollm,
)

OLMO2 = LLAMA.derive(  # post-norms; norms of queries and keys over their full width
    "Olmo2ForCausalLM",
    model={
        "bias": False,
        "block": BLOCK | {"norms": "post"},
        "attention.heads.qk_norm": True,
        "attention.heads.norm_over": "width",
    },
    keys=[ConfigKey("rms_norm_eps", EPS_PATHS, 1e-5)],
    rows=[
        *_make_qk_norm_rows(),
        *_make_norm_rows(mixer_after="post_attention_layernorm", ffn_after="post_feedforward_layernorm"),
    ],
    drop=["mlp_bias", LAYER_PREFIX + "mixer_norm.*", LAYER_PREFIX + "ffn_norm.*"],
)

OLMO3 = OLMO2.derive(  # windows, two RoPE tables
    "Olmo3ForCausalLM",
    keys=[LAYERS_KEY],
    normalize=config_variants.normalize_olmo3,
    denormalize=config_variants.denormalize_windows_and_rotations,
)

EXAONE4 = OLMO2.derive(  # norms of queries and keys per head; windows; full layers without RoPE
    "Exaone4ForCausalLM",
    model={
        "attention.heads.bias": False,
        "attention.heads.out_bias": False,
        "attention.heads.norm_over": "head",
    },
    keys=[_make_kv_heads_key(32), LAYERS_KEY],
    drop=["attention_bias"],
    normalize=config_variants.normalize_exaone4,
    denormalize=config_variants.denormalize_exaone4,
)

GEMMA = LLAMA.derive(  # gains minus 1, scaled embeddings, GELU gate
    "GemmaForCausalLM",
    model={"bias": False},
    keys=[
        ConfigKey(
            "hidden_size",
            ("embedding_scale",),
            read=lambda width: require_number(width) ** 0.5,
            write=lambda scale: round(scale**2),
        ),
        ConfigKey("hidden_size", ("dim", "attention.heads.dim")),
        ConfigKey("head_dim", ("attention.heads.head_dim",), 256),
        _make_kv_heads_key(16),
        ConfigKey("hidden_act", ("ffn.activation",), "gelu_pytorch_tanh", *GEMMA_ACTIVATION_NAMES),
        ConfigKey("tie_word_embeddings", ("tie",), True, require_bool),
    ],
    rows=[
        *_make_norm_rows(PLUS_ONE, mixer_norm="input_layernorm", ffn_norm="post_attention_layernorm"),
        TensorRow("norm.*", {"model.norm.*": ()}, PLUS_ONE),
    ],
    drop=["mlp_bias"],
    fixed=FULL_ROTATION | {"use_bidirectional_attention": (None, False)} | ALL_FAMILIES,
)

GEMMA2 = GEMMA.derive(  # norms on both sides of each part, capped scores and logits, windows
    "Gemma2ForCausalLM",
    model={"block": BLOCK | {"norms": "sandwich"}, "attention.kernel": EAGER},
    keys=[
        ConfigKey("head_dim", ("attention.heads.head_dim",)),
        LLAMA_KV_HEADS_KEY,
        ConfigKey("hidden_activation", ("ffn.activation",), "gelu_pytorch_tanh", *GATED_ACTIVATION_NAMES),
        ConfigKey("query_pre_attn_scalar", ("attention.multiplier",)),
        ConfigKey(
            "attn_logit_softcapping",
            ("attention.scores.softcap",),
            None,
            lambda cap: {"_target_": "attnlab.attention.scores.softcap.softcap", "cap": require_number(cap)},
            lambda score: score.get("cap"),
        ),
        ConfigKey("final_logit_softcapping", ("logit_cap",), None),
        LAYERS_KEY,
    ],
    rows=_make_norm_rows(
        PLUS_ONE,
        mixer_after="post_attention_layernorm",
        ffn_norm="pre_feedforward_layernorm",
        ffn_after="post_feedforward_layernorm",
    ),
    drop=["hidden_act"],
    normalize=config_variants.normalize_gemma2,
    denormalize=config_variants.denormalize_gemma2,
)

GEMMA3 = GEMMA2.derive(  # two RoPE tables
    "Gemma3ForCausalLM",
    model={"attention.kernel": SDPA, "attention.heads.qk_norm": True},
    keys=[ConfigKey("rms_norm_eps", EPS_PATHS, 1e-6)],
    rows=_make_qk_norm_rows(PLUS_ONE),
    drop=["attn_logit_softcapping"],
    fixed=GEMMA2.fixed | {"attn_logit_softcapping": (None,)},
    normalize=config_variants.normalize_gemma3,
    denormalize=config_variants.denormalize_gemma3,
)

GPT_OSS = LLAMA.derive(  # sinks, windows in every second layer, mixture of experts
    "GptOssForCausalLM",
    model={
        "bias": True,
        "ffn": EXPERTS,
        "attention.kernel": EAGER,
        "attention.epilogue": {"_target_": "attnlab.attention.epilogue.Sinks"},
    },
    keys=[
        ConfigKey(
            "num_attention_heads", ("n_heads", "attention.heads.n_heads", "attention.epilogue.n_heads")
        ),
        ConfigKey("head_dim", ("attention.heads.head_dim",), 64),
        ConfigKey("rms_norm_eps", ("norm.eps",), 1e-5),
        ConfigKey("attention_bias", BIAS_PATHS, True, require_bool),
        ConfigKey("num_local_experts", ("ffn.n_experts",), 128, require_integer),
        ConfigKey("num_experts_per_tok", ("ffn.n_chosen",), 4, require_integer),
        ConfigKey("swiglu_alpha", ("ffn.sharpness",), 1.702),
        ConfigKey("swiglu_limit", ("ffn.limit",), 7.0),
        LAYERS_KEY,
    ],
    rows=[
        TensorRow(LAYER_PREFIX + "mixer.epilogue.logit", {LLAMA_LAYER + "self_attn.sinks": ()}),
        TensorRow(LAYER_PREFIX + "ffn.router.*", {LLAMA_LAYER + "mlp.router.*": ()}),
        *(
            TensorRow(f"{LAYER_PREFIX}ffn.{ours}", {f"{LLAMA_LAYER}mlp.experts.{theirs}": ()}, layout)
            for ours, theirs, layout in (
                ("up.weight", "gate_up_proj", layouts.EXPERTS_UP),
                ("up.bias", "gate_up_proj_bias", layouts.EXPERTS_UP),
                ("down.weight", "down_proj", layouts.EXPERTS_DOWN),
                ("down.bias", "down_proj_bias", layouts.EXPERTS_DOWN),
            )
        ),
    ],
    drop=["mlp_bias", LAYER_PREFIX + "ffn.up.*", LAYER_PREFIX + "ffn.down.*"],
    fixed=FULL_ROTATION | SILU_ONLY | ALL_FAMILIES,
    aliases={"num_experts": "num_local_experts"},
    normalize=config_variants.normalize_gpt_oss,
    denormalize=config_variants.denormalize_windows_with_default,
)

MIXTRAL = MISTRAL.derive(  # mixture of experts
    "MixtralForCausalLM",
    model={"ffn": SWIGLU_EXPERTS},
    keys=[
        ConfigKey("rms_norm_eps", ("norm.eps",), 1e-5),
        ConfigKey("num_local_experts", ("ffn.n_experts",), 8, require_integer),
        ConfigKey("num_experts_per_tok", ("ffn.n_chosen",), 2, require_integer),
    ],
    rows=_make_expert_rows("block_sparse_moe", "w1", "w3", "w2"),
    fixed=MISTRAL.fixed | {"router_jitter_noise": (0.0,)},
    aliases={"num_experts": "num_local_experts"},
    normalize=partial(config_variants.normalize_with_defaults, defaults={"num_key_value_heads": 8}, base=1e6),
)

QWEN2_MOE = QWEN2.derive(  # mixture of experts with a shared one
    "Qwen2MoeForCausalLM",
    model={"ffn": SWIGLU_EXPERTS},
    keys=[
        *_make_qwen_expert_keys(width=1408, n_experts=60, n_chosen=4),
        ConfigKey("shared_expert_intermediate_size", ("ffn.shared_width",), 5632, require_integer),
        ConfigKey("qkv_bias", ("attention.heads.bias",), True, require_bool),
    ],
    rows=[
        *QWEN_EXPERT_ROWS,
        TensorRow(
            LAYER_PREFIX + "ffn.shared.up.*",
            {f"{LLAMA_LAYER}mlp.shared_expert.{p}_proj.*": (p,) for p in ("gate", "up")},
        ),
        TensorRow(LAYER_PREFIX + "ffn.shared.down.*", {LLAMA_LAYER + "mlp.shared_expert.down_proj.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.shared_gate.*", {LLAMA_LAYER + "mlp.shared_expert_gate.*": ()}),
    ],
    drop=["intermediate_size"],
    fixed=QWEN2.fixed | EXPERTS_IN_ALL_LAYERS,
    normalize=config_variants.normalize_qwen2_moe,
)

QWEN3_MOE = QWEN3.derive(  # mixture of experts; one window for all layers
    "Qwen3MoeForCausalLM",
    model={"ffn": SWIGLU_EXPERTS},
    keys=[
        *_make_qwen_expert_keys(width=768, n_experts=128, n_chosen=8),
        ConfigKey("head_dim", ("attention.heads.head_dim",), None),
        WINDOW_KEY,
    ],
    rows=QWEN_EXPERT_ROWS,
    drop=["intermediate_size", "layers"],
    fixed=QWEN3.fixed | EXPERTS_IN_ALL_LAYERS | {"layer_types": (None,)},
    normalize=config_variants.normalize_qwen3_moe,
    denormalize=config_variants.denormalize_qwen3_moe,
)


_KV_DOWN = {LLAMA_LAYER + "self_attn.kv_a_proj_with_mqa.*": ("latent", "k_rope")}
DEEPSEEK_V3 = LLAMA.derive(  # latent heads, dense layers
    "DeepseekV3ForCausalLM",
    model={
        "bias": False,
        "attention.heads": {"_target_": "attnlab.attention.heads.latent.LatentHeads", "norm_eps": 1e-6},
    },
    keys=[
        ConfigKey("q_lora_rank", ("attention.heads.q_rank",), None),
        ConfigKey("kv_lora_rank", ("attention.heads.rank",)),
        ConfigKey("qk_nope_head_dim", ("attention.heads.head_dim",)),
        ConfigKey("qk_rope_head_dim", ("attention.heads.rope_dim",)),
        ConfigKey("v_head_dim", ("attention.heads.value_dim",)),
        ConfigKey("multiplier", ("attention.multiplier",)),
    ],
    rows=[
        TensorRow(
            HEADS_PREFIX + "down.*",
            {LLAMA_LAYER + "self_attn.q_a_proj.*": ("q",), **_KV_DOWN},
            layouts.LATENT_DOWN,
            lambda config: "q_rank" in config["attention"]["heads"],
        ),
        TensorRow(
            HEADS_PREFIX + "down.*",
            {LLAMA_LAYER + "self_attn.q_proj.*": ("q",), **_KV_DOWN},
            layouts.LATENT_DOWN,
        ),
        TensorRow(HEADS_PREFIX + "q_norm.weight", {LLAMA_LAYER + "self_attn.q_a_layernorm.weight": ()}),
        TensorRow(
            HEADS_PREFIX + "q_up.weight", {LLAMA_LAYER + "self_attn.q_b_proj.weight": ()}, layouts.LATENT_Q_UP
        ),
        TensorRow(HEADS_PREFIX + "norm.weight", {LLAMA_LAYER + "self_attn.kv_a_layernorm.weight": ()}),
        TensorRow(
            HEADS_PREFIX + "up.weight", {LLAMA_LAYER + "self_attn.kv_b_proj.weight": ()}, layouts.LATENT_UP
        ),
    ],
    drop=["num_key_value_heads", "head_dim", "mlp_bias", HEADS_PREFIX + "qkv.*"],
    fixed=LLAMA.fixed | {"rope_interleave": (True,)},
    normalize=config_variants.normalize_deepseek,
    denormalize=config_variants.denormalize_deepseek,
)
DEEPSEEK_V3_EXPERTS = DEEPSEEK_V3.derive(  # layers after the dense ones, whose costs alone are known
    "DeepseekV3ForCausalLM",
    model={"ffn": SWIGLU_EXPERTS},
    keys=[
        ConfigKey("moe_intermediate_size", ("ffn_width",), 2048),
        ConfigKey("n_routed_experts", ("ffn.n_experts",), 256, require_integer),
        ConfigKey("num_experts_per_tok", ("ffn.n_chosen",), 8, require_integer),
        ConfigKey("n_shared_experts", ("ffn.n_shared",), 1, require_integer),
    ],
    drop=["intermediate_size"],
    fixed=DEEPSEEK_V3.fixed | {"moe_layer_freq": (1,)},
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
    keys=[ConfigKey("rms_norm_eps", EPS_PATHS, 1e-5), LAYERS_KEY],
    rows=[
        QKV_ROW._replace(layout=layouts.WIDE_VALUES),
        TensorRow(
            HEADS_PREFIX + "lambdas",
            {f"{LLAMA_LAYER}self_attn.lambda_{p}": () for p in ("q1", "k1", "q2", "k2")},
            layouts.LAMBDAS,
        ),
    ],
    drop=["mlp_bias"],
    normalize=config_variants.normalize_diffllama,
    denormalize=config_variants.denormalize_diffllama,
)

GPT2 = Family(  # learned positions, biases everywhere, matrices that are transposed
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    model=set_leaves(
        BASE_CONFIG,
        {
            "bias": True,
            "ffn": MLP,
            "norm": LAYER_NORM,
            "positions": {"_target_": "attnlab.model.transformer.LearnedPositions"},
            "attention.heads.bias": True,
            "attention.heads.out_bias": True,
        },
    ),
    fixed={"scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,), **ALL_FAMILIES},
    keys=(
        ConfigKey("n_embd", ("dim", "attention.heads.dim", "positions.dim")),
        ConfigKey("n_layer", ("n_layers",)),
        ConfigKey("n_head", N_HEADS_PATHS),
        ConfigKey("n_positions", ("positions.length",)),
        ConfigKey("n_inner", ("ffn_width",), _default_to_four_times("n_embd")),
        ConfigKey("activation_function", ("ffn.approximate",), "gelu_new", *GELU_NAMES),
        ConfigKey("layer_norm_epsilon", ("norm.eps",), 1e-5),
        ConfigKey("tie_word_embeddings", ("tie",), True, require_bool),
        ConfigKey(
            "scale_attn_weights",
            ("attention.scale_exponent",),
            True,
            lambda scaled: -0.5 if require_bool(scaled) else 0,
            bool,
        ),
    ),
    rows=(
        TensorRow("positions.table.weight", {"transformer.wpe.weight": ()}),
        TensorRow("embedding.weight", {"transformer.wte.weight": ()}),
        TensorRow(LAYER_PREFIX + "mixer_norm.*", {"transformer.h.{n}.ln_1.*": ()}),
        TensorRow(HEADS_PREFIX + "qkv.*", {"transformer.h.{n}.attn.c_attn.*": QKV_PARTS}, TRANSPOSED_LAYOUT),
        TensorRow(HEADS_PREFIX + "out.*", {"transformer.h.{n}.attn.c_proj.*": ()}, TRANSPOSED_LAYOUT),
        TensorRow(LAYER_PREFIX + "ffn_norm.*", {"transformer.h.{n}.ln_2.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.up.*", {"transformer.h.{n}.mlp.c_fc.*": ()}, TRANSPOSED_LAYOUT),
        TensorRow(LAYER_PREFIX + "ffn.down.*", {"transformer.h.{n}.mlp.c_proj.*": ()}, TRANSPOSED_LAYOUT),
        TensorRow("norm.*", {"transformer.ln_f.*": ()}),
        TensorRow("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=(".attn.bias", ".attn.masked_bias"),  # masks
    aliases={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
)

_OPT_LAYER = "model.decoder.layers.{n}."
OPT = Family(  # learned positions, ReLU, biases everywhere
    architecture="OPTForCausalLM",
    prefix="model.",
    model=set_leaves(
        BASE_CONFIG,
        {
            "ffn": RELU_MLP,
            "norm": LAYER_NORM | {"eps": 1e-5},
            "positions": {"_target_": "attnlab.model.transformer.LearnedPositions"},
        },
    ),
    fixed={
        "activation_function": ("relu",),
        "do_layer_norm_before": (True,),
        "_remove_final_layer_norm": (False,),
        "layer_norm_elementwise_affine": (True,),
        **ALL_FAMILIES,
    },
    keys=(
        ConfigKey("hidden_size", ("dim", "attention.heads.dim", "positions.dim")),
        ConfigKey("num_hidden_layers", ("n_layers",)),
        ConfigKey("num_attention_heads", N_HEADS_PATHS),
        ConfigKey("max_position_embeddings", ("positions.length",)),
        ConfigKey("ffn_dim", ("ffn_width",)),
        ConfigKey("tie_word_embeddings", ("tie",), True, require_bool),
        ConfigKey("enable_bias", ("bias", *BIAS_PATHS), True, require_bool),
    ),
    rows=(
        TensorRow(
            "positions.table.weight",
            {"model.decoder.embed_positions.weight": ()},
            layouts.UNUSED_POSITIONS,
        ),
        TensorRow("embedding.weight", {"model.decoder.embed_tokens.weight": ()}),
        TensorRow(LAYER_PREFIX + "mixer_norm.*", {_OPT_LAYER + "self_attn_layer_norm.*": ()}),
        TensorRow(HEADS_PREFIX + "qkv.*", {f"{_OPT_LAYER}self_attn.{p}_proj.*": (p,) for p in QKV_PARTS}),
        TensorRow(HEADS_PREFIX + "out.*", {_OPT_LAYER + "self_attn.out_proj.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn_norm.*", {_OPT_LAYER + "final_layer_norm.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.up.*", {_OPT_LAYER + "fc1.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.down.*", {_OPT_LAYER + "fc2.*": ()}),
        TensorRow("norm.*", {"model.decoder.final_layer_norm.*": ()}),
        TensorRow("head.weight", {"lm_head.weight": ()}),
    ),
    normalize=config_variants.normalize_opt,
)

GPT_NEOX = Family(  # and Pythia: RoPE on a quarter of the features, parallel blocks or not
    architecture="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    model=set_leaves(
        BASE_CONFIG, {"bias": True, "ffn": MLP, "norm": LAYER_NORM, "block": BLOCK, "attention.rotary": ROPE}
    ),
    fixed={"head_dim": (None,), **ALL_FAMILIES},  # transformers builds its RoPE table from it
    keys=(
        ConfigKey("hidden_size", ("dim", "attention.heads.dim")),
        ConfigKey("num_hidden_layers", ("n_layers",)),
        ConfigKey("num_attention_heads", N_HEADS_PATHS),
        ConfigKey("intermediate_size", ("ffn_width",)),
        ConfigKey("hidden_act", ("ffn.approximate",), "gelu", *GELU_NAMES),
        ConfigKey("layer_norm_eps", ("norm.eps",), 1e-5),
        ConfigKey("tie_word_embeddings", ("tie",), False, require_bool),
        ConfigKey("attention_bias", BIAS_PATHS, True, require_bool),
        ConfigKey("use_parallel_residual", ("block.parallel",), True, require_bool),
        ConfigKey("partial_rotary_factor", ("attention.rotary.fraction",)),
        *ROTATION_KEYS,
    ),
    rows=(
        TensorRow("embedding.weight", {"gpt_neox.embed_in.weight": ()}),
        TensorRow(LAYER_PREFIX + "mixer_norm.*", {"gpt_neox.layers.{n}.input_layernorm.*": ()}),
        TensorRow(
            HEADS_PREFIX + "qkv.*",
            {"gpt_neox.layers.{n}.attention.query_key_value.*": QKV_PARTS},
            GROUPED_LAYOUT,
        ),
        TensorRow(HEADS_PREFIX + "out.*", {"gpt_neox.layers.{n}.attention.dense.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn_norm.*", {"gpt_neox.layers.{n}.post_attention_layernorm.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.up.*", {"gpt_neox.layers.{n}.mlp.dense_h_to_4h.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.down.*", {"gpt_neox.layers.{n}.mlp.dense_4h_to_h.*": ()}),
        TensorRow("norm.*", {"gpt_neox.final_layer_norm.*": ()}),
        TensorRow("head.weight", {"embed_out.weight": ()}),
    ),
    ignored=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"),
    normalize=config_variants.normalize_neox,
    denormalize=config_variants.denormalize_neox,
)

MPT = Family(  # ALiBi
    architecture="MptForCausalLM",
    prefix="transformer.",
    model=set_leaves(
        BASE_CONFIG,
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
        **ALL_FAMILIES,
    },
    keys=(
        ConfigKey(
            "d_model",
            ("ffn_width",),
            read=lambda width: 4 * require_number(width),
            write=lambda width: width // 4,
        ),
        ConfigKey("d_model", ("dim", "attention.heads.dim")),
        ConfigKey("n_layers", ("n_layers",)),
        ConfigKey("n_heads", (*N_HEADS_PATHS, "attention.scores.alibi.n_heads")),
        ConfigKey("layer_norm_epsilon", ("norm.eps",), 1e-5),
        ConfigKey("tie_word_embeddings", ("tie",), True, require_bool),
        ConfigKey("multiplier", ("attention.multiplier",)),
    ),
    rows=(
        TensorRow("embedding.weight", {"transformer.wte.weight": ()}),
        TensorRow(LAYER_PREFIX + "mixer_norm.*", {"transformer.blocks.{n}.norm_1.*": ()}),
        TensorRow(HEADS_PREFIX + "qkv.*", {"transformer.blocks.{n}.attn.Wqkv.*": QKV_PARTS}),
        TensorRow(HEADS_PREFIX + "out.*", {"transformer.blocks.{n}.attn.out_proj.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn_norm.*", {"transformer.blocks.{n}.norm_2.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.up.*", {"transformer.blocks.{n}.ffn.up_proj.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.down.*", {"transformer.blocks.{n}.ffn.down_proj.*": ()}),
        TensorRow("norm.*", {"transformer.norm_f.*": ()}),
        TensorRow("head.weight", {"lm_head.weight": ()}),
    ),
    aliases={"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    normalize=config_variants.normalize_mpt,
    denormalize=config_variants.denormalize_mpt,
)


def _has_two_norms(config: Config) -> bool:
    return bool(config["block"]["parallel"] and not config["block"]["shared_norm"])


_FALCON_LAYER = "transformer.h.{n}."
FALCON = Family(  # parallel blocks with one norm or two, ALiBi or not
    architecture="FalconForCausalLM",
    prefix="transformer.",
    repeated_kv_key="new_decoder_architecture",
    model=set_leaves(BASE_CONFIG, {"ffn": MLP, "norm": LAYER_NORM, "block": BLOCK}),
    fixed=ALL_FAMILIES,
    keys=(
        ConfigKey("hidden_size", ("dim", "attention.heads.dim")),
        ConfigKey("num_hidden_layers", ("n_layers",)),
        ConfigKey("num_attention_heads", ("n_heads", "attention.heads.n_heads")),
        ConfigKey("num_kv_heads", ("attention.heads.n_kv_heads",)),
        ConfigKey("ffn_hidden_size", ("ffn_width",), _default_to_four_times("hidden_size")),
        ConfigKey("activation", ("ffn.approximate",), "gelu", *GELU_NAMES),
        ConfigKey("layer_norm_epsilon", ("norm.eps",), 1e-5),
        ConfigKey("tie_word_embeddings", ("tie",), True, require_bool),
        ConfigKey("bias", ("bias", *BIAS_PATHS), False, require_bool),
        ConfigKey("parallel_attn", ("block.parallel",), True, require_bool),
        ConfigKey("num_ln_in_parallel_attn", ("block.shared_norm",), False, require_bool),
        ConfigKey("rotary", ("attention.rotary",), None, return_unchanged),
        ConfigKey("alibi", ("attention.scores.coarsealibi",), None, return_unchanged),
    ),
    rows=(
        TensorRow(
            LAYER_PREFIX + "mixer_norm.*", {_FALCON_LAYER + "ln_attn.*": ()}, applies_to=_has_two_norms
        ),
        TensorRow(LAYER_PREFIX + "ffn_norm.*", {_FALCON_LAYER + "ln_mlp.*": ()}, applies_to=_has_two_norms),
        TensorRow("embedding.weight", {"transformer.word_embeddings.weight": ()}),
        TensorRow(LAYER_PREFIX + "mixer_norm.*", {_FALCON_LAYER + "input_layernorm.*": ()}),
        TensorRow(
            HEADS_PREFIX + "qkv.*",
            {_FALCON_LAYER + "self_attention.query_key_value.*": QKV_PARTS},
            GROUPED_LAYOUT,
        ),
        TensorRow(HEADS_PREFIX + "out.*", {_FALCON_LAYER + "self_attention.dense.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn_norm.*", {_FALCON_LAYER + "post_attention_layernorm.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.up.*", {_FALCON_LAYER + "mlp.dense_h_to_4h.*": ()}),
        TensorRow(LAYER_PREFIX + "ffn.down.*", {_FALCON_LAYER + "mlp.dense_4h_to_h.*": ()}),
        TensorRow("norm.*", {"transformer.ln_f.*": ()}),
        TensorRow("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=("rotary_emb.inv_freq",),
    aliases={"n_embed": "hidden_size"},
    normalize=config_variants.normalize_falcon,
    denormalize=config_variants.denormalize_falcon,
)

FAMILIES: Mapping[str, Family] = {  # `save_hf_model` takes the first that can express a model
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
    "granite": GRANITE,
    "starcoder2": STARCODER2,
    "olmo3": OLMO3,
    "stablelm": STABLELM,
    "glm": GLM,
    "glm4": GLM4,
    "seed_oss": SEED_OSS,
    "exaone4": EXAONE4,
    "ernie4_5": ERNIE4_5,
    "helium": HELIUM,
    "gemma": GEMMA,
    "cohere": COHERE,
    "cohere2": COHERE2,
    "arcee": ARCEE,
    "nemotron": NEMOTRON,
    "opt": OPT,
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
}
