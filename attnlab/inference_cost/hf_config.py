"""Costs of the model of a Hugging Face config.json, also with other values of some of its keys."""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.inference_cost.layer_costs import ModelCost, count_model_cost
from attnlab.model.huggingface.families import FAMILIES, Family
from attnlab.model.huggingface.families.family_table import DEEPSEEK_V3_EXPERTS
from attnlab.model.huggingface.families.read_config import (
    convert_config_to_ours,
    find_family,
    get_path,
    validate_fixed_keys,
)
from attnlab.model.huggingface.rope_config import Config
from attnlab.model.huggingface.windows import get_window_size
from attnlab.store.atomic_files import parse_json, read_user_text

HEADS_WORD, KV_HEADS_WORD = "heads", "heads.n_kv_heads"
SIZE_LEAVES = {
    "dim", "n_layers", "n_heads", "ffn_width", "n_kv_heads", "head_dim", "rank", "rope_dim", "value_dim",
    "q_rank", "n_experts", "n_chosen", "n_shared", "shared_width", "size", "length",
}  # fmt: skip
EXPERT_LAYERS = {"deepseek_v3": DEEPSEEK_V3_EXPERTS}  # model_type -> layers after the dense ones
DENSE_KEY, N_DENSE = "first_k_dense_replace", 3  # number of dense layers, and its default
MAX_LAYERS, MAX_SIZE = 10_000, 2**32  # beyond any model


def load_hf_cost(path: Path, words: Sequence[str] = ()) -> ModelCost:
    """Count the model of a config.json, or of a folder that has one.

    Args:
        words: KEY=VALUE with keys of the config.json, or heads=mha, gqa or mqa and heads.n_kv_heads=N.

    Raises:
        InvalidConfig: The config cannot be read exactly; in one line, with its key.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        theirs = parse_json(read_user_text(file))
    except OSError as error:
        raise InvalidConfig(f"{file}: {error.strerror}: give a config.json or its folder") from error
    except ValueError as error:
        raise InvalidConfig(f"{file}: not JSON: {error}") from error
    if not isinstance(theirs, dict):
        raise InvalidConfig(f"{file}: not a mapping of keys to values")
    try:
        return _count_with_values(theirs, dict(map(_split_word, words)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidConfig(f"{file}: {error}") from error


def _split_word(word: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    return key, value


def _count_with_values(theirs: Config, values: Mapping[str, str]) -> ModelCost:
    family = find_family(theirs, FAMILIES)
    expert_layers = EXPERT_LAYERS.get(theirs["model_type"])
    theirs = ({DENSE_KEY: N_DENSE} if expert_layers else {}) | copy.deepcopy(theirs)
    known_keys = [key.theirs for part in (family, expert_layers) if part for key in part.keys]
    for key, value in values.items():
        if key not in (HEADS_WORD, KV_HEADS_WORD):
            _set_value(theirs, key, value, known_keys)
    quantization = _pop_quantization(theirs)
    if expert_layers is None:
        cost = _count_family(family, theirs, values)
    else:
        cost = _count_with_experts(family, expert_layers, theirs, values)
    return replace(cost, quantization=quantization)


def _pop_quantization(theirs: Config) -> str | None:
    """Remove the format of quantized weights from their config, and return its name."""
    settings = theirs.pop("quantization_config", None)
    method = get_path(settings, "quant_method")
    if settings is not None and not isinstance(method, str):
        raise ValueError(f"quantization_config = {settings!r}: quant_method must name the format")
    return method


def _count_with_experts(
    family: Family, expert_layers: Family, theirs: Config, values: Mapping[str, str]
) -> ModelCost:
    """Count a model whose first layers are dense."""
    n_dense = theirs[DENSE_KEY]
    if type(n_dense) is not int or n_dense < 0:
        raise ValueError(f"{DENSE_KEY} = {n_dense!r}: must be a whole number from 0")
    theirs[DENSE_KEY] = theirs.get("num_hidden_layers")  # the family has dense layers alone
    cost = _count_family(family, theirs, values)
    if n_dense >= len(cost.layers):
        return cost
    experts = _count_family(expert_layers, theirs, values)
    return replace(cost, layers=cost.layers[:n_dense] + experts.layers[n_dense:])


def _count_family(family: Family, theirs: Config, values: Mapping[str, str]) -> ModelCost:
    """Count a model whose layers are all those of a family."""
    validate_fixed_keys(family, theirs)
    config = convert_config_to_ours(family, theirs, complete=True)
    _validate_sizes(family, theirs, config)
    if heads := {key: values[key] for key in (HEADS_WORD, KV_HEADS_WORD) if key in values}:
        _set_kv_heads(config, heads)
    cost = count_model_cost(config, theirs["vocab_size"])
    if family.repeated_kv_key is None or not theirs.get(family.repeated_kv_key):
        return cost
    heads_config = config["attention"]["heads"]
    return replace(cost, transformers_repeats=heads_config["n_heads"] // heads_config["n_kv_heads"])


def _set_value(theirs: Config, key: str, text: str, known_keys: Sequence[str]) -> None:
    """Set a key of their config, which the file has or the family reads."""
    missing = object()
    if get_path(theirs, key, missing) is missing and key not in known_keys:
        raise ValueError(
            f"{key}={text}: give a key of config.json, heads=mha, gqa or mqa, or heads.n_kv_heads=N"
            f"{format_suggestions(key, {*theirs, *known_keys})}"
        )
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{key}={text}: not a JSON value") from error
    *outer, leaf = key.split(".")
    node = theirs
    for name in outer:
        node = node.setdefault(name, {})
    node[leaf] = value


def _set_kv_heads(config: Config, values: Mapping[str, str]) -> None:
    """Set the number of KV heads of all layers."""
    heads = config["attention"]["heads"]
    if "n_kv_heads" not in heads:
        raise ValueError(f"{HEADS_WORD}=: this model has no KV heads whose number could change")
    n_heads, kind, text = heads["n_heads"], values.get(HEADS_WORD), values.get(KV_HEADS_WORD)
    numbers = {"mha": n_heads, "mqa": 1, "gqa": None, None: None}
    if kind not in numbers:
        raise ValueError(f"{HEADS_WORD}={kind}: give mha, mqa, or gqa with {KV_HEADS_WORD}=N")
    number = numbers[kind]
    if (number is None) != (text is not None):
        raise ValueError(
            f"{HEADS_WORD}=gqa needs {KV_HEADS_WORD}=N"
            if text is None
            else f"{KV_HEADS_WORD}={text}: {HEADS_WORD}={kind} has {number}"
        )
    if text is not None:
        if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
            raise ValueError(f"{KV_HEADS_WORD}={text}: must be a whole number from 1")
        number = int(text)
    heads["n_kv_heads"] = number


def _validate_sizes(family: Family, theirs: Config, config: Config) -> None:
    """Raise ValueError, with their key, for a size that is no whole number from 1 to its limit."""
    limits = {"n_layers": MAX_LAYERS, "ffn.n_chosen": get_path(config, "ffn.n_experts", MAX_SIZE)}
    sizes = [("vocab_size", theirs["vocab_size"], MAX_SIZE)]
    sizes += [
        (key.theirs, get_path(config, path), limits.get(path, MAX_SIZE))
        for key in family.keys
        for path in key.ours
        if path.rpartition(".")[2] in SIZE_LEAVES
    ]
    mixers = (config["attention"], *(config.get("layers") or ()))
    sizes += [("sliding_window", get_window_size(mixer), MAX_SIZE) for mixer in mixers]
    for name, size, limit in sizes:
        if size is not None and (type(size) is not int or not 1 <= size <= limit):
            raise ValueError(f"{name} = {size!r}: must be a whole number from 1 to {limit:,}")
