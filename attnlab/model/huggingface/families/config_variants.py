"""Config formats of families: several notations of one setting, and settings per layer.

`normalize_*` rewrites a config into the keys of the table, or raises ValueError. `denormalize_*` is its
inverse.
"""

import math
from collections.abc import Mapping
from typing import Any

from attnlab.model.huggingface import rope_config, windows
from attnlab.model.huggingface.config_values import require_agreement, require_bool, require_number
from attnlab.model.huggingface.rope_config import Config

_FULL, _SLIDING = windows.LAYER_TYPES


def _drop_keys(theirs: Config, *names: str) -> Config:
    return {key: value for key, value in theirs.items() if key not in names}


def normalize_mistral(theirs: Config) -> Config:
    return rope_config.normalize_rotation({"sliding_window": 4096, "num_key_value_heads": 8} | theirs)


def normalize_qwen(theirs: Config) -> Config:
    theirs = {"num_key_value_heads": 32} | theirs
    window = theirs.get("sliding_window", 4096) if theirs.get("use_sliding_window") else None
    first_sliding = (
        require_agreement({"max_window_layers": theirs.get("max_window_layers", 28)}, require_number) or 0
    )
    return windows.normalize_windows(
        rope_config.normalize_rotation(theirs), window, lambda n: window is not None and n >= first_sliding
    )


def denormalize_qwen(theirs: Config) -> Config:
    theirs = windows.denormalize_windows(theirs)
    return theirs | {"use_sliding_window": theirs["sliding_window"] is not None}


def normalize_smollm(theirs: Config) -> Config:
    theirs = rope_config.normalize_rotation({"num_key_value_heads": 4} | theirs, base=2e6)
    interval = (
        require_agreement({"no_rope_layer_interval": theirs.get("no_rope_layer_interval")}, require_number)
        or 4
    )
    rotary_flags = theirs.get("no_rope_layers")  # 1 for layers with RoPE
    count = windows.count_layers(theirs)
    rotary_flags = (
        [(layer + 1) % interval for layer in range(count)] if rotary_flags is None else rotary_flags
    )
    if not isinstance(rotary_flags, list) or len(rotary_flags) < count:
        raise ValueError(f"no_rope_layers = {rotary_flags!r} is not supported (only a list of {count})")
    window = theirs.get("sliding_window") if theirs.get("use_sliding_window") else None
    patches = [{} if has_rotary else {"rotary": None} for has_rotary in rotary_flags]
    return windows.normalize_windows(
        theirs, window, lambda n: window is not None and not rotary_flags[n], patches
    )


def denormalize_smollm(theirs: Config) -> Config:
    base = theirs["rope_theta"] or 2e6  # transformers builds RoPE tables in any case
    return denormalize_qwen(theirs) | {
        "no_rope_layers": windows.list_rotary_flags(theirs),
        "rope_theta": base,
    }


_NEOX_KEYS = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def normalize_neox(theirs: Config) -> Config:
    renamed_keys = {name: theirs.get(neox_name) for name, neox_name in _NEOX_KEYS.items()}
    return rope_config.normalize_rotation(theirs | renamed_keys, fraction=0.25)


def denormalize_neox(theirs: Config) -> Config:
    return {_NEOX_KEYS.get(name, name): value for name, value in theirs.items()}


def normalize_gpt_oss(theirs: Config) -> Config:
    yarn = {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    theirs = {"num_key_value_heads": 8, "sliding_window": 128} | theirs
    theirs = rope_config.normalize_rotation(theirs, base=150000.0, default_table=yarn)
    return windows.normalize_windows(theirs, theirs["sliding_window"], lambda n: n % 2 == 0)


def _convert_query_scalar(theirs: Config) -> Config:
    """Replace the width whose square root divides the scores by a factor relative to the head size."""
    width, head = (
        require_agreement({n: theirs[n]}, require_number) for n in ("query_pre_attn_scalar", "head_dim")
    )
    if not width or not head or width < 0 or head < 0:
        raise ValueError("query_pre_attn_scalar and head_dim must be more than 0")
    return theirs | {"query_pre_attn_scalar": (width / head) ** -0.5}


_GEMMA_DEFAULTS = {
    "num_key_value_heads": 4, "sliding_window": 4096, "query_pre_attn_scalar": 256, "head_dim": 256,
}  # fmt: skip


def normalize_gemma2(theirs: Config) -> Config:
    defaults = {**_GEMMA_DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    theirs = rope_config.normalize_rotation(_convert_query_scalar(defaults | theirs))
    return windows.normalize_windows(theirs, theirs["sliding_window"], lambda n: n % 2 == 0)


def denormalize_gemma2(theirs: Config) -> Config:
    scale = theirs["query_pre_attn_scalar"]
    head = theirs["head_dim"]
    width = round(head / scale**2) if scale and head else None
    return windows.denormalize_windows(theirs) | {"query_pre_attn_scalar": width}


def normalize_gemma3(theirs: Config) -> Config:
    """Normalize; sliding layers have their own RoPE table."""
    theirs = _GEMMA_DEFAULTS | theirs
    tables: Any = theirs.get("rope_parameters") or {}
    if not isinstance(tables, dict) or (tables and not tables.keys() & {_FULL, _SLIDING}):
        raise ValueError(f"rope_parameters must hold {_FULL} and {_SLIDING}, not {tables!r}")

    def normalize_layer_rotation(kind: str, base: float, **outer_keys: Any) -> Config:
        length = {"max_position_embeddings": theirs.get("max_position_embeddings")}
        return rope_config.normalize_rotation(
            {"rope_parameters": tables.get(kind), **length, **outer_keys}, base=base
        )

    full = normalize_layer_rotation(
        _FULL, 1e6, **{name: theirs.get(name) for name in ("rope_theta", "rope_scaling")}
    )
    local = normalize_layer_rotation(_SLIDING, 1e4, rope_theta=theirs.get("rope_local_base_freq"))
    interval = (
        require_agreement({"sliding_window_pattern": theirs.get("sliding_window_pattern")}, require_number)
        or 6
    )
    rotation = {name: full[name] for name in ("rope_theta", "rope_scaling")}
    theirs = windows.normalize_windows(
        _convert_query_scalar(theirs) | rotation, theirs["sliding_window"], lambda n: bool((n + 1) % interval)
    )
    scaling = local["rope_scaling"] and rope_config.read_scaling(local["rope_scaling"])
    for patch in (patch for patch in theirs["layers"] or () if patch):
        patch["rotary"] = {"base": local["rope_theta"], "scaling": scaling}
    return theirs


def denormalize_gemma3(theirs: Config) -> Config:
    tables: Config = {}
    for mixer in theirs["layers"]:
        kind = _FULL if windows.get_window_size(mixer) is None else _SLIDING
        rope = mixer.get("rotary") or {}
        scaling = rope_config.write_scaling(rope["scaling"]) if rope.get("scaling") else None
        tables.setdefault(kind, {"rope_theta": rope.get("base"), **(scaling or {"rope_type": "default"})})
    return denormalize_gemma2(_drop_keys(theirs, "rope_theta", "rope_scaling")) | {"rope_parameters": tables}


_DENSE_KEY = "first_k_dense_replace"


def normalize_deepseek(theirs: Config) -> Config:
    defaults = {"q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128, "qk_nope_head_dim": 128}
    theirs = rope_config.normalize_rotation(defaults | {"qk_rope_head_dim": 64, _DENSE_KEY: 3} | theirs)
    heads = theirs.get("num_attention_heads")
    layers = theirs.get("num_hidden_layers")
    if theirs.get("num_key_value_heads", heads) not in (None, heads):
        raise ValueError(
            f"num_key_value_heads = {theirs['num_key_value_heads']!r} is not supported (only {heads})"
        )
    dense = theirs[_DENSE_KEY]
    if isinstance(layers, int) and not (isinstance(dense, int) and dense >= layers):
        raise ValueError(f"{_DENSE_KEY} = {dense!r} is not supported: experts in some of {layers} layers")
    if theirs["q_lora_rank"] is None and theirs.get("attention_bias"):
        raise ValueError("attention_bias = True is not supported where q_lora_rank is null")
    scaling = theirs["rope_scaling"] or {}
    scale = scaling.get("mscale_all_dim")
    return theirs | {
        "multiplier": rope_config.compute_magnitude(scaling["factor"], scale) ** 2 if scale else 1.0
    }


def denormalize_deepseek(theirs: Config) -> Config:
    multiplier = theirs["multiplier"]
    scaling = theirs["rope_scaling"]
    if scaling and scaling.get("factor", 1) > 1 and multiplier and multiplier > 0 and multiplier != 1:
        scaling = scaling | {
            "mscale_all_dim": (math.sqrt(multiplier) - 1) / (0.1 * math.log(scaling["factor"]))
        }
    constants = {
        "num_key_value_heads": theirs["num_attention_heads"],
        _DENSE_KEY: theirs["num_hidden_layers"],
    }
    return _drop_keys(theirs, "multiplier") | constants | {"rope_scaling": scaling}


def _require_positive_integers(theirs: Config, *names: str) -> list[int]:
    """Return the sizes under `names`; ValueError for any that is not a positive integer."""
    for name in names:
        size = theirs.get(name)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be an integer above 0, not {size!r}")
    return [theirs[name] for name in names]


def normalize_mpt(theirs: Config) -> Config:
    width, heads = _require_positive_integers(theirs, "d_model", "n_heads")
    attn_config = theirs.get("attn_config") or {}
    if not isinstance(attn_config, dict):
        raise ValueError(f"attn_config must be a mapping, not {attn_config!r}")
    scale = require_agreement({"attn_config.softmax_scale": attn_config.get("softmax_scale")}, require_number)
    return theirs | {"multiplier": 1.0 if scale is None else scale * (width // heads) ** 0.5}


def denormalize_mpt(theirs: Config) -> Config:
    multiplier = theirs["multiplier"]
    width = theirs["d_model"]
    heads = theirs["n_heads"]
    scale = None if multiplier in (None, 1.0) else multiplier * (width // heads) ** -0.5
    return _drop_keys(theirs, "multiplier") | {
        "attn_config": theirs["attn_config"] | {"softmax_scale": scale}
    }


_FALCON_SWITCHES: Mapping[str, bool] = {
    "alibi": False, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True,
}  # fmt: skip


def normalize_falcon(theirs: Config) -> Config:
    width, heads = _require_positive_integers(theirs, "hidden_size", "num_attention_heads")
    switches = {
        name: default if theirs.get(name) is None else require_agreement({name: theirs[name]}, require_bool)
        for name, default in _FALCON_SWITCHES.items()
    }
    is_new_architecture = switches["new_decoder_architecture"]
    parallel = switches["parallel_attn"]
    norms = theirs.get("num_ln_in_parallel_attn")
    if (
        norms not in (None, 1, 2)
        or (norms == 2 and not is_new_architecture)
        or (is_new_architecture and not parallel)
    ):
        raise ValueError(f"num_ln_in_parallel_attn = {norms!r} is not supported with these parallel_attn and "
                         "new_decoder_architecture")  # fmt: skip
    theirs = rope_config.normalize_rotation(theirs)
    scaling = theirs["rope_scaling"] and rope_config.read_scaling(theirs["rope_scaling"])
    rope = {"_target_": "attnlab.attention.rotary.Rope", "fraction": 1.0}
    slopes = {"_target_": "attnlab.attention.scores.alibi.CoarseAlibi", "n_heads": heads}
    return theirs | {
        "num_kv_heads": (theirs.get("num_kv_heads") or heads)
        if is_new_architecture
        else 1
        if switches["multi_query"]
        else heads,
        "parallel_attn": is_new_architecture or parallel,
        "num_ln_in_parallel_attn": (is_new_architecture or parallel)
        and (norms == 1 or not is_new_architecture),
        "rotary": None if switches["alibi"] else {**rope, "base": theirs["rope_theta"], "scaling": scaling},
        "alibi": {**slopes, "scale": (width // heads) ** -0.5} if switches["alibi"] else None,
    }


def denormalize_falcon(theirs: Config) -> Config:
    """Denormalize; a parallel block without a shared norm, or with GQA, is `new_decoder_architecture`."""
    rope = theirs["rotary"] or {}
    groups = theirs["num_kv_heads"]
    has_shared_norm = theirs["num_ln_in_parallel_attn"]
    is_new_architecture = bool(
        theirs["parallel_attn"] and not (has_shared_norm and groups in (1, theirs["num_attention_heads"]))
    )
    return _drop_keys(theirs, "rotary") | {
        "new_decoder_architecture": is_new_architecture,
        "multi_query": groups == 1,
        "num_ln_in_parallel_attn": (1 if has_shared_norm else 2) if is_new_architecture else None,
        "alibi": theirs["alibi"] is not None,
        "rope_theta": rope.get("base", 10000.0),  # transformers builds RoPE tables in any case
        "rope_scaling": rope_config.write_scaling(rope["scaling"]) if rope.get("scaling") else None,
    }


def normalize_diffllama(theirs: Config) -> Config:
    """Normalize; the initial lambda of the subtracted attention map depends on the depth."""
    starts = [0.8 - 0.6 * math.exp(-0.3 * layer) for layer in range(windows.count_layers(theirs))]
    layers = [{"heads": {"lambda_init": start}} for start in starts] or None
    return rope_config.normalize_rotation(theirs) | {"layers": layers}


def denormalize_diffllama(theirs: Config) -> Config:
    return _drop_keys(theirs, "layers")  # their config has no key for lambda_init
