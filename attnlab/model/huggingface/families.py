"""How checkpoints of GPT-2 and Llama are laid out: a table per family, read both ways by `convert`.

A row names their thing and ours and, where the two are not alike, a pair of functions. A further family
(windows, soft caps, sinks, latent heads) is a further table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from attnlab.model.huggingface import rotation
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import number, truth

REQUIRED = object()


def _same(value: Any) -> Any:
    return value


class Key(NamedTuple):
    """A key of their config, and the leaves of ours that hold the same; dots go into nested mappings.

    `default` is what its absence (or null) means, or a function of their config. `read` and `write` translate
    a value where it is not the same number; `read` raises ValueError for what it does not know, in words that
    go on from the key's name.
    """

    theirs: str
    ours: tuple[str, ...]
    default: Any = REQUIRED
    read: Callable[[Any], Any] = number
    write: Callable[[Any], Any] = _same


class Layout(NamedTuple):
    """How one tensor is laid out: (tensor, our model config) -> tensor, from theirs and back."""

    read: Callable[[Tensor, Config], Tensor]
    write: Callable[[Tensor, Config], Tensor]


def _plain(tensor: Tensor, config: Config) -> Tensor:
    return tensor


def _transposed(tensor: Tensor, config: Config) -> Tensor:
    return tensor.t()  # a vector stays as it is


PLAIN, TRANSPOSED = Layout(_plain, _plain), Layout(_transposed, _transposed)


class Row(NamedTuple):
    """One tensor of ours, and theirs that make it up: name -> the slices of our fused projection it holds.

    `{n}` is the layer, `*` stands for weight and bias. Rows whose tensor the model does not have are passed
    over.
    """

    ours: str
    theirs: Mapping[str, tuple[str, ...]]
    layout: Layout = PLAIN


@dataclass(frozen=True)
class Family:
    """A family's table.

    `model` is what never varies in it, `fixed` their keys with the values that we can compute, the default
    first. `prefix` may be missing from names. Tensors whose names end in one of `ignored` are passed over.
    `settled` brings what can be written in several ways into the one that `keys` name, or raises ValueError.
    """

    architecture: str
    prefix: str
    model: Config
    fixed: Mapping[str, tuple[Any, ...]]
    keys: tuple[Key, ...]
    rows: tuple[Row, ...]
    ignored: tuple[str, ...] = ()
    settled: Callable[[Config], Config] = _same


_GELU = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}


def _approximation(activation: Any) -> str:
    if activation not in _GELU:
        raise ValueError(f"= {activation!r} is not supported (only {', '.join(map(repr, _GELU))})")
    return _GELU[activation]


def _activation(approximation: str) -> str:
    return next(name for name, value in _GELU.items() if value == approximation)


def _exponent(scaled: bool) -> float:
    return -0.5 if scaled else 0


_BASE = {
    "_target_": "attnlab.model.transformer.Transformer",
    "dropout": 0.0,
    "init_std": 0.02,
    "qk_gain": None,
    "seed": 0,
    "layers": None,
}
_ATTENTION: dict[str, Any] = {
    "_target_": "attnlab.attention.layer.Attention",
    "heads": {"_target_": "attnlab.attention.heads.grouped.GroupedHeads", "head_dim": None},
    "kernel": {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.kernels.sdpa.sdpa"},
    "masks": {
        "causal": {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.masks.causal.causal"}
    },
    "scale_exponent": -0.5,
}
_LAYER, _HEADS = "blocks.{n}.", "blocks.{n}.mixer.heads."

GPT2 = Family(
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    model=_BASE
    | {
        "bias": True,
        "ffn": {"_target_": "attnlab.model.transformer.Mlp", "_partial_": True},
        "norm": {"_target_": "torch.nn.LayerNorm", "_partial_": True, "bias": True},
        "positions": {"_target_": "attnlab.model.transformer.LearnedPositions"},
        "attention": _ATTENTION | {"heads": _ATTENTION["heads"] | {"bias": True, "out_bias": True}},
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
        Key("activation_function", ("ffn.approximate",), "gelu_new", _approximation, _activation),
        Key("layer_norm_epsilon", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("tie",), True, truth),
        Key("scale_attn_weights", ("attention.scale_exponent",), True, _exponent, bool),
    ),
    rows=(
        Row("embedding.weight", {"transformer.wte.weight": ()}),
        Row("positions.table.weight", {"transformer.wpe.weight": ()}),
        Row(_LAYER + "mixer_norm.*", {"transformer.h.{n}.ln_1.*": ()}),
        Row(_HEADS + "qkv.*", {"transformer.h.{n}.attn.c_attn.*": ("q", "k", "v")}, TRANSPOSED),
        Row(_HEADS + "out.*", {"transformer.h.{n}.attn.c_proj.*": ()}, TRANSPOSED),
        Row(_LAYER + "ffn_norm.*", {"transformer.h.{n}.ln_2.*": ()}),
        Row(_LAYER + "ffn.up.*", {"transformer.h.{n}.mlp.c_fc.*": ()}, TRANSPOSED),
        Row(_LAYER + "ffn.down.*", {"transformer.h.{n}.mlp.c_proj.*": ()}, TRANSPOSED),
        Row("norm.*", {"transformer.ln_f.*": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=(".attn.bias", ".attn.masked_bias"),  # masks
)

LLAMA = Family(
    architecture="LlamaForCausalLM",
    prefix="model.",
    model=_BASE
    | {
        "ffn": {"_target_": "attnlab.model.transformer.SwiGlu", "_partial_": True},
        "norm": {"_target_": "torch.nn.RMSNorm", "_partial_": True},
        "attention": _ATTENTION | {"rotary": {"_target_": "attnlab.attention.rotary.Rope", "fraction": 1.0}},
    },
    fixed={
        "hidden_act": ("silu", "swish"),
        "partial_rotary_factor": (None, 1.0),
        "rope_parameters.partial_rotary_factor": (None, 1.0),
        "rope_scaling.partial_rotary_factor": (None, 1.0),
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
        Key(
            "rope_scaling",
            ("attention.rotary.scaling",),
            None,
            rotation.read_scaling,
            rotation.write_scaling,
        ),
    ),
    rows=(
        Row("embedding.weight", {"model.embed_tokens.weight": ()}),
        Row(_LAYER + "mixer_norm.weight", {"model.layers.{n}.input_layernorm.weight": ()}),
        Row(_HEADS + "qkv.*", {f"model.layers.{{n}}.self_attn.{p}_proj.*": (p,) for p in "qkv"}),
        Row(_HEADS + "out.*", {"model.layers.{n}.self_attn.o_proj.*": ()}),
        Row(_LAYER + "ffn_norm.weight", {"model.layers.{n}.post_attention_layernorm.weight": ()}),
        Row(_LAYER + "ffn.up.*", {f"model.layers.{{n}}.mlp.{p}_proj.*": (p,) for p in ("gate", "up")}),
        Row(_LAYER + "ffn.down.*", {"model.layers.{n}.mlp.down_proj.*": ()}),
        Row("norm.weight", {"model.norm.weight": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=("rotary_emb.inv_freq",),
    settled=rotation.settled,
)

FAMILIES: Mapping[str, Family] = {"gpt2": GPT2, "llama": LLAMA}
