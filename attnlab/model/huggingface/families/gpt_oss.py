"""gpt-oss: sinks, windows in every second layer, and experts whose gate and up are interleaved."""

from dataclasses import replace

from torch import Tensor

from attnlab.model.huggingface import rotation, windows
from attnlab.model.huggingface.families.llama import LLAMA, WHOLE_TURN
from attnlab.model.huggingface.families.table import (
    EAGER,
    HEADS,
    LAYER,
    LAYERS,
    Key,
    Layout,
    Row,
    keyed,
    over,
)
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import truth

_YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def _flipped(tensor: Tensor) -> Tensor:
    """Matrices of experts the other way round, to theirs or back; biases as they are."""
    return tensor.transpose(1, -1) if tensor.ndim > 2 else tensor


def _apart(tensor: Tensor, config: Config) -> Tensor:
    return _flipped(tensor).unflatten(1, (-1, 2)).transpose(1, 2).flatten(0, 2)


def _interleaved(tensor: Tensor, config: Config) -> Tensor:
    parts = tensor.unflatten(0, (config["ffn"]["n_experts"], 2, -1))
    return _flipped(parts.transpose(1, 2).flatten(1, 2))


def _joined(tensor: Tensor, config: Config) -> Tensor:
    return _flipped(tensor).flatten(0, 1)


def _by_expert(tensor: Tensor, config: Config) -> Tensor:
    return _flipped(tensor.unflatten(0, (config["ffn"]["n_experts"], -1)))


_UP, _DOWN = Layout(_apart, _interleaved), Layout(_joined, _by_expert)


def _settled(theirs: Config) -> Config:
    theirs = {"num_key_value_heads": 8, "sliding_window": 128} | theirs
    theirs = rotation.settled(theirs, base=150000.0, otherwise=_YARN)
    return windows.settled(theirs, theirs["sliding_window"], lambda n: n % 2 == 0)


GPT_OSS = replace(
    LLAMA,
    architecture="GptOssForCausalLM",
    model=LLAMA.model
    | {
        "bias": True,
        "ffn": {"_target_": "attnlab.model.experts.Experts", "_partial_": True},
        "attention": LLAMA.model["attention"]
        | EAGER
        | {"epilogue": {"_target_": "attnlab.attention.epilogue.Sinks"}},
    },
    fixed={**WHOLE_TURN, "hidden_act": ("silu",), "quantization_config": (None,)},
    keys=keyed(
        LLAMA,
        Key("num_attention_heads", ("n_heads", "attention.heads.n_heads", "attention.epilogue.n_heads")),
        Key("head_dim", ("attention.heads.head_dim",), 64),
        Key("rms_norm_eps", ("norm.eps",), 1e-5),
        Key("attention_bias", ("attention.heads.bias", "attention.heads.out_bias"), True, truth),
        Key("num_local_experts", ("ffn.n_experts",), 128),
        Key("num_experts_per_tok", ("ffn.n_chosen",), 4),
        Key("swiglu_alpha", ("ffn.sharpness",), 1.702),
        Key("swiglu_limit", ("ffn.limit",), 7.0),
        LAYERS,
        drop=("mlp_bias",),
    ),
    rows=over(
        LLAMA,
        Row(HEADS.replace("heads", "epilogue") + "logit", {"model.layers.{n}.self_attn.sinks": ()}),
        Row(LAYER + "ffn.router.*", {"model.layers.{n}.mlp.router.*": ()}),
        Row(LAYER + "ffn.up.weight", {"model.layers.{n}.mlp.experts.gate_up_proj": ()}, _UP),
        Row(LAYER + "ffn.up.bias", {"model.layers.{n}.mlp.experts.gate_up_proj_bias": ()}, _UP),
        Row(LAYER + "ffn.down.weight", {"model.layers.{n}.mlp.experts.down_proj": ()}, _DOWN),
        Row(LAYER + "ffn.down.bias", {"model.layers.{n}.mlp.experts.down_proj_bias": ()}, _DOWN),
        drop=(LAYER + "ffn.up.*", LAYER + "ffn.down.*"),
    ),
    settled=_settled,
    spelled=windows.spelled,
)
