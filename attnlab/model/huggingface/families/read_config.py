"""From a Hugging Face config to our `model` config, by the families' tables. Never imports torch."""

import copy
import math
from collections.abc import Mapping
from typing import Any

from attnlab.model.huggingface.families.checkpoint_family import REQUIRED, ConfigKey, Family
from attnlab.model.huggingface.rope_config import Config


def find_family(theirs: Config, families: Mapping[str, Family]) -> Family:
    """The family of a config, by its `model_type`."""
    model_type: Any = theirs.get("model_type")
    if not isinstance(model_type, str) or model_type not in families:
        raise ValueError(f"model_type {model_type!r} is not known (known: {', '.join(families)})")
    return families[model_type]


def validate_fixed_keys(family: Family, theirs: Config) -> None:
    """Raise ValueError if a key that our modules fix has another value."""
    for key, allowed in family.fixed.items():
        value = get_path(theirs, key, allowed[0])
        if value not in allowed:
            raise ValueError(f"{key} = {value!r} is not supported (only {', '.join(map(repr, allowed))})")
    for alias, key in family.aliases.items():
        if alias in theirs and theirs[alias] != theirs.get(key):
            raise ValueError(
                f"{alias} = {theirs[alias]!r} and {key} = {theirs.get(key)!r} disagree: keep the one that "
                "the model was trained with"
            )
    if not isinstance(theirs.get("vocab_size"), int):
        raise ValueError(f"vocab_size must be an integer, not {theirs.get('vocab_size')!r}")


def convert_config_to_ours(family: Family, theirs: Config, complete: bool = False) -> Config:
    """Convert their config to ours; with `complete`, a missing key without a default is an error."""
    config = copy.deepcopy(family.model)
    raw, theirs = theirs, family.normalize(theirs)
    for key in family.keys:
        value = get_path(theirs, key.theirs)
        if value is None and requires_value(key) and get_path(raw, key.theirs, key) is None:
            raise ValueError(f"{key.theirs} is missing (null): add the value that the model was trained with")
        if value is None and key.default is not REQUIRED:
            value = key.default(theirs) if callable(key.default) else key.default
        elif value is None and complete:
            raise ValueError(f"{key.theirs} is missing")
        try:
            value = None if value is None else key.read(value)
        except ValueError as error:
            raise ValueError(f"{key.theirs} {error}") from error
        for path in key.ours:
            *outer, leaf = path.split(".")
            if leaf in ("eps", "norm_eps") and not _is_epsilon(value):
                raise ValueError(f"{key.theirs} = {value!r}: must be a finite number of at least 0")
            if value is None and outer[-1:] in (["masks"], ["scores"]):
                continue  # a null mask or score is an absent part
            node = config
            for name in outer:
                node = node.setdefault(name, {})
            node[leaf] = copy.deepcopy(value)
    return config


def _is_epsilon(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < math.inf)


def requires_value(key: ConfigKey) -> bool:
    """Return whether null is an error, although an absent key may have a default."""
    return key.default is not None and not callable(key.default)


def get_path(node: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path of nested mappings."""
    for name in path.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return default
        node = node[name]
    return node
