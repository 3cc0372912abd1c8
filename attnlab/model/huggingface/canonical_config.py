"""Canonical form of our model configs, for comparison independent of defaults, names and order."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

from hydra.utils import get_object
from omegaconf import OmegaConf

from attnlab.model.build import list_mixer_configs
from attnlab.model.huggingface.families.family_table import BLOCK
from attnlab.model.huggingface.rope_config import Config

TRAINING_KEYS = ("seed", "init_std", "qk_gain", "dropout")
MIXER_TRAINING_KEYS = ("dropout", "kernel")


def diff_configs(left: Any, right: Any) -> dict[str, tuple[Any, Any]]:
    """Map each leaf that differs by more than rounding to its two values."""
    left_leaves = flatten_leaves(left)
    right_leaves = flatten_leaves(right)
    pairs = {
        name: (left_leaves.get(name, "absent"), right_leaves.get(name, "absent"))
        for name in left_leaves | right_leaves
    }
    return {name: pair for name, pair in pairs.items() if not _is_close(*pair)}


def _is_close(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-12)
    return bool(left == right)


def canonicalize_config(config: Config) -> Config:
    """Drop empty and training-only keys and add the defaults of every target's signature.

    The mixer is stored under `attention`, and `layers` lists the patched mixer of every layer.
    """
    separate_keys = ("attention", "mixer", "layers", "window", *TRAINING_KEYS)
    plain: Config = _fill_defaults(
        {"block": BLOCK}
        | {key: value for key, value in config.items() if key not in separate_keys and value is not None}
    )
    mixers = [
        _canonicalize_mixer(OmegaConf.to_container(mixer)) for mixer in list_mixer_configs({"model": config})
    ]
    layers = [mixers[layer % len(mixers)] for layer in range(config["n_layers"] or 0)]
    return plain | {
        "attention": _canonicalize_mixer(config.get("mixer") or config["attention"]),
        "layers": layers,
    }


def _canonicalize_mixer(mixer: Any) -> Config:
    plain = {name: value for name, value in _fill_defaults(mixer).items() if name not in MIXER_TRAINING_KEYS}
    heads = plain.get("heads", {})
    if {"dim", "n_heads"} <= heads.keys():
        heads.setdefault("head_dim", heads["dim"] // heads["n_heads"])
    for kind in {"masks", "scores"} & plain.keys():
        plain[kind] = _rename_by_target(plain[kind])
    masks = plain.get("masks", {})
    if masks.get("window"):  # a window is causal by itself
        masks.pop("causal", None)
    return plain


def _rename_by_target(parts: Config) -> Config:
    """Key parts by their target's name, because their own names are arbitrary."""
    parts_by_target: Config = {}
    for name, part in parts.items():
        kind = (part.get("path") or part["_target_"]).rpartition(".")[2].lower()
        parts_by_target[name if kind in parts_by_target else kind] = part
    return parts_by_target


def _fill_defaults(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    defaults: Config = {}
    if "_target_" in node:
        parameters = inspect.signature(get_object(node["_target_"])).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    filled = {name: _fill_defaults(value) for name, value in (defaults | dict(node)).items()}
    return {name: value for name, value in filled.items() if value not in (None, {}, [])}


def flatten_leaves(node: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {path: node}
    inner = [flatten_leaves(value, f"{path}.{name}".lstrip(".")) for name, value in node.items()]
    return {name: value for leaves in inner for name, value in leaves.items()}
