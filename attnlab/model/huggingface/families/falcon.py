"""Falcon and MPT: one fused matrix by group, parallel blocks, ALiBi."""

from typing import Any

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
    Family,
    Key,
    Row,
    same,
)
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import agreed, number, truth

_NORM = {"_target_": "torch.nn.LayerNorm", "_partial_": True}
_COARSE = "attnlab.attention.scores.alibi.CoarseAlibi"
_SWITCHES = {
    "alibi": False, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True,
}  # fmt: skip


def _whole(theirs: Config, *names: str) -> list[int]:
    """Sizes that others are made of. ValueError where one is no whole number above 0."""
    sizes = [theirs.get(name) for name in names]
    for name, size in zip(names, sizes, strict=True):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be a whole number above 0, not {size!r}")
    return sizes  # type: ignore[return-value]


def _settled(theirs: Config) -> Config:
    width, heads = _whole(theirs, "hidden_size", "num_attention_heads")
    asked = {
        name: usual if theirs.get(name) is None else agreed({name: theirs[name]}, truth)
        for name, usual in _SWITCHES.items()
    }
    newer, one, norms = (
        asked["new_decoder_architecture"],
        asked["multi_query"],
        theirs.get("num_ln_in_parallel_attn"),
    )
    if norms not in (None, 1, 2) or (norms == 2 and not newer) or (newer and not asked["parallel_attn"]):
        raise ValueError(f"num_ln_in_parallel_attn = {norms!r} is not supported with these parallel_attn and "
                         "new_decoder_architecture")  # fmt: skip
    theirs = rotation.settled(theirs)
    turn = {**ROPE, "base": theirs["rope_theta"], "scaling": None}
    if theirs["rope_scaling"]:
        turn["scaling"] = rotation.read_scaling(theirs["rope_scaling"])
    slopes = {"_target_": _COARSE, "n_heads": heads, "scale": (width // heads) ** -0.5}
    return theirs | {
        "num_kv_heads": (theirs.get("num_kv_heads") or heads) if newer else 1 if one else heads,
        "parallel_attn": newer or asked["parallel_attn"],
        "num_ln_in_parallel_attn": (newer or asked["parallel_attn"]) and (norms == 1 or not newer),
        "rotary": None if asked["alibi"] else turn,
        "alibi": slopes if asked["alibi"] else None,
    }


def _spelled(theirs: Config) -> Config:
    """A parallel block without a shared norm, or with groups of heads, is of the newer kind."""
    turn, groups, shared = theirs["rotary"] or {}, theirs["num_kv_heads"], theirs["num_ln_in_parallel_attn"]
    newer = bool(theirs["parallel_attn"] and not (shared and groups in (1, theirs["num_attention_heads"])))
    return {key: value for key, value in theirs.items() if key != "rotary"} | {
        "new_decoder_architecture": newer,
        "multi_query": groups == 1,
        "num_ln_in_parallel_attn": (1 if shared else 2) if newer else None,
        "alibi": theirs["alibi"] is not None,
        "rope_theta": turn.get("base", 10000.0),  # they make its tables, used or not
        "rope_scaling": rotation.write_scaling(turn["scaling"]) if turn.get("scaling") else None,
    }


def _two_norms(config: Config) -> bool:
    return bool(config["block"]["parallel"] and not config["block"].get("shared_norm"))


def _one_name(config: Config) -> bool:
    return not _two_norms(config)


FALCON = Family(
    architecture="FalconForCausalLM",
    prefix="transformer.",
    model=BASE | {"ffn": MLP, "norm": _NORM | {"bias": True}, "block": BLOCK, "attention": ATTENTION},
    fixed={"quantization_config": (None,)},
    keys=(
        Key("hidden_size", ("dim", "attention.heads.dim")),
        Key("num_hidden_layers", ("n_layers",)),
        Key("num_attention_heads", ("n_heads", "attention.heads.n_heads")),
        Key("num_kv_heads", ("attention.heads.n_kv_heads",)),
        Key("ffn_hidden_size", ("ffn_width",), lambda theirs: 4 * number(theirs.get("hidden_size"))),
        Key("activation", ("ffn.approximate",), "gelu", *GELU),
        Key("layer_norm_epsilon", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("tie",), True, truth),
        Key("bias", ("bias", "attention.heads.bias", "attention.heads.out_bias"), False, truth),
        Key("parallel_attn", ("block.parallel",), True, truth),
        Key("num_ln_in_parallel_attn", ("block.shared_norm",), False, truth),
        Key("rotary", ("attention.rotary",), None, same),
        Key("alibi", ("attention.scores.coarsealibi",), None, same),
    ),
    rows=(
        Row("embedding.weight", {"transformer.word_embeddings.weight": ()}),
        Row(LAYER + "mixer_norm.*", {"transformer.h.{n}.ln_attn.*": ()}, only=_two_norms),
        Row(LAYER + "mixer_norm.*", {"transformer.h.{n}.input_layernorm.*": ()}, only=_one_name),
        Row(
            HEADS + "qkv.*", {"transformer.h.{n}.self_attention.query_key_value.*": ("q", "k", "v")}, GROUPED
        ),
        Row(HEADS + "out.*", {"transformer.h.{n}.self_attention.dense.*": ()}),
        Row(LAYER + "ffn_norm.*", {"transformer.h.{n}.ln_mlp.*": ()}, only=_two_norms),
        Row(LAYER + "ffn_norm.*", {"transformer.h.{n}.post_attention_layernorm.*": ()}, only=_one_name),
        Row(LAYER + "ffn.up.*", {"transformer.h.{n}.mlp.dense_h_to_4h.*": ()}),
        Row(LAYER + "ffn.down.*", {"transformer.h.{n}.mlp.dense_4h_to_h.*": ()}),
        Row("norm.*", {"transformer.ln_f.*": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    ignored=("rotary_emb.inv_freq",),
    settled=_settled,
    spelled=_spelled,
)


def _mpt(theirs: Config) -> Config:
    width, heads = _whole(theirs, "d_model", "n_heads")
    own = theirs.get("attn_config") or {}
    if not isinstance(own, dict):
        raise ValueError(f"attn_config must be a mapping, not {own!r}")
    scale = agreed({"attn_config.softmax_scale": own.get("softmax_scale")}, number)
    return theirs | {"multiplier": 1.0 if scale is None else scale * (width // heads) ** 0.5}


def _mpt_spelled(theirs: Config) -> Config:
    larger, width, heads = theirs["multiplier"], theirs["d_model"], theirs["n_heads"]
    scale = None if larger in (None, 1.0) else larger * (width // heads) ** -0.5
    plain = {key: value for key, value in theirs.items() if key != "multiplier"}
    return plain | {"attn_config": theirs["attn_config"] | {"softmax_scale": scale}}


def _four(width: Any) -> Any:
    return 4 * number(width)


MPT = Family(
    architecture="MptForCausalLM",
    prefix="transformer.",
    model=BASE
    | {
        "bias": False,
        "ffn": MLP | {"approximate": "none"},
        "norm": _NORM | {"bias": False},
        "attention": ATTENTION
        | {
            "heads": ATTENTION["heads"] | {"bias": False, "out_bias": False},
            "scores": {"alibi": {"_target_": "attnlab.attention.scores.alibi.Alibi"}},
        },
    },
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
        "quantization_config": (None,),
    },
    keys=(
        Key("d_model", ("ffn_width",), read=_four, write=lambda width: width // 4),
        Key("d_model", ("dim", "attention.heads.dim")),
        Key("n_layers", ("n_layers",)),
        Key(
            "n_heads",
            (
                "n_heads",
                "attention.heads.n_heads",
                "attention.heads.n_kv_heads",
                "attention.scores.alibi.n_heads",
            ),
        ),
        Key("layer_norm_epsilon", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("tie",), True, truth),
        Key("multiplier", ("attention.multiplier",)),
    ),
    rows=(
        Row("embedding.weight", {"transformer.wte.weight": ()}),
        Row(LAYER + "mixer_norm.weight", {"transformer.blocks.{n}.norm_1.weight": ()}),
        Row(HEADS + "qkv.weight", {"transformer.blocks.{n}.attn.Wqkv.weight": ("q", "k", "v")}),
        Row(HEADS + "out.weight", {"transformer.blocks.{n}.attn.out_proj.weight": ()}),
        Row(LAYER + "ffn_norm.weight", {"transformer.blocks.{n}.norm_2.weight": ()}),
        Row(LAYER + "ffn.up.weight", {"transformer.blocks.{n}.ffn.up_proj.weight": ()}),
        Row(LAYER + "ffn.down.weight", {"transformer.blocks.{n}.ffn.down_proj.weight": ()}),
        Row("norm.weight", {"transformer.norm_f.weight": ()}),
        Row("head.weight", {"lm_head.weight": ()}),
    ),
    settled=_mpt,
    spelled=_mpt_spelled,
)
