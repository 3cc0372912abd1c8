"""Configs that can be written in several ways, or depend on the layer: `settle_*` brings one into the keys
that the table names, or raises ValueError, and `spell_*` is the way back.
"""

import math
from collections.abc import Mapping
from typing import Any

from attnlab.model.huggingface import rotation, windows
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import agreed, number, truth

_FULL, _SLIDING = windows.TYPES


def _without(theirs: Config, *names: str) -> Config:
    return {key: value for key, value in theirs.items() if key not in names}


def settle_mistral(theirs: Config) -> Config:
    return rotation.settled({"sliding_window": 4096, "num_key_value_heads": 8} | theirs)


def settle_qwen(theirs: Config) -> Config:
    theirs = {"num_key_value_heads": 32} | theirs
    window = theirs.get("sliding_window", 4096) if theirs.get("use_sliding_window") else None
    first = agreed({"max_window_layers": theirs.get("max_window_layers", 28)}, number) or 0
    return windows.settled(rotation.settled(theirs), window, lambda n: window is not None and n >= first)


def spell_qwen(theirs: Config) -> Config:
    theirs = windows.spelled(theirs)
    return theirs | {"use_sliding_window": theirs["sliding_window"] is not None}


def settle_smollm(theirs: Config) -> Config:
    theirs = rotation.settled({"num_key_value_heads": 4} | theirs, base=2e6)
    every = agreed({"no_rope_layer_interval": theirs.get("no_rope_layer_interval")}, number) or 4
    turns = theirs.get("no_rope_layers")  # 1 for those that turn
    count = windows.layers(theirs)
    turns = [(layer + 1) % every for layer in range(count)] if turns is None else turns
    if not isinstance(turns, list) or len(turns) < count:
        raise ValueError(f"no_rope_layers = {turns!r} is not supported (only a list of {count})")
    window = theirs.get("sliding_window") if theirs.get("use_sliding_window") else None
    beside = [{} if each else {"rotary": None} for each in turns]
    return windows.settled(theirs, window, lambda n: window is not None and not turns[n], beside)


def spell_smollm(theirs: Config) -> Config:
    base = theirs["rope_theta"] or 2e6  # they make its tables, used or not
    return spell_qwen(theirs) | {"no_rope_layers": windows.turning(theirs), "rope_theta": base}


_NEOX = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def settle_neox(theirs: Config) -> Config:
    usual = {name: theirs.get(own) for name, own in _NEOX.items()}
    return rotation.settled(theirs | usual, fraction=0.25)


def spell_neox(theirs: Config) -> Config:
    return {_NEOX.get(name, name): value for name, value in theirs.items()}


def settle_gpt_oss(theirs: Config) -> Config:
    yarn = {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    theirs = {"num_key_value_heads": 8, "sliding_window": 128} | theirs
    theirs = rotation.settled(theirs, base=150000.0, otherwise=yarn)
    return windows.settled(theirs, theirs["sliding_window"], lambda n: n % 2 == 0)


def _multiply(theirs: Config) -> Config:
    """Scores are divided by the root of another width than the head's: how many times as large they are."""
    width, head = (agreed({n: theirs[n]}, number) for n in ("query_pre_attn_scalar", "head_dim"))
    if not width or not head or width < 0 or head < 0:
        raise ValueError("query_pre_attn_scalar and head_dim must be more than 0")
    return theirs | {"query_pre_attn_scalar": (width / head) ** -0.5}


_GEMMA = {
    "num_key_value_heads": 4, "sliding_window": 4096, "query_pre_attn_scalar": 256, "head_dim": 256,
}  # fmt: skip


def settle_gemma2(theirs: Config) -> Config:
    usual = {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    theirs = rotation.settled(_multiply(usual | theirs))
    return windows.settled(theirs, theirs["sliding_window"], lambda n: n % 2 == 0)


def spell_gemma2(theirs: Config) -> Config:
    scale = theirs["query_pre_attn_scalar"]
    head = theirs["head_dim"]
    width = round(head / scale**2) if scale and head else None
    return windows.spelled(theirs) | {"query_pre_attn_scalar": width}


def settle_gemma3(theirs: Config) -> Config:
    """Layers that slide turn by a table of their own."""
    theirs = _GEMMA | theirs
    tables: Any = theirs.get("rope_parameters") or {}
    if not isinstance(tables, dict) or (tables and not tables.keys() & {_FULL, _SLIDING}):
        raise ValueError(f"rope_parameters must hold {_FULL} and {_SLIDING}, not {tables!r}")

    def rotate(kind: str, base: float, **beside: Any) -> Config:
        length = {"max_position_embeddings": theirs.get("max_position_embeddings")}
        return rotation.settled({"rope_parameters": tables.get(kind), **length, **beside}, base=base)

    whole = rotate(_FULL, 1e6, **{name: theirs.get(name) for name in ("rope_theta", "rope_scaling")})
    local = rotate(_SLIDING, 1e4, rope_theta=theirs.get("rope_local_base_freq"))
    every = agreed({"sliding_window_pattern": theirs.get("sliding_window_pattern")}, number) or 6
    turned = {name: whole[name] for name in ("rope_theta", "rope_scaling")}
    theirs = windows.settled(
        _multiply(theirs) | turned, theirs["sliding_window"], lambda n: bool((n + 1) % every)
    )
    scaling = local["rope_scaling"] and rotation.read_scaling(local["rope_scaling"])
    for patch in (patch for patch in theirs["layers"] or () if patch):
        patch["rotary"] = {"base": local["rope_theta"], "scaling": scaling}
    return theirs


def spell_gemma3(theirs: Config) -> Config:
    tables: Config = {}
    for mixer in theirs["layers"]:
        kind = _FULL if windows.of(mixer) is None else _SLIDING
        turn = mixer.get("rotary") or {}
        scaling = rotation.write_scaling(turn["scaling"]) if turn.get("scaling") else None
        tables.setdefault(kind, {"rope_theta": turn.get("base"), **(scaling or {"rope_type": "default"})})
    return spell_gemma2(_without(theirs, "rope_theta", "rope_scaling")) | {"rope_parameters": tables}


_DENSE = "first_k_dense_replace"


def settle_deepseek(theirs: Config) -> Config:
    usual = {"q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128, "qk_nope_head_dim": 128}
    theirs = rotation.settled(usual | {"qk_rope_head_dim": 64, _DENSE: 3} | theirs)
    heads = theirs.get("num_attention_heads")
    layers = theirs.get("num_hidden_layers")
    if theirs.get("num_key_value_heads", heads) not in (None, heads):
        raise ValueError(
            f"num_key_value_heads = {theirs['num_key_value_heads']!r} is not supported (only {heads})"
        )
    dense = theirs[_DENSE]
    if isinstance(layers, int) and not (isinstance(dense, int) and dense >= layers):
        raise ValueError(f"{_DENSE} = {dense!r} is not supported: experts in some of {layers} layers")
    if theirs["q_lora_rank"] is None and theirs.get("attention_bias"):
        raise ValueError("attention_bias = True is not supported where q_lora_rank is null")
    scaling = theirs["rope_scaling"] or {}
    scale = scaling.get("mscale_all_dim")
    return theirs | {"multiplier": rotation.magnitude(scaling["factor"], scale) ** 2 if scale else 1.0}


def spell_deepseek(theirs: Config) -> Config:
    larger = theirs["multiplier"]
    scaling = theirs["rope_scaling"]
    if scaling and scaling.get("factor", 1) > 1 and larger and larger > 0 and larger != 1:
        scaling = scaling | {"mscale_all_dim": (math.sqrt(larger) - 1) / (0.1 * math.log(scaling["factor"]))}
    same = {"num_key_value_heads": theirs["num_attention_heads"], _DENSE: theirs["num_hidden_layers"]}
    return _without(theirs, "multiplier") | same | {"rope_scaling": scaling}


def _whole(theirs: Config, *names: str) -> list[int]:
    """Sizes that others are made of. ValueError where one is no whole number above 0."""
    for name in names:
        size = theirs.get(name)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be a whole number above 0, not {size!r}")
    return [theirs[name] for name in names]


def settle_mpt(theirs: Config) -> Config:
    width, heads = _whole(theirs, "d_model", "n_heads")
    own = theirs.get("attn_config") or {}
    if not isinstance(own, dict):
        raise ValueError(f"attn_config must be a mapping, not {own!r}")
    scale = agreed({"attn_config.softmax_scale": own.get("softmax_scale")}, number)
    return theirs | {"multiplier": 1.0 if scale is None else scale * (width // heads) ** 0.5}


def spell_mpt(theirs: Config) -> Config:
    larger = theirs["multiplier"]
    width = theirs["d_model"]
    heads = theirs["n_heads"]
    scale = None if larger in (None, 1.0) else larger * (width // heads) ** -0.5
    return _without(theirs, "multiplier") | {"attn_config": theirs["attn_config"] | {"softmax_scale": scale}}


_SWITCHES: Mapping[str, bool] = {
    "alibi": False, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True,
}  # fmt: skip


def settle_falcon(theirs: Config) -> Config:
    width, heads = _whole(theirs, "hidden_size", "num_attention_heads")
    asked = {
        name: usual if theirs.get(name) is None else agreed({name: theirs[name]}, truth)
        for name, usual in _SWITCHES.items()
    }
    newer = asked["new_decoder_architecture"]
    parallel = asked["parallel_attn"]
    norms = theirs.get("num_ln_in_parallel_attn")
    if norms not in (None, 1, 2) or (norms == 2 and not newer) or (newer and not parallel):
        raise ValueError(f"num_ln_in_parallel_attn = {norms!r} is not supported with these parallel_attn and "
                         "new_decoder_architecture")  # fmt: skip
    theirs = rotation.settled(theirs)
    scaling = theirs["rope_scaling"] and rotation.read_scaling(theirs["rope_scaling"])
    rope = {"_target_": "attnlab.attention.rotary.Rope", "fraction": 1.0}
    slopes = {"_target_": "attnlab.attention.scores.alibi.CoarseAlibi", "n_heads": heads}
    return theirs | {
        "num_kv_heads": (theirs.get("num_kv_heads") or heads)
        if newer
        else 1
        if asked["multi_query"]
        else heads,
        "parallel_attn": newer or parallel,
        "num_ln_in_parallel_attn": (newer or parallel) and (norms == 1 or not newer),
        "rotary": None if asked["alibi"] else {**rope, "base": theirs["rope_theta"], "scaling": scaling},
        "alibi": {**slopes, "scale": (width // heads) ** -0.5} if asked["alibi"] else None,
    }


def spell_falcon(theirs: Config) -> Config:
    """A parallel block without a shared norm, or with groups of heads, is of the newer kind."""
    turn = theirs["rotary"] or {}
    groups = theirs["num_kv_heads"]
    shared = theirs["num_ln_in_parallel_attn"]
    newer = bool(theirs["parallel_attn"] and not (shared and groups in (1, theirs["num_attention_heads"])))
    return _without(theirs, "rotary") | {
        "new_decoder_architecture": newer,
        "multi_query": groups == 1,
        "num_ln_in_parallel_attn": (1 if shared else 2) if newer else None,
        "alibi": theirs["alibi"] is not None,
        "rope_theta": turn.get("base", 10000.0),  # they make its tables, used or not
        "rope_scaling": rotation.write_scaling(turn["scaling"]) if turn.get("scaling") else None,
    }


def settle_diffllama(theirs: Config) -> Config:
    """The share that is taken off starts by the depth."""
    starts = [0.8 - 0.6 * math.exp(-0.3 * layer) for layer in range(windows.layers(theirs))]
    layers = [{"heads": {"lambda_init": start}} for start in starts] or None
    return rotation.settled(theirs) | {"layers": layers}


def spell_diffllama(theirs: Config) -> Config:
    return _without(theirs, "layers")  # they say nothing of it
