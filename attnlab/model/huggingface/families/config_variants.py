"""Config formats of families: several notations of one setting, and settings per layer.

`normalize_*` rewrites a config into the keys of the table, or raises ValueError. `denormalize_*` is its
inverse.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from attnlab.model.huggingface import rope_config, windows
from attnlab.model.huggingface.config_values import (
    require_agreement,
    require_bool,
    require_integer,
    require_number,
)
from attnlab.model.huggingface.rope_config import Config

_FULL, _SLIDING = windows.LAYER_TYPES


def _drop_keys(theirs: Config, *names: str) -> Config:
    return {key: value for key, value in theirs.items() if key not in names}


def normalize_with_defaults(theirs: Config, defaults: Config, **rotation: Any) -> Config:
    """Add defaults of absent keys, which null does not replace, and normalize the RoPE settings."""
    return rope_config.normalize_rotation(defaults | theirs, **rotation)


def normalize_mistral(theirs: Config) -> Config:
    return normalize_with_defaults(theirs, {"sliding_window": 4096, "num_key_value_heads": 8})


def _get_head_dim(theirs: Config) -> int:
    if theirs.get("head_dim") is not None:
        return _require_positive_integers(theirs, "head_dim")[0]
    width, heads = _require_positive_integers(theirs, "hidden_size", "num_attention_heads")
    return width // heads


def normalize_granite(theirs: Config) -> Config:
    """Normalize; `attention_multiplier` is the whole factor of the scores, ours is relative to D^-0.5."""
    theirs = {"attention_multiplier": 1.0} | rope_config.normalize_rotation(theirs)
    factor = require_agreement({"attention_multiplier": theirs["attention_multiplier"]}, require_number)
    if factor == 0:  # torch's causal SDPA returns NaN
        raise ValueError("attention_multiplier must not be 0")
    return theirs | {"attention_multiplier": factor and factor * _get_head_dim(theirs) ** 0.5}


def denormalize_granite(theirs: Config) -> Config:
    factor = theirs["attention_multiplier"]
    head_dim = theirs["head_dim"]
    return theirs | {"attention_multiplier": factor and head_dim and factor * head_dim**-0.5}


def normalize_helium(theirs: Config) -> Config:
    """Normalize; the output projection is square."""
    theirs = normalize_with_defaults(theirs, {"head_dim": 128}, base=1e5)
    width, heads, head_dim = _require_positive_integers(
        theirs, "hidden_size", "num_attention_heads", "head_dim"
    )
    if heads * head_dim != width:
        raise ValueError(
            f"head_dim = {head_dim} is not supported: {heads} heads of it must make up hidden_size = {width}"
        )
    return theirs


def _make_interval_rule(theirs: Config, interval: int) -> Callable[[int], bool]:
    """Make the rule by which all layers slide but every n-th; n is `sliding_window_pattern`."""
    if theirs.get("layer_types") is None:
        (interval,) = _require_positive_integers(
            {"sliding_window_pattern": interval} | theirs, "sliding_window_pattern"
        )
    return lambda layer: bool((layer + 1) % interval)


def _drop_rotary_of_full_layers(theirs: Config) -> Config:
    patches = theirs["layers"] or [{} for _ in range(windows.count_layers(theirs))]
    return theirs | {"layers": [patch or {"rotary": None} for patch in patches] or None}


def normalize_exaone4(theirs: Config) -> Config:
    """Normalize; full layers have no RoPE, unless there is no window at all."""
    theirs = normalize_with_defaults(theirs, {"sliding_window": 4096})
    window = theirs["sliding_window"]
    if window is None and theirs.get("layer_types") is None:
        raise ValueError("layer_types is missing, and a model without sliding_window needs it")
    theirs = windows.normalize_windows(theirs, window, _make_interval_rule(theirs, 4))
    return theirs if window is None else _drop_rotary_of_full_layers(theirs)


_UNUSED_WINDOW = 4096


def denormalize_windows_with_default(theirs: Config) -> Config:
    """Write a window even if no layer slides: transformers prepares its mask in any case."""
    theirs = windows.denormalize_windows(theirs)
    return theirs | {"sliding_window": theirs["sliding_window"] or _UNUSED_WINDOW}


def denormalize_exaone4(theirs: Config) -> Config:
    """Denormalize; any window removes RoPE from full layers."""
    has_rotary = any(windows.list_rotary_flags(theirs))
    return (windows.denormalize_windows if has_rotary else denormalize_windows_with_default)(theirs)


def normalize_cohere2(theirs: Config) -> Config:
    """Normalize; full layers have no RoPE."""
    theirs = normalize_with_defaults(theirs, {"sliding_window": 4096})
    return _drop_rotary_of_full_layers(
        windows.normalize_windows(theirs, theirs["sliding_window"], _make_interval_rule(theirs, 4))
    )


def _get_qwen_window(theirs: Config) -> Any:
    return theirs.get("sliding_window", 4096) if theirs.get("use_sliding_window") else None


def normalize_qwen(
    theirs: Config, kv_heads: int = 32, is_sliding: Callable[[int, float], bool] = operator.ge
) -> Config:
    """Normalize; `is_sliding` receives a layer and `max_window_layers`."""
    theirs = {"num_key_value_heads": kv_heads} | theirs
    window = _get_qwen_window(theirs)
    limit = require_agreement({"max_window_layers": theirs.get("max_window_layers", 28)}, require_number) or 0
    return windows.normalize_windows(
        rope_config.normalize_rotation(theirs), window, lambda n: window is not None and is_sliding(n, limit)
    )


def normalize_qwen2_moe(theirs: Config) -> Config:
    return normalize_qwen(theirs, 16, lambda layer, limit: layer % 2 == 0 and layer < limit)


def normalize_qwen3_moe(theirs: Config) -> Config:
    """Normalize; files call the number of experts `num_experts`, and transformers 5 `num_local_experts`."""
    names = [name for name in ("num_experts", "num_local_experts") if name in theirs]
    if nulls := [name for name in names if theirs[name] is None]:
        raise ValueError(f"{nulls[0]} is missing (null): add the value that the model was trained with")
    n_experts = require_agreement({name: theirs[name] for name in names}, require_integer)
    theirs = normalize_with_defaults(theirs, {"num_key_value_heads": 4})
    return theirs | {"num_experts": n_experts, "sliding_window": _get_qwen_window(theirs)}


def denormalize_qwen3_moe(theirs: Config) -> Config:
    return theirs | {"use_sliding_window": theirs["sliding_window"] is not None}


def denormalize_qwen(theirs: Config) -> Config:
    return denormalize_qwen3_moe(windows.denormalize_windows(theirs))


def normalize_smollm(theirs: Config) -> Config:
    theirs = rope_config.normalize_rotation({"num_key_value_heads": 4} | theirs, base=2e6)
    rotary_flags = theirs.get("no_rope_layers")  # 1 for layers with RoPE
    count = windows.count_layers(theirs)
    if rotary_flags is None:
        (interval,) = _require_positive_integers(
            {"no_rope_layer_interval": 4} | theirs, "no_rope_layer_interval"
        )
        rotary_flags = [(layer + 1) % interval for layer in range(count)]
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
    others = _drop_keys(theirs, *_NEOX_KEYS)  # transformers does not read them here
    renamed_keys = {name: theirs[neox_name] for name, neox_name in _NEOX_KEYS.items() if neox_name in theirs}
    return rope_config.normalize_rotation(others | renamed_keys, fraction=0.25)


def denormalize_neox(theirs: Config) -> Config:
    others = _drop_keys(theirs, *_NEOX_KEYS)
    renamed_keys = {neox_name: theirs[name] for name, neox_name in _NEOX_KEYS.items()}
    return others | {name: value for name, value in renamed_keys.items() if value is not None}


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


def _restore_query_scalar(theirs: Config) -> Config:
    scale = theirs["query_pre_attn_scalar"]
    head = theirs["head_dim"]
    return theirs | {"query_pre_attn_scalar": round(head / scale**2) if scale and head else None}


def denormalize_gemma2(theirs: Config) -> Config:
    return denormalize_windows_with_default(_restore_query_scalar(theirs))


def _normalize_windows_and_rotations(
    theirs: Config,
    is_sliding: Callable[[int], bool],
    full_base: float,
    local_base: float,
    local_keys: Mapping[str, str],
) -> Config:
    """Normalize layers whose RoPE table depends on their type.

    `local_keys` maps the outer keys that sliding layers read from our names to theirs.
    """
    tables: Any = {} if theirs.get("rope_parameters") is None else theirs["rope_parameters"]
    if not isinstance(tables, dict) or tables.keys() - {_FULL, _SLIDING}:
        raise ValueError(f"rope_parameters must hold {_FULL} and {_SLIDING}, not {tables!r}")

    def normalize_layer_rotation(kind: str, base: float, outer_keys: Mapping[str, str]) -> Config:
        """Normalize one table; `outer_keys` maps our keys of outer settings to theirs."""
        outer = {ours: theirs[name] for ours, name in outer_keys.items() if name in theirs}
        return rope_config.normalize_rotation({"rope_parameters": tables.get(kind)} | outer, base=base)

    length = {"max_position_embeddings": "max_position_embeddings"}
    full = normalize_layer_rotation(
        _FULL, full_base, length | {"rope_theta": "rope_theta", "rope_scaling": "rope_scaling"}
    )
    local = normalize_layer_rotation(_SLIDING, local_base, {**length, **local_keys})
    rotation = {name: full[name] for name in ("rope_theta", "rope_scaling")}
    theirs = windows.normalize_windows(theirs | rotation, theirs["sliding_window"], is_sliding)
    scaling = local["rope_scaling"] and rope_config.read_scaling(local["rope_scaling"])
    for patch in (patch for patch in theirs["layers"] or () if patch):
        patch["rotary"] = {"base": local["rope_theta"], "scaling": scaling}
    return theirs


def denormalize_windows_and_rotations(theirs: Config) -> Config:
    tables: Config = {}
    for mixer in theirs["layers"]:
        kind = _FULL if windows.get_window_size(mixer) is None else _SLIDING
        rope = mixer.get("rotary") or {}
        scaling = rope_config.write_scaling(rope["scaling"]) if rope.get("scaling") else None
        tables.setdefault(kind, {"rope_theta": rope.get("base"), **(scaling or {"rope_type": "default"})})
    theirs = _drop_keys(theirs, "rope_theta", "rope_scaling")
    return denormalize_windows_with_default(theirs) | {"rope_parameters": tables}


def normalize_gemma3(theirs: Config) -> Config:
    theirs = _convert_query_scalar(_GEMMA_DEFAULTS | theirs)
    is_sliding = _make_interval_rule(theirs, 6)
    return _normalize_windows_and_rotations(
        theirs, is_sliding, 1e6, 1e4, {"rope_theta": "rope_local_base_freq"}
    )


def denormalize_gemma3(theirs: Config) -> Config:
    return denormalize_windows_and_rotations(_restore_query_scalar(theirs))


def normalize_olmo3(theirs: Config) -> Config:
    """Normalize; transformers 4 read `rope_theta` in all layers, transformers 5 only in full layers."""
    theirs = {"sliding_window": 4096} | theirs
    tables = theirs.get("rope_parameters")
    local = tables.get(_SLIDING) if isinstance(tables, dict) else None
    base = theirs.get("rope_theta", 5e5)
    if base != 5e5 and not (isinstance(local, dict) and "rope_theta" in local):
        raise ValueError(
            f"rope_theta = {base!r} leaves the base of sliding layers open: set "
            f"rope_parameters.{_SLIDING}.rope_theta to the value that the model was trained with"
        )
    return _normalize_windows_and_rotations(theirs, lambda n: bool((n + 1) % 4), 5e5, 5e5, {})


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
    head_dim, n_rotary = theirs.get("head_dim", theirs["qk_rope_head_dim"]), theirs["qk_rope_head_dim"]
    if isinstance(head_dim, bool) or head_dim != n_rotary:  # transformers builds its RoPE table from it
        raise ValueError(f"head_dim = {head_dim!r} is not supported (only qk_rope_head_dim = {n_rotary!r})")
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


def normalize_opt(theirs: Config) -> Config:
    width = theirs.get("word_embed_proj_dim")
    if width is not None and width != theirs.get("hidden_size"):
        raise ValueError(
            f"word_embed_proj_dim = {width!r} is not supported (only hidden_size = "
            f"{theirs.get('hidden_size')!r})"
        )
    return theirs


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
        name: require_agreement({name: theirs.get(name, default)}, require_bool)
        for name, default in _FALCON_SWITCHES.items()
    }
    if nulls := [name for name, switch in switches.items() if switch is None]:
        raise ValueError(f"{nulls[0]} is null: set true or false")
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
