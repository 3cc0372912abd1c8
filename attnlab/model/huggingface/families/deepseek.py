"""DeepSeek-V3 with dense layers: latent heads whose turning features are interleaved in the file."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.model.huggingface import rotation
from attnlab.model.huggingface.families.llama import LLAMA, WHOLE_TURN
from attnlab.model.huggingface.families.table import HEADS, Key, Layout, Row, keyed, over
from attnlab.model.huggingface.rotation import Config

_FIRST = "first_k_dense_replace"


def _halves(rows: Tensor, blocks: int, turning: int) -> Tensor:
    """The last `turning` rows of each block, pairs (0, 1), (2, 3), ... as first members, then second ones."""
    return _turned(rows, blocks, turning, (-1, 2))


def _pairs(rows: Tensor, blocks: int, turning: int) -> Tensor:
    """The way back."""
    return _turned(rows, blocks, turning, (2, -1))


def _turned(rows: Tensor, blocks: int, turning: int, shape: tuple[int, int]) -> Tensor:
    rows = rows.unflatten(0, (blocks, -1))
    still, turned = rows.tensor_split((rows.shape[1] - turning,), dim=1)
    return torch.cat((still, turned.unflatten(1, shape).transpose(1, 2).flatten(1, 2)), 1).flatten(0, 1)


def _queries(config: Config) -> tuple[int, int]:
    heads = config["attention"]["heads"]
    return heads["n_heads"], heads["rope_dim"]


def _down(turn: Callable[[Tensor, int, int], Tensor], rows: Tensor, config: Config) -> Tensor:
    """Queries, unless they come from a latent of their own, and the key that all heads share."""
    heads = config["attention"]["heads"]
    own = heads["rank"] + heads["rope_dim"]
    q, kv = rows.tensor_split((len(rows) - own,))
    return torch.cat(
        (turn(q, *_queries(config)) if heads.get("q_rank") is None else q, turn(kv, 1, heads["rope_dim"]))
    )


def _up(rows: Tensor, config: Config) -> Tensor:
    heads = config["attention"]["heads"]
    parts = rows.unflatten(0, (heads["n_heads"], -1)).tensor_split((heads["head_dim"],), dim=1)
    return torch.cat([part.flatten(0, 1) for part in parts])


def _by_head(rows: Tensor, config: Config) -> Tensor:
    heads = config["attention"]["heads"]
    parts = rows.tensor_split((heads["n_heads"] * heads["head_dim"],))
    return torch.cat([part.unflatten(0, (heads["n_heads"], -1)) for part in parts], 1).flatten(0, 1)


_DOWN = Layout(
    lambda rows, config: _down(_halves, rows, config), lambda rows, config: _down(_pairs, rows, config)
)
_Q_UP = Layout(
    lambda rows, config: _halves(rows, *_queries(config)),
    lambda rows, config: _pairs(rows, *_queries(config)),
)


def _has_q_rank(config: Config) -> bool:
    return config["attention"]["heads"].get("q_rank") is not None


def _settled(theirs: Config) -> Config:
    usual = {"q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128, "qk_nope_head_dim": 128}
    theirs = rotation.settled(usual | {"qk_rope_head_dim": 64, _FIRST: 3} | theirs)
    heads, layers = theirs.get("num_attention_heads"), theirs.get("num_hidden_layers")
    if theirs.get("num_key_value_heads", heads) not in (None, heads):
        raise ValueError(
            f"num_key_value_heads = {theirs['num_key_value_heads']!r} is not supported (only {heads})"
        )
    dense = theirs[_FIRST]
    if isinstance(layers, int) and not (isinstance(dense, int) and dense >= layers):
        raise ValueError(f"{_FIRST} = {dense!r} is not supported: experts in some of {layers} layers")
    if theirs["q_lora_rank"] is None and theirs.get("attention_bias"):
        raise ValueError("attention_bias = True is not supported where q_lora_rank is null")
    scaling = theirs["rope_scaling"] or {}
    scale = scaling.get("mscale_all_dim")
    larger = rotation.magnitude(scaling["factor"], scale) ** 2 if scale else 1.0
    return theirs | {"multiplier": larger}


def _spelled(theirs: Config) -> Config:
    larger, scaling = theirs["multiplier"], theirs["rope_scaling"]
    if scaling and scaling.get("factor", 1) > 1 and larger and larger > 0 and larger != 1:
        scaling = scaling | {"mscale_all_dim": (math.sqrt(larger) - 1) / (0.1 * math.log(scaling["factor"]))}
    plain = {key: value for key, value in theirs.items() if key != "multiplier"}
    same = {"num_key_value_heads": theirs["num_attention_heads"], _FIRST: theirs["num_hidden_layers"]}
    return plain | same | {"rope_scaling": scaling}


DEEPSEEK_V3 = replace(
    LLAMA,
    architecture="DeepseekV3ForCausalLM",
    model=LLAMA.model
    | {
        "bias": False,
        "attention": LLAMA.model["attention"]
        | {"heads": {"_target_": "attnlab.attention.heads.latent.LatentHeads", "norm_eps": 1e-6}},
    },
    fixed={
        **WHOLE_TURN,
        "hidden_act": ("silu", "swish"),
        "rope_interleave": (True, None),
        "quantization_config": (None,),
    },
    keys=keyed(
        LLAMA,
        Key("q_lora_rank", ("attention.heads.q_rank",), None),
        Key("kv_lora_rank", ("attention.heads.rank",)),
        Key("qk_nope_head_dim", ("attention.heads.head_dim",)),
        Key("qk_rope_head_dim", ("attention.heads.rope_dim",)),
        Key("v_head_dim", ("attention.heads.value_dim",)),
        Key("multiplier", ("attention.multiplier",)),
        drop=("num_key_value_heads", "head_dim", "mlp_bias"),
    ),
    rows=over(
        LLAMA,
        Row(
            HEADS + "down.*",
            {
                "model.layers.{n}.self_attn.q_a_proj.*": ("q",),
                "model.layers.{n}.self_attn.kv_a_proj_with_mqa.*": ("latent", "k_rope"),
            },
            _DOWN,
            _has_q_rank,
        ),
        Row(
            HEADS + "down.*",
            {
                "model.layers.{n}.self_attn.q_proj.*": ("q",),
                "model.layers.{n}.self_attn.kv_a_proj_with_mqa.*": ("latent", "k_rope"),
            },
            _DOWN,
            lambda config: not _has_q_rank(config),
        ),
        Row(HEADS + "q_norm.weight", {"model.layers.{n}.self_attn.q_a_layernorm.weight": ()}),
        Row(HEADS + "q_up.weight", {"model.layers.{n}.self_attn.q_b_proj.weight": ()}, _Q_UP),
        Row(HEADS + "norm.weight", {"model.layers.{n}.self_attn.kv_a_layernorm.weight": ()}),
        Row(
            HEADS + "up.weight",
            {"model.layers.{n}.self_attn.kv_b_proj.weight": ()},
            Layout(_up, _by_head),
        ),
        drop=(HEADS + "qkv.*",),
    ),
    settled=_settled,
    spelled=_spelled,
)
