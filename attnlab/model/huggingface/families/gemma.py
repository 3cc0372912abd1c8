"""Gemma 2 and 3: norms on both sides of each part, gains stored less 1, capped scores and logits, windows."""

from dataclasses import replace
from typing import Any

from attnlab.model.huggingface import rotation, windows
from attnlab.model.huggingface.families.llama import LLAMA, WHOLE_TURN
from attnlab.model.huggingface.families.table import (
    BLOCK,
    EAGER,
    HEADS,
    LAYER,
    LAYERS,
    PLUS_ONE,
    SWIGLU,
    Key,
    Row,
    keyed,
    named,
    over,
)
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import agreed, number, truth

_GELU = named({"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu", "silu": "silu"})
_FULL, _SLIDING = windows.TYPES


def _root(width: Any) -> Any:
    return number(width) ** 0.5


def _square(scale: float) -> int:
    return round(scale**2)


def _cap(size: Any) -> Config:
    return {"_target_": "attnlab.attention.scores.softcap.softcap", "cap": number(size)}


def _size(score: Config) -> Any:
    return score.get("cap")


def _multiplied(theirs: Config) -> Config:
    """Scores are divided by the root of another width than the head's: how many times as large they are."""
    width, head = (agreed({n: theirs[n]}, number) for n in ("query_pre_attn_scalar", "head_dim"))
    if not width or not head or width < 0 or head < 0:
        raise ValueError("query_pre_attn_scalar and head_dim must be more than 0")
    return theirs | {"query_pre_attn_scalar": (width / head) ** -0.5}


def _divided(theirs: Config) -> Config:
    scale, head = theirs["query_pre_attn_scalar"], theirs["head_dim"]
    return theirs | {"query_pre_attn_scalar": round(head / scale**2) if scale and head else None}


def _gemma2(theirs: Config) -> Config:
    usual = {
        "num_key_value_heads": 4, "sliding_window": 4096, "query_pre_attn_scalar": 256, "head_dim": 256,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }  # fmt: skip
    theirs = rotation.settled(_multiplied(usual | theirs))
    return windows.settled(theirs, theirs["sliding_window"], lambda n: n % 2 == 0)


GEMMA2 = replace(
    LLAMA,
    architecture="Gemma2ForCausalLM",
    model=LLAMA.model
    | {"bias": False, "ffn": SWIGLU, "block": BLOCK | {"norms": "sandwich"}}
    | {"attention": LLAMA.model["attention"] | EAGER},
    fixed={**WHOLE_TURN, "use_bidirectional_attention": (None, False), "quantization_config": (None,)},
    keys=(
        Key("hidden_size", ("embedding_scale",), read=_root, write=_square),
        *keyed(
            LLAMA,
            Key("head_dim", ("attention.heads.head_dim",)),
            Key("hidden_activation", ("ffn.activation",), "gelu_pytorch_tanh", *_GELU),
            Key("tie_word_embeddings", ("tie",), True, truth),
            Key("query_pre_attn_scalar", ("attention.multiplier",)),
            Key("attn_logit_softcapping", ("attention.scores.softcap",), None, _cap, _size),
            Key("final_logit_softcapping", ("logit_cap",), None),
            LAYERS,
            drop=("mlp_bias",),
        ),
    ),
    rows=over(
        LLAMA,
        Row(LAYER + "mixer_norm.weight", {"model.layers.{n}.input_layernorm.weight": ()}, PLUS_ONE),
        Row(LAYER + "mixer_after.weight", {"model.layers.{n}.post_attention_layernorm.weight": ()}, PLUS_ONE),
        Row(LAYER + "ffn_norm.weight", {"model.layers.{n}.pre_feedforward_layernorm.weight": ()}, PLUS_ONE),
        Row(LAYER + "ffn_after.weight", {"model.layers.{n}.post_feedforward_layernorm.weight": ()}, PLUS_ONE),
        Row("norm.weight", {"model.norm.weight": ()}, PLUS_ONE),
    ),
    settled=_gemma2,
    spelled=lambda theirs: _divided(windows.spelled(theirs)),
)


def _rotation(table: Any, base: float, theirs: Config, **beside: Any) -> Config:
    length = {"max_position_embeddings": theirs.get("max_position_embeddings")}
    return rotation.settled({"rope_parameters": table, **length, **beside}, base=base)


def _gemma3(theirs: Config) -> Config:
    theirs = {
        "num_key_value_heads": 4, "sliding_window": 4096, "query_pre_attn_scalar": 256, "head_dim": 256,
    } | theirs  # fmt: skip
    tables: Any = theirs.get("rope_parameters") or {}
    if not isinstance(tables, dict) or (tables and not tables.keys() & {_FULL, _SLIDING}):
        raise ValueError(f"rope_parameters must hold {_FULL} and {_SLIDING}, not {tables!r}")
    beside = {name: theirs.get(name) for name in ("rope_theta", "rope_scaling")}
    whole = _rotation(tables.get(_FULL), 1e6, theirs, **beside)
    local = _rotation(tables.get(_SLIDING), 1e4, theirs, rope_theta=theirs.get("rope_local_base_freq"))
    every = agreed({"sliding_window_pattern": theirs.get("sliding_window_pattern")}, number) or 6
    turned = {name: whole[name] for name in ("rope_theta", "rope_scaling")}
    theirs = windows.settled(
        _multiplied(theirs) | turned, theirs["sliding_window"], lambda n: bool((n + 1) % every)
    )
    scaling = local["rope_scaling"] and rotation.read_scaling(local["rope_scaling"])
    for patch in (patch for patch in theirs["layers"] or () if patch):
        patch["rotary"] = {"base": local["rope_theta"], "scaling": scaling}
    return theirs


def _spelled(theirs: Config) -> Config:
    tables: Config = {}
    for mixer in theirs["layers"]:
        kind = _FULL if windows.of(mixer) is None else _SLIDING
        turn = mixer.get("rotary") or {}
        scaling = rotation.write_scaling(turn["scaling"]) if turn.get("scaling") else None
        tables.setdefault(kind, {"rope_theta": turn.get("base"), **(scaling or {"rope_type": "default"})})
    plain = {key: value for key, value in theirs.items() if key not in ("rope_theta", "rope_scaling")}
    return _divided(windows.spelled(plain)) | {"rope_parameters": tables}


GEMMA3 = replace(
    GEMMA2,
    architecture="Gemma3ForCausalLM",
    model=GEMMA2.model
    | {
        "attention": LLAMA.model["attention"]
        | {"heads": LLAMA.model["attention"]["heads"] | {"qk_norm": True}}
    },
    fixed=GEMMA2.fixed | {"attn_logit_softcapping": (None,)},
    keys=(
        GEMMA2.keys[0],
        *keyed(
            replace(GEMMA2, keys=GEMMA2.keys[1:]),
            Key("rms_norm_eps", ("norm.eps", "attention.heads.norm_eps"), 1e-6),
            drop=("attn_logit_softcapping",),
        ),
    ),
    rows=over(
        GEMMA2,
        *(
            Row(HEADS + f"{p}_norm.weight", {f"model.layers.{{n}}.self_attn.{p}_norm.weight": ()}, PLUS_ONE)
            for p in "qk"
        ),
    ),
    settled=_gemma3,
    spelled=_spelled,
)
